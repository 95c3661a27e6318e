"""The adapter of manager-based environments (Isaac Lab, mjlab), tested with a fake."""

from types import SimpleNamespace

import pytest
import torch

from st_rl.env import ManagerBasedVecEnv, check_env, make_mjlab
from st_rl.runners import build_runner
from tests.env.managed import LIMIT, NUM_ENVS, Managed


@pytest.mark.parametrize("actor", ["policy", "actor"])
@pytest.mark.parametrize("joined", [True, False])
def test_passes_check_env(actor, joined):
    env = ManagerBasedVecEnv(Managed(actor, joined=joined))
    assert check_env(env) == []
    assert (env.num_envs, env.num_obs, env.num_privileged_obs, env.num_actions) == (NUM_ENVS, 6, 12, 2)
    assert (env.max_episode_length, env.device) == (LIMIT, torch.device("cpu"))
    assert env.obs_segments == {"joint_pos": 4, "command": 2}
    assert env.critic_obs_segments == {"joint_pos": 4, "command": 2, "scan": (2, 3)}
    obs, extras = env.reset()
    # The critic observation starts with the actor's; a second call samples no new noise.
    assert torch.equal(obs, extras["observations"]["critic"][:, :6])
    assert torch.equal(env.get_observations()[0], obs)
    assert torch.equal(obs[:, 4:], env.unwrapped.command)


def test_accepts_tensordict_groups():
    tensordict = pytest.importorskip("tensordict")
    managed = Managed("actor")
    observe = managed.observe
    managed.observe = lambda: tensordict.TensorDict(observe(), batch_size=[NUM_ENVS])
    env = ManagerBasedVecEnv(managed)
    assert check_env(env) == []
    assert (env.num_obs, env.num_privileged_obs) == (6, 12)
    with pytest.raises(ValueError, match=r"no observation group 'legs'; set actor_group to one of: actor, critic"):
        ManagerBasedVecEnv(managed, actor_group="legs")


def test_time_outs_are_truncated_and_not_terminated():
    env = ManagerBasedVecEnv(Managed())
    for _ in range(LIMIT):
        _, _, dones, infos = env.step(torch.zeros(NUM_ENVS, 2))
    assert dones.all()
    assert infos["time_outs"].tolist() == [False] + [True] * (NUM_ENVS - 1)
    assert infos["log"]["Episode/falls"] == pytest.approx(1 / NUM_ENVS)
    env = ManagerBasedVecEnv(Managed(finite=True))
    assert "time_outs" not in env.step(torch.zeros(NUM_ENVS, 2))[3]


def test_actions_are_clipped_on_a_copy():
    actions = torch.full((NUM_ENVS, 2), 3.0)
    for clip, expected in ((None, 3.0), (1.5, 1.5)):
        env = ManagerBasedVecEnv(Managed(), clip_actions=clip)
        env.step(actions)
        assert (env.env.received[0] == expected).all()
    assert (actions == 3.0).all()


def test_episode_length_buf_is_that_of_the_environment():
    env = ManagerBasedVecEnv(Managed())
    env.episode_length_buf = torch.full((NUM_ENVS,), 5)
    assert env.env.episode_length_buf.tolist() == [5] * NUM_ENVS


def test_without_critic_group_critic_reads_actor_observation():
    env = ManagerBasedVecEnv(Managed(critic=None))
    assert env.num_privileged_obs is None
    assert "critic" not in env.get_observations()[1]["observations"]
    assert check_env(env) == []


def test_environment_without_managers_has_no_segments():
    managed = Managed()
    del managed.observation_manager, managed.action_manager
    managed.single_action_space = SimpleNamespace(shape=(2,))
    env = ManagerBasedVecEnv(managed)
    assert env.obs_segments is None
    assert env.num_actions == 2


def test_group_of_several_axes_is_one_segment():
    managed = Managed(critic=None)
    managed.terms = {"policy": {"joint_pos": (3, 4), "command": (3, 2)}}
    managed.observation_manager.group_obs_term_dim = {"policy": [(3, 4), (3, 2)]}
    managed.observe = lambda: {"policy": torch.zeros(NUM_ENVS, 3, 6)}
    env = ManagerBasedVecEnv(managed)
    assert env.num_obs == 18
    assert env.obs_segments == {"policy": (3, 6)}


def test_joins_groups_of_actor_and_critic():
    env = ManagerBasedVecEnv(Managed("actor", camera=(2, 5, 4)), None, ["actor", "camera"], ("actor", "critic"))
    assert (env.num_obs, env.num_privileged_obs) == (6 + 40, 6 + 12)
    # Images are one segment named after their group; duplicate term names get their group as prefix.
    assert env.obs_segments == {"joint_pos": 4, "command": 2, "camera": (2, 5, 4)}
    names = ["joint_pos", "command", "critic/joint_pos", "critic/command", "scan"]
    assert list(env.critic_obs_segments) == names
    obs, extras = env.reset()
    groups = extras["observations"]
    assert torch.equal(obs, torch.cat([groups["actor"], groups["camera"].flatten(1)], dim=1))
    assert check_env(env) == []
    with pytest.raises(ValueError, match="no observation group 'lidar'; it has actor, critic, camera"):
        ManagerBasedVecEnv(Managed("actor", camera=(2, 5, 4)), critic_group=["critic", "lidar"])


def test_resets_and_trains_again_after_learning():
    class WritesInPlace(Managed):
        """Creates a tensor in every step and writes into it when it is reset, as mjlab does."""

        def step(self, actions):
            self.last_actions = actions * 1.0
            return super().step(actions)

        def reset(self, seed=None):
            if self.received:
                self.last_actions[:] = 0.0
                self.received[-1][:] = 0.0
            return super().reset(seed)

    env = ManagerBasedVecEnv(WritesInPlace("actor"))
    config = {"num_steps_per_env": 4, "policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}, "algorithm": {}}
    build_runner("OnPolicyRunner", env, config, None, "cpu").learn(1)
    env.reset()
    build_runner("OnPolicyRunner", env, config, None, "cpu").learn(1)
    with torch.inference_mode():
        env.reset()
    env.reset()


def test_actor_group_argument_and_error_for_unknown_group():
    assert ManagerBasedVecEnv(Managed("proprioception"), actor_group="proprioception").num_obs == 6
    with pytest.raises(ValueError, match=r"'policy' or 'actor'; set actor_group to one of: legs, critic"):
        ManagerBasedVecEnv(Managed("legs"))
    managed = Managed()
    managed.reset = lambda: (torch.zeros(NUM_ENVS, 6), {})
    with pytest.raises(TypeError, match="Tensor instead of observation groups"):
        ManagerBasedVecEnv(managed)


def test_learns_to_follow_the_command():
    torch.manual_seed(0)
    env = ManagerBasedVecEnv(Managed("actor", num_envs=64))
    config = {
        "num_steps_per_env": 16,
        "policy": {"actor_hidden_dims": [32], "critic_hidden_dims": [32], "init_noise_std": 0.3},
        "algorithm": {"num_learning_epochs": 8, "num_mini_batches": 2, "learning_rate": 3e-3, "gamma": 0.0},
    }
    runner = build_runner("OnPolicyRunner", env, config, None, "cpu")
    runner.learn(25, init_at_random_ep_len=True)
    obs, _ = env.reset()
    error = runner.get_inference_policy()(obs) - env.unwrapped.command
    assert error.norm(dim=1).mean() < 0.4 * env.unwrapped.command.norm(dim=1).mean()


def test_error_without_mjlab_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "mjlab", None)
    with pytest.raises(ImportError, match=r'pip install "st_rl\[mjlab\]"'):
        make_mjlab("Mjlab-Velocity-Flat-Unitree-Go1")
