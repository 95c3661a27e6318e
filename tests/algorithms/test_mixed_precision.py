"""`mixed_precision="bf16"`: hidden layers in bfloat16, similar gradients, parameters and losses in float32."""

import pytest
import torch

from st_rl.algorithms import PPO
from st_rl.engine import Engine
from st_rl.engine.engine import compiler_options
from tests.algorithms.rollouts import collect, make_policy, make_ppo, random_steps

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(kind, precision, device="cpu"):
    torch.manual_seed(0)
    policy = make_policy(kind, actor_hidden_dims=[64, 64], critic_hidden_dims=[64, 64])
    settings = {"schedule": "adaptive", "entropy_coef": 0.01, "learning_rate": 1e-3, "device": device}
    return make_ppo(kind, 64, 8, policy=policy, mixed_precision=precision, **settings)


def steps_on(device, seed):
    return [{name: value.to(device) for name, value in step.items()} for step in random_steps(64, 8, seed=seed)]


def gradient_of(alg, batch):
    with alg._autocast():
        losses, inter_vars, _ = alg.compute_losses(batch)
    torch.stack(list(losses.values())).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in alg.actor_critic.parameters()])
    return losses, inter_vars, gradient


def batch_of(alg):
    storage = alg.storage
    generator = (
        storage.reccurent_mini_batch_generator if alg.actor_critic.is_recurrent else storage.mini_batch_generator
    )
    (batch,) = generator(1, 1)
    return batch


@pytest.mark.parametrize("device", DEVICES)
def test_losses_and_gradients_are_close_and_in_float32(device):
    exact, mixed = make("mlp", None, device), make("mlp", "bf16", device)
    collect(exact, steps_on(device, 1))
    batch = batch_of(exact)
    losses, _, gradient = gradient_of(exact, batch)
    mixed_losses, inter_vars, mixed_gradient = gradient_of(mixed, batch)
    for name, value in losses.items():
        assert mixed_losses[name].dtype == torch.float32
        torch.testing.assert_close(mixed_losses[name], value, rtol=2e-2, atol=2e-2)
    # The policy is unchanged since it acted: the ratio differs from 1 by rounding only.
    assert 0.0 < (inter_vars["ratio"] - 1.0).abs().max() < 0.03
    assert torch.nn.functional.cosine_similarity(gradient, mixed_gradient, dim=0) > 0.999
    assert not torch.equal(gradient, mixed_gradient)
    assert all(p.dtype == torch.float32 for p in mixed.actor_critic.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_policy_trains_in_mixed_precision(kind):
    exact, mixed = make(kind, None, "cuda"), make(kind, "bf16", "cuda")
    collect(exact, steps_on("cuda", 1))
    batch = batch_of(exact)
    gradient, mixed_gradient = gradient_of(exact, batch)[2], gradient_of(mixed, batch)[2]
    assert torch.nn.functional.cosine_similarity(gradient, mixed_gradient, dim=0) > 0.99


@pytest.mark.parametrize("device", DEVICES)
def test_updates_stay_close_with_every_engine(device):
    backend = "inductor" if device == "cuda" else "aot_eager"
    engines = [None, Engine("eager", device), Engine("compile", device, compile_backend=backend)]
    learners = [make("mlp", None if engine is None else "bf16", device) for engine in engines]
    for alg, engine in zip(learners, engines):
        alg.engine = alg.engine if engine is None else engine
        for iteration in range(2):
            torch.manual_seed(iteration)
            collect(alg, steps_on(device, iteration))
            torch.manual_seed(iteration)
            alg.update(iteration)
    weights = [torch.cat([p.detach().flatten() for p in alg.actor_critic.parameters()]) for alg in learners]
    for first, second in ((weights[0], weights[1]), (weights[1], weights[2])):
        assert (second - first).norm() / first.norm() < 2e-3
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize(("precision", "combines"), [(None, False), ("bf16", True)])
def test_gpu_weight_casts_are_compiled_with_losses(precision, combines):
    combined = {}

    class Watched(Engine):
        def compile(self, function, casts_weights=False):
            options = compiler_options(torch.device("cuda"), casts_weights)
            combined[function.__name__] = options.get("combo_kernels", False)
            return function

    alg = make("mlp", precision)
    alg.engine = Watched("eager")
    collect(alg, steps_on("cpu", 0))
    alg.update(0)
    assert combined.pop("_objective") == combines
    # Acting is in float32.
    assert not any(combined.values())


def test_unknown_precision_lists_known_ones():
    with pytest.raises(ValueError, match="unknown mixed_precision 'fp8'; use None \\(float32\\) or one of: bf16"):
        PPO(make_policy(), mixed_precision="fp8")
