"""A rollout captured as one CUDA graph equals eager execution."""

import contextlib

import pytest
import torch

from st_rl.env import VecEnv
from st_rl.runners import OnPolicyRunner

pytestmark = pytest.mark.gpu


class FollowEnv(VecEnv):
    """Points on a line that follow a moving target; state in fixed tensors, no randomness."""

    is_graph_safe = True

    def __init__(self, num_envs: int = 64):
        self.num_envs, self.num_obs, self.num_actions, self.num_privileged_obs = num_envs, 3, 1, None
        self.device, self.max_episode_length = "cuda", 20
        self.position = torch.linspace(-1, 1, num_envs, device="cuda")
        self.episode_length_buf = torch.arange(num_envs, device="cuda") % 20

    def during_capture(self, stream):
        return contextlib.nullcontext()

    def _obs(self):
        angle = self.episode_length_buf * 0.3
        return torch.stack([self.position, angle.sin(), angle.cos()], dim=1)

    def get_observations(self):
        return self._obs(), {"observations": {}}

    def reset(self):
        return self.get_observations()

    def step(self, actions):
        self.position.add_(0.1 * actions[:, 0].clamp(-1, 1)).clamp_(-2, 2)
        self.episode_length_buf.add_(1)
        rewards = 1 - (self.position - (self.episode_length_buf * 0.3).sin()).square()
        dones = self.episode_length_buf >= self.max_episode_length
        self.episode_length_buf.masked_fill_(dones, 0)
        self.position.masked_fill_(dones, 0.0)
        return self._obs(), rewards, dones, {"time_outs": dones, "log": {"reward": rewards.mean()}}


@pytest.mark.parametrize("policy", ["ActorCritic", "ActorCriticRecurrent"])
def test_captured_rollout_equals_eager(policy):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    runners = {}
    for engine in ("eager", "graph"):
        torch.manual_seed(0)
        config = {
            "num_steps_per_env": 8,
            "engine": engine,
            "empirical_normalization": True,
            "policy": {
                "class_name": policy,
                "actor_hidden_dims": [32],
                "critic_hidden_dims": [32],
                "init_noise_std": 1e-3,
            },
            "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2, "schedule": "adaptive"},
        }
        runner = OnPolicyRunner(FollowEnv(), config, device="cuda")
        runner.learn(6)
        runners[engine] = runner
    eager, graph = runners["eager"], runners["graph"]
    assert graph.alg.storage.step == eager.alg.storage.step
    torch.testing.assert_close(list(graph._episodes.rewbuffer), list(eager._episodes.rewbuffer), rtol=1e-2, atol=1e-2)
    assert list(graph._episodes.lenbuffer) == list(eager._episodes.lenbuffer)
    torch.testing.assert_close(
        graph.alg.obs_normalizer.state_dict(), eager.alg.obs_normalizer.state_dict(), rtol=1e-3, atol=1e-3
    )
    for name, value in eager.alg.actor_critic.state_dict().items():
        torch.testing.assert_close(graph.alg.actor_critic.state_dict()[name], value, rtol=2e-2, atol=2e-2)
    assert sum(graph._episodes.rewbuffer) > 0


def test_iteration_has_at_most_three_host_syncs():
    """Counted with torch's sync debug mode, without logging."""
    import warnings

    runner = OnPolicyRunner(
        FollowEnv(),
        {"num_steps_per_env": 8, "engine": "graph", "policy": {}, "algorithm": {"schedule": "adaptive"}},
        device="cuda",
    )
    runner.learn(4)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runner._iterate(4, 4, 6, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in caught if "synchroniz" in str(w.message)]
    assert len(waits) <= 3, [str(w.message) for w in waits]


def make_captured(policy="ActorCritic"):
    """Build a training with captured rollout and mini-batch steps."""
    torch.manual_seed(0)
    config = {
        "num_steps_per_env": 8,
        "engine": "graph",
        "policy": {"class_name": policy, "actor_hidden_dims": [32], "critic_hidden_dims": [32]},
        "algorithm": {"num_learning_epochs": 2, "num_mini_batches": 2},
    }
    runner = OnPolicyRunner(FollowEnv(), config, device="cuda")
    runner.learn(5)
    return runner


@pytest.mark.parametrize("policy", ["ActorCritic", "ActorCriticRecurrent"])
def test_captured_steps_use_the_loaded_optimizer(policy, tmp_path):
    runner = make_captured(policy)
    runner.save(tmp_path / "model_5.pt")
    runner.learn(2)
    runner.load(tmp_path / "model_5.pt")
    runner.learn(3)
    for state in runner.alg.optimizer.state.values():
        assert float(state["step"]) == 8 * 4


@pytest.mark.parametrize("policy", ["ActorCritic", "ActorCriticRecurrent"])
def test_weights_keep_their_address_between_learn_calls(policy):
    runner = make_captured(policy)
    places = [parameter.data_ptr() for parameter in runner.alg.actor_critic.parameters()]
    runner.learn(2)
    runner.get_inference_policy("cuda")
    runner.learn(2)
    assert [parameter.data_ptr() for parameter in runner.alg.actor_critic.parameters()] == places


def test_training_continues_after_policy_was_moved_to_another_device():
    runner = make_captured()
    runner.get_inference_policy("cpu")
    before = [parameter.detach().cpu().clone() for parameter in runner.alg.actor_critic.parameters()]
    runner.learn(1)
    after = [parameter.detach().cpu() for parameter in runner.alg.actor_critic.parameters()]
    assert all(not torch.equal(old, new) for old, new in zip(before, after))
