"""`GuardedOptimizer`: gradient clipping, skipped steps, and equality with torch's optimizers."""

import pytest
import torch
from torch import nn

from st_rl.algorithms.optimizer import GuardedOptimizer
from st_rl.engine import Engine
from tests.algorithms.rollouts import collect, make_ppo, random_steps

OPTIMIZERS = ["Adam", "AdamW", "SGD"]


def make_twins(*shapes):
    weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    return weights, [nn.Parameter(weight.detach().clone()) for weight in weights]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
def test_steps_equal_torch_with_clipped_gradients(size, name):
    weights, twins = make_twins((4, 3), (5,), (2,))
    guarded, plain = GuardedOptimizer(name, weights, 0.1, "cpu"), getattr(torch.optim, name)(twins, lr=0.1)
    for _ in range(3):
        for weight, twin in zip(weights[:2], twins):  # the third has no gradient
            gradient = size * torch.randn_like(weight)
            weight.grad, twin.grad = gradient, gradient.clone()
        expected = nn.utils.clip_grad_norm_(twins, 1.0)
        plain.step()
        assert float(guarded.apply_gradients(1.0)) == pytest.approx(float(expected), rel=1e-6)
    for weight, twin in zip(weights, twins):
        torch.testing.assert_close(weight, twin, rtol=1e-6, atol=1e-7)


def test_optimizer_kwargs_reach_the_optimizer():
    alg = make_ppo(
        optimizer_class_name="AdamW", optimizer_kwargs={"eps": 1e-5, "betas": [0.8, 0.9], "weight_decay": 0.1}
    )
    group = alg.optimizer.param_groups[0]
    assert (group["eps"], tuple(group["betas"]), group["weight_decay"]) == (1e-5, (0.8, 0.9), 0.1)


@pytest.mark.parametrize(("settings", "message"), [({"epz": 1e-5}, "Adam.*epz"), ({"lr": 0.1}, "Adam.*'lr'")])
def test_rejects_other_optimizer_kwargs(settings, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(optimizer_kwargs=settings)


def test_adam_step_counts_are_per_parameter():
    weights, twins = make_twins((40, 33), (5,), (2,))
    guarded, plain = GuardedOptimizer("Adam", weights, 0.1, "cpu"), torch.optim.Adam(twins, lr=0.1, fused=True)
    for number in range(6):
        learning = range(3 if number in (0, 4) else 2)
        for weight, twin in zip(weights, twins):
            weight.grad = twin.grad = None
        for index in learning:
            weights[index].grad = 0.001 * torch.randn_like(weights[index])
            twins[index].grad = weights[index].grad.clone()
        plain.step()
        guarded.apply_gradients(1.0)
    for weight, twin in zip(weights, twins):
        assert torch.equal(weight, twin)
        for name, value in plain.state[twin].items():
            assert torch.equal(guarded.optimizer.state[weight][name], value)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradients_and_skipped_steps_change_nothing(bad, name):
    weights, _ = make_twins((4, 3), (5,))
    guarded = GuardedOptimizer(name, weights, 0.1, "cpu")

    def step(factor, skip_step):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        weights[1].grad = factor * torch.ones_like(weights[1])
        guarded.apply_gradients(1.0, skip_step)
        states = [
            value for weight in weights for value in guarded.optimizer.state[weight].values() if value is not None
        ]
        return [value.clone() for value in (*weights, *states)]

    before = step(1.0, None)
    for factor, skip_step in ((bad, None), (1.0, torch.tensor(True)), (bad, torch.tensor(False))):
        assert all(torch.equal(old, new) for old, new in zip(before, step(factor, skip_step), strict=True))
    assert not all(torch.equal(old, new) for old, new in zip(before, step(1.0, torch.tensor(False)), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_gpu_steps_equal_adam(name):
    """Compared with torch's Adam in float64; steps with non-finite gradients are skipped."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 12), (64,), (32, 64), (32,), (12, 32), (12,), (64, 12), (64,), (1, 64), (1,), (12,), (7, 5), (3,)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    weights = [nn.Parameter(value.cuda()) for value in start]
    twins = [nn.Parameter(value.double()) for value in start]
    ours, plain = GuardedOptimizer(name, weights, 0.01, "cuda"), getattr(torch.optim, name)(twins, lr=0.01)
    for number in range(100):
        for weight, twin in zip(weights, twins):
            gradient = torch.randn(weight.shape, generator=generator) * (0.01 if number % 3 else 1.0)
            weight.grad, twin.grad = gradient.cuda(), gradient.double()
        if number % 10 == 7:
            weights[3].grad = torch.full_like(weights[3], torch.nan)
        else:
            nn.utils.clip_grad_norm_(twins, 1.0)
            plain.step()
        ours.apply_gradients(1.0)
    for weight, twin in zip(weights, twins):
        torch.testing.assert_close(weight.detach().cpu().double(), twin.detach(), rtol=1e-4, atol=1e-5)
        assert float(ours.optimizer.state[weight]["step"]) == 90.0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_steps_with_a_host_sync_are_not_captured(device):
    """They run eagerly, for every torch optimizer and every engine."""
    adam, descent = (
        GuardedOptimizer(name, [nn.Parameter(torch.zeros(2, device=device))], 0.1, device) for name in ("Adam", "SGD")
    )
    assert descent.needs_host_sync
    assert not adam.needs_host_sync
    alg = make_ppo(optimizer_class_name="SGD", num_learning_epochs=8, device=device)
    alg.engine = Engine("auto", device)
    steps = [{name: value.to(device) for name, value in step.items()} for step in random_steps(6, 5)]
    collect(alg, steps)
    losses, _ = alg.update(0)
    assert not alg.engine._steps
    assert torch.isfinite(losses["total_loss"])
