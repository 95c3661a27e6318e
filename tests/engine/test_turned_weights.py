"""Turned weights: the same product, read in another order, and only where it pays."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from st_rl.engine.turned_weights import LEAST_ROWS, TurnedWeights

MM = torch.ops.aten.mm.default


def turned_graph(rows: torch.Tensor, weight: torch.Tensor) -> torch.fx.GraphModule:
    module = make_fx(torch.mm, tracing_mode="fake")(rows, weight)
    TurnedWeights()(module.graph)
    module.graph.lint()
    module.recompile()
    return module


def weight_read_by(module: torch.fx.GraphModule) -> torch.Tensor:
    (product,) = module.graph.find_nodes(op="call_function", target=MM)
    return product.args[1].meta["val"]


def test_the_gradient_of_a_layers_inputs_reads_the_weight_column_by_column():
    rows, weight = torch.randn(LEAST_ROWS, 48, dtype=torch.float32), torch.randn(48, 96)
    module = turned_graph(rows, weight)
    read = weight_read_by(module)
    assert read.shape == (48, 96)
    assert read.stride() == (1, 48)
    exact = rows.double() @ weight.double()
    assert torch.allclose(module(rows, weight).double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "weight"),
    [
        pytest.param(torch.randn(LEAST_ROWS - 1, 48), torch.randn(48, 96), id="few rows"),
        pytest.param(torch.randn(LEAST_ROWS, 48), torch.randn(48, 12), id="a narrow weight"),
        pytest.param(torch.randn(LEAST_ROWS, 2048), torch.randn(2048, 1024), id="a large weight"),
        pytest.param(torch.randn(LEAST_ROWS, 48), torch.randn(96, 48).T, id="turned already"),
        pytest.param(torch.randn(LEAST_ROWS, 48).bfloat16(), torch.randn(48, 96).bfloat16(), id="another type"),
    ],
)
def test_other_products_stay_as_they_are(rows, weight):
    read = weight_read_by(turned_graph(rows, weight))
    assert read.stride() == weight.stride()


def test_the_compiler_takes_it_and_gradients_are_those_of_eager_code():
    if torch.cuda.is_available():
        pytest.skip("the tests of graphs compare compiled with eager code there")
    torch._dynamo.reset()
    turned = []

    class Watched(TurnedWeights):
        def __call__(self, graph):
            super().__call__(graph)
            turned.append(len(graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)))

        def uuid(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            return None  # never from the cache, where nobody would be asked

    layers = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ELU(), torch.nn.Linear(64, 48), torch.nn.ELU())
    rows = torch.randn(LEAST_ROWS, 40)
    options = {"post_grad_custom_post_pass": Watched(), "fallback_random": True}
    gradients = []
    for run in (layers, torch.compile(layers, dynamic=False, options=options)):
        layers.zero_grad(set_to_none=True)
        run(rows).square().mean().backward()
        gradients.append([parameter.grad for parameter in layers.parameters()])
    assert turned == [0, 1]  # forward, backward: only the second layer's inputs have a gradient
    for compiled, plain in zip(*reversed(gradients)):
        assert torch.allclose(compiled, plain, rtol=1e-5, atol=1e-8)
