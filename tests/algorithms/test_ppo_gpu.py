"""PPO on a GPU: no host sync, non-finite guard, checkpoints across devices."""

import copy
import io

import pytest
import torch

from st_rl.algorithms import PPO
from tests.algorithms.rollouts import (
    CRITIC_DIM,
    NUM_ACTIONS,
    OBS_DIM,
    assert_same_parameters,
    make_policy,
    parameters_of,
    random_steps,
)

pytestmark = pytest.mark.gpu

RND = {"num_states": OBS_DIM, "num_outputs": 3, "predictor_hidden_dims": [8], "target_hidden_dims": [8], "weight": 0.1}


@pytest.fixture(autouse=True)
def _exact_products():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def make(kind, device, **kwargs):
    torch.manual_seed(0)
    settings = {"schedule": "adaptive", "num_learning_epochs": 2, "num_mini_batches": 2, "entropy_coef": 0.01, **kwargs}
    alg = PPO(make_policy(kind), device=device, empirical_normalization=True, **settings)
    alg.init_obs_norm(OBS_DIM, CRITIC_DIM)
    alg.init_storage(6, 5, [OBS_DIM], [CRITIC_DIM], [NUM_ACTIONS])
    alg.train_mode()
    return alg


def prepared(seed, device):
    """Data and noise of a rollout, on the device before host syncs are watched."""
    steps = random_steps(6, 5, seed=seed)
    return [{name: value.to(device) for name, value in step.items()} for step in steps]


def collect(alg, steps):
    with torch.inference_mode():
        for step in steps[:-1]:
            obs, critic_obs = alg.obs_normalizer(step["obs"]), alg.critic_obs_normalizer(step["critic_obs"])
            alg.act(obs, critic_obs)
            final = {"critic": step["critic_obs"]}
            infos = {
                "time_outs": step["dones"], "final_observations": final, "observations": {"rnd_state": step["obs"]}
            }  # fmt: skip
            alg.process_env_step(step["rewards"], step["dones"], infos)
        alg.compute_returns(alg.critic_obs_normalizer(steps[-1]["critic_obs"]))


@pytest.mark.parametrize("settings", [{}, {"rnd_cfg": RND}, {"schedule": "fixed", "optimizer_class_name": "AdamW"}])
@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm"])
def test_has_no_host_sync(kind, settings):
    alg = make(kind, "cuda", **settings)
    for iteration in range(2):
        collect(alg, prepared(iteration, "cuda"))
        alg.update(iteration)
    steps = prepared(5, "cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        collect(alg, steps)
        generator = alg.storage.mini_batch_generator
        if alg.actor_critic.is_recurrent:
            # A fixed number of trajectories, as the engine sets it: exact shapes would need a host sync.
            alg.storage.trajectory_capacity = 6 * 5
            generator = alg.storage.reccurent_mini_batch_generator
        for batch in generator(2, 2):
            alg._averages.add(alg.minibatch_step(batch))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(value).all() for value in parameters_of(alg).values())


@pytest.mark.parametrize("kind", ["mlp", "gru", "lstm"])
@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_training_equals_cpu(kind, optimizer):
    outcomes = {}
    for device in ("cpu", "cuda"):
        alg = make(kind, device, optimizer_class_name=optimizer, num_mini_batches=1)
        noise = torch.Generator().manual_seed(3)

        def act(observations, *args, policy=alg.actor_critic, original=alg.actor_critic.act, noise=noise, **kwargs):
            actions = original(observations, *args, **kwargs)
            if observations.dim() == 2 and not torch.is_grad_enabled():
                draw = torch.randn(policy.action_mean.shape, generator=noise).to(observations.device)
                actions = policy.action_mean + policy.action_std * draw
            return actions

        alg.actor_critic.act = act
        rates = []
        for iteration in range(3):
            with torch.no_grad():
                collect(alg, prepared(iteration, device))
            alg.update(iteration)
            rates.append(float(alg.learning_rate))
        outcomes[device] = {name: value.cpu() for name, value in parameters_of(alg).items()}, rates
    assert outcomes["cpu"][1] == pytest.approx(outcomes["cuda"][1], rel=1e-5)
    assert_same_parameters(outcomes["cpu"][0], outcomes["cuda"][0], atol=2e-4, rtol=1e-3)


def test_learning_rate_is_on_device_and_non_finite_mini_batch_is_skipped():
    alg = make("mlp", "cuda")
    collect(alg, prepared(0, "cuda"))
    assert isinstance(alg.learning_rate, torch.Tensor)
    assert alg.learning_rate.is_cuda
    assert alg.optimizer.param_groups[0]["lr"] is alg.learning_rate
    (good,) = alg.storage.mini_batch_generator(1, 1)
    alg.minibatch_step(good)
    before, state = parameters_of(alg), copy.deepcopy(alg.optimizer.state_dict()["state"])
    bad = good._replace(returns=torch.full_like(good.returns, float("nan")))
    measured = alg.minibatch_step(bad)
    assert not torch.isfinite(measured["gradient_norm"])
    assert_same_parameters(before, parameters_of(alg))
    for index, entries in alg.optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, state[index][name]) for name, value in entries.items())
    alg.minibatch_step(good)
    assert any(not torch.equal(value, before[name]) for name, value in parameters_of(alg).items())


@pytest.mark.parametrize(("source", "target"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_checkpoint_loads_across_devices(kind, source, target):
    alg = make(kind, source, rnd_cfg=RND)
    collect(alg, prepared(0, source))
    alg.update(0)
    file = io.BytesIO()
    torch.save(alg.state_dict(), file)
    file.seek(0)
    twin = make(kind, target, rnd_cfg=RND)
    twin.load_state_dict(torch.load(file, map_location=target, weights_only=True))
    assert float(twin.learning_rate) == pytest.approx(float(alg.learning_rate), rel=1e-6)
    assert isinstance(twin.learning_rate, torch.Tensor) == (target == "cuda")
    before = parameters_of(twin)
    for iteration in (1, 2):
        collect(twin, prepared(iteration, target))
        losses, _ = twin.update(iteration)
    assert all(torch.isfinite(value) for value in losses.values())
    assert any(not torch.equal(value, before[name]) for name, value in parameters_of(twin).items())
    collect(twin, prepared(3, target))
    twin.storage.returns.fill_(float("nan"))
    before = parameters_of(twin)
    twin.update(3)
    assert_same_parameters(before, parameters_of(twin))


def test_hidden_states_move_with_policy():
    policy = make_policy("lstm").cuda()
    with torch.inference_mode():
        policy.act(torch.randn(4, OBS_DIM, device="cuda"))
    policy.cpu()
    assert policy.act_inference(torch.randn(4, OBS_DIM)).device.type == "cpu"
