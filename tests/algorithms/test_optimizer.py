"""The factors of a step on a GPU do what clipping and asking do on a CPU."""

import pytest
import torch
from torch import nn

from st_rl.algorithms.losses import adapted_learning_rate, adapted_number
from st_rl.algorithms.optimizer import GuardedOptimizer, step_factors
from st_rl.engine import Engine
from tests.algorithms.rollouts import collect, make_ppo, random_steps


@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
def test_gradients_divided_by_the_factor_are_clipped_gradients(size):
    parameters = [nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(5))]
    for parameter in parameters:
        parameter.grad = size * torch.randn_like(parameter)
    norms = [parameter.grad.norm() for parameter in parameters if parameter.grad is not None]
    norm, scale, skip = step_factors(norms, 1.0, None)
    divided = [parameter.grad / scale for parameter in parameters if parameter.grad is not None]
    expected = nn.utils.clip_grad_norm_(parameters, 1.0)
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    assert float(skip) == 0.0
    for parameter, gradient in zip(parameters, divided):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
def test_steps_on_a_cpu_are_those_of_clipped_gradients(size):
    weights = [nn.Parameter(torch.zeros(4, 3)), nn.Parameter(torch.zeros(5)), nn.Parameter(torch.ones(2))]
    twins = [nn.Parameter(weight.detach().clone()) for weight in weights]
    guarded, plain = GuardedOptimizer("Adam", weights, 0.1, "cpu"), torch.optim.Adam(twins, lr=0.1)
    for _ in range(3):
        for weight, twin in zip(weights[:2], twins):  # the third has no gradient
            gradient = size * torch.randn_like(weight)
            weight.grad, twin.grad = gradient, gradient.clone()
        expected = nn.utils.clip_grad_norm_(twins, 1.0)
        plain.step()
        assert float(guarded.follow_gradients(1.0)) == pytest.approx(float(expected), rel=1e-6)
    for weight, twin in zip(weights, twins):
        torch.testing.assert_close(weight, twin, rtol=1e-6, atol=1e-7)
    guarded.forget_gradients()
    assert all(weight.grad is None for weight in weights)


@pytest.mark.parametrize("rate", [1.0e-5, 1.2e-5, 1.0e-3, 9.0e-3, 1.0e-2])
def test_the_rule_of_the_learning_rate_is_the_same_for_numbers_and_tensors(rate):
    for kl in (float("nan"), -0.1, 0.0, 0.004, 0.006, 0.019, 0.021, 5.0):
        expected = adapted_learning_rate(torch.tensor(rate, dtype=torch.float64), torch.tensor(kl), 0.01)
        assert adapted_number(rate, kl, 0.01) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_is_skipped_for_bad_numbers_and_on_request(bad):
    assert float(step_factors([torch.tensor(1.0), torch.tensor(bad)], 1.0, None)[2]) == 1.0
    good = [torch.tensor(1.0), torch.tensor(2.0)]
    assert float(step_factors(good, 1.0, torch.tensor(True))[2]) == 1.0
    assert float(step_factors(good, 1.0, torch.tensor(False))[2]) == 0.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_only_a_step_that_never_waits_may_be_captured(device):
    """Those that wait run as written, with every optimiser of torch and every engine."""
    adam, descent = (
        GuardedOptimizer(name, [nn.Parameter(torch.zeros(2, device=device))], 0.1, device) for name in ("Adam", "SGD")
    )
    assert descent.waits
    assert adam.waits is (device == "cpu")
    alg = make_ppo(optimizer_class_name="SGD", num_learning_epochs=8, device=device)
    alg.engine = Engine("auto", device)
    captured = []
    alg.engine.run_step = lambda *args: captured.append(args)
    steps = [{name: value.to(device) for name, value in step.items()} for step in random_steps(6, 5)]
    collect(alg, steps)
    losses, _ = alg.update(0)
    assert not captured
    assert torch.isfinite(losses["total_loss"])
