"""The factors of a step on a GPU do what clipping and asking do on a CPU."""

import pytest
import torch
from torch import nn

from st_rl.algorithms import compiled_adam, host_adam
from st_rl.algorithms.compiled_adam import step_factors
from st_rl.algorithms.losses import adapt_learning_rate, adapted_learning_rate
from st_rl.algorithms.optimizer import GuardedOptimizer
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
        assert float(guarded.apply_gradients(1.0)) == pytest.approx(float(expected), rel=1e-6)
    for weight, twin in zip(weights, twins):
        torch.testing.assert_close(weight, twin, rtol=1e-6, atol=1e-7)
    guarded.zero_grad()
    assert all(weight.grad is None for weight in weights)


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"maximize": True, "eps": 1e-3}])
def test_the_step_on_a_cpu_is_bit_by_bit_that_of_fused_adam(settings):
    weights = [nn.Parameter(torch.randn(40, 33)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.ones(2))]
    twins = [nn.Parameter(weight.detach().clone()) for weight in weights]
    mine, theirs = (torch.optim.Adam(group, lr=0.1, fused=True, **settings) for group in (weights, twins))
    for number in range(6):
        # The third has a gradient only now and then, so that it counts steps of its own.
        learning = range(3 if number in (0, 4) else 2)
        # Every second step is along gradients that were too long.
        divisor = 1.0 + 1.7 * (number % 2)
        for weight, twin in zip(weights, twins):
            weight.grad = twin.grad = None
        for index in learning:
            weights[index].grad = torch.randn_like(weights[index])
            twins[index].grad = weights[index].grad / divisor
        theirs.step()
        chosen = [weights[index] for index in learning]
        if number == 0:
            assert not host_adam.can_step(mine, chosen)
            mine.step()
        else:
            assert host_adam.can_step(mine, chosen)
            host_adam.follow(mine, chosen, [weight.grad for weight in chosen], divisor)
            for index in learning:
                assert torch.equal(weights[index].grad, twins[index].grad)
    for weight, twin in zip(weights, twins):
        assert torch.equal(weight, twin)
        for name, value in theirs.state[twin].items():
            assert torch.equal(mine.state[weight][name], value)


@pytest.mark.parametrize(
    ("way", "settings"),
    [
        (host_adam, {"lr": 0.1, "fused": True}),
        (compiled_adam, {"lr": torch.tensor(0.1), "capturable": False, "foreach": False}),
    ],
    ids=["host", "compiled"],
)
def test_steps_that_somebody_watches_are_left_to_torch(way, settings):
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], **settings)
    weight.grad = torch.ones(3)
    optimizer.step()
    assert way.can_step(optimizer, [weight])
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert not way.can_step(optimizer, [weight])
    handle.remove()
    torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
    assert not way.can_step(optimizer, [weight])


@pytest.mark.parametrize("backend", [None, "aot_eager"], ids=["as written", "traced"])
def test_the_step_that_is_compiled_is_the_step_of_adam(backend):
    """With clipping, with bad gradients that change nothing, and with a parameter that misses a step."""
    run = (lambda function: function) if backend is None else lambda f: torch.compile(f, backend=backend, dynamic=False)
    weights = [nn.Parameter(torch.randn(shape)) for shape in ((4, 3), (5,), (2, 2))]
    twins = [nn.Parameter(weight.detach().clone()) for weight in weights]
    ours, plain = (torch.optim.Adam(values, lr=torch.tensor(0.05), capturable=False) for values in (weights, twins))
    for number in range(5):
        for weight, twin in zip(weights, twins):
            gradient = torch.randn_like(weight) * (3.0 if number % 2 else 0.1)
            weight.grad, twin.grad = gradient, gradient.clone()
        if number == 3:
            weights[1].grad = twins[1].grad = None
        expected = nn.utils.clip_grad_norm_(twins, 1.0)
        plain.step()
        learning = [weight for weight in weights if weight.grad is not None]
        assert compiled_adam.can_step(ours, learning) == (number > 0)
        if number == 0:
            nn.utils.clip_grad_norm_(weights, 1.0)
            ours.step()
            continue
        for spoil in (float("nan"), float("inf"), 1.0):
            gradients = [weight.grad * spoil for weight in learning if weight.grad is not None]
            states = [ours.state[weight] for weight in learning]
            before = [value.clone() for state in states for value in state.values()] + [w.clone() for w in weights]
            norm, divisor, skip = step_factors([gradient.norm() for gradient in gradients], 1.0, None)
            compiled_adam.follow(ours, learning, gradients, (divisor, skip), run)
            after = [value for state in states for value in state.values()] + weights
            assert (spoil != 1.0) == all(torch.equal(old, new) for old, new in zip(before, after))
        assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    for weight, twin in zip(weights, twins):
        torch.testing.assert_close(weight, twin, rtol=1e-5, atol=1e-6)
        for name, value in plain.state[twin].items():
            torch.testing.assert_close(ours.state[weight][name], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (torch.optim.Adam, {"weight_decay": 0.1}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.Adam, {"maximize": True}),
        (torch.optim.Adam, {"lr": 0.1}),
        (torch.optim.AdamW, {}),
        (torch.optim.NAdam, {}),
    ],
)
def test_other_steps_are_left_to_torch(cls, settings):
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = cls([weight], **{"lr": torch.tensor(0.1), "capturable": False, "foreach": False, **settings})
    optimizer.step()
    assert not compiled_adam.can_step(optimizer, [weight])


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "compile"])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_on_a_gpu_many_small_steps_are_those_of_adam(name, engine):
    """Compared with torch's plain step in double precision; bad gradients in between count for nothing."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 12), (64,), (32, 64), (32,), (12, 32), (12,), (64, 12), (64,), (1, 64), (1,), (12,), (7, 5), (3,)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    weights = [nn.Parameter(value.cuda()) for value in start]
    twins = [nn.Parameter(value.double()) for value in start]
    ours, plain = GuardedOptimizer(name, weights, 0.01, "cuda"), getattr(torch.optim, name)(twins, lr=0.01)
    fused = Engine(engine, "cuda").fused
    for number in range(100):
        for weight, twin in zip(weights, twins):
            gradient = torch.randn(weight.shape, generator=generator) * (0.01 if number % 3 else 1.0)
            weight.grad, twin.grad = gradient.cuda(), gradient.double()
        if number % 10 == 7:
            weights[3].grad = torch.full_like(weights[3], torch.nan)
        else:
            nn.utils.clip_grad_norm_(twins, 1.0)
            plain.step()
        ours.apply_gradients(1.0, fused=fused)
    for weight, twin in zip(weights, twins):
        torch.testing.assert_close(weight.detach().cpu().double(), twin.detach(), rtol=1e-4, atol=1e-5)
        assert float(ours.optimizer.state[weight]["step"]) == 90.0


@pytest.mark.parametrize("rate", [1.0e-5, 1.2e-5, 1.0e-3, 9.0e-3, 1.0e-2])
def test_the_rule_of_the_learning_rate_is_the_same_for_numbers_and_tensors(rate):
    for kl in (float("nan"), -0.1, 0.0, 0.004, 0.006, 0.019, 0.021, 5.0):
        expected = adapted_learning_rate(torch.tensor(rate, dtype=torch.float64), torch.tensor(kl), 0.01)
        assert adapt_learning_rate(rate, kl, 0.01) == pytest.approx(float(expected), rel=1e-12)


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
