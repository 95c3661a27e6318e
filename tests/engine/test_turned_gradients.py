"""Turned gradients: the same product from the other side, and only where it pays."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from st_rl.engine import Engine
from st_rl.engine.engine import compiler_options
from st_rl.engine.turned_gradients import LEAST_ROWS, TurnedGradients

MM = torch.ops.aten.mm.default


def weight_gradient(errors: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return errors.T @ inputs


def turned_graph(errors: torch.Tensor, inputs: torch.Tensor) -> torch.fx.GraphModule:
    module = make_fx(weight_gradient, tracing_mode="fake")(errors, inputs)
    TurnedGradients()(module.graph)
    module.graph.lint()
    module.recompile()
    return module


def width_of_product(module: torch.fx.GraphModule) -> int:
    (product,) = module.graph.find_nodes(op="call_function", target=MM)
    return product.meta["val"].shape[1]


def test_the_product_is_as_wide_as_the_layers_outputs_and_the_gradient_lies_as_its_weight():
    errors, inputs = torch.randn(LEAST_ROWS, 64), torch.randn(LEAST_ROWS, 45)
    module = turned_graph(errors, inputs)
    assert width_of_product(module) == 64
    gradient = module(errors, inputs)
    assert gradient.shape == (64, 45)
    assert gradient.is_contiguous()
    assert torch.allclose(gradient.double(), errors.double().T @ inputs.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("errors", "inputs"),
    [
        pytest.param(torch.randn(LEAST_ROWS - 1, 64), torch.randn(LEAST_ROWS - 1, 45), id="few rows"),
        pytest.param(torch.randn(LEAST_ROWS, 64), torch.randn(LEAST_ROWS, 48), id="inputs that fill vectors"),
        pytest.param(torch.randn(LEAST_ROWS, 12), torch.randn(LEAST_ROWS, 45), id="outputs that fill none"),
        pytest.param(torch.randn(64, LEAST_ROWS).T, torch.randn(LEAST_ROWS, 45), id="turned errors"),
        pytest.param(torch.randn(LEAST_ROWS, 64).double(), torch.randn(LEAST_ROWS, 45).double(), id="another type"),
    ],
)
def test_other_products_stay_as_they_are(errors, inputs):
    assert width_of_product(turned_graph(errors, inputs)) == inputs.shape[1]


def test_compiled_gradients_on_a_cpu_are_turned_and_those_of_eager_code(monkeypatch):
    asked = []

    class Watched(TurnedGradients):
        def __call__(self, graph):
            super().__call__(graph)
            products = graph.find_nodes(op="call_function", target=MM)
            asked.append([tuple(product.meta["val"].shape) for product in products])

        def uuid(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            return None  # never from the cache, where nobody would be asked

    monkeypatch.setattr("st_rl.engine.turned_gradients.TurnedGradients", Watched)
    assert isinstance(compiler_options(torch.device("cpu"))["post_grad_custom_post_pass"], Watched)
    torch._dynamo.reset()
    layers = torch.nn.Sequential(torch.nn.Linear(45, 64), torch.nn.ELU(), torch.nn.Linear(64, 12))
    rows = torch.randn(LEAST_ROWS, 45)
    engine = Engine("compile")
    gradients = []
    for run in (layers, engine.compiled(lambda inputs: layers(inputs))):
        layers.zero_grad(set_to_none=True)
        run(rows).square().mean().backward()
        gradients.append([parameter.grad for parameter in layers.parameters()])
    assert not engine.eager_fallbacks
    # The gradient of the first weight (64, 45), the only one that gains, comes out of its product as (45, 64).
    assert (45, 64) in asked[-1]
    assert (64, 45) not in asked[-1]
    for plain, compiled in zip(*gradients):
        assert torch.allclose(compiled, plain, rtol=1e-5, atol=1e-7)
