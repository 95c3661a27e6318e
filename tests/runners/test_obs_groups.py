"""`obs_groups` of rsl_rl: groups are joined for actor and critic; environments of rsl_rl 5 need no `reset()`."""

import pytest
import torch

from st_rl.modules import load_policy
from st_rl.utils.tensors.obs_groups import ObsGroups, read_obs_groups
from tests.fakes import EchoEnv
from tests.runners.training import make_runner, small_config


class GroupedEnv:
    """The echo task with the interface of rsl_rl 5: groups by name, no `reset()`, no sizes of observations."""

    def __init__(self, names=("actor", "critic")):
        self.inner = EchoEnv(num_obs=4, num_actions=2, num_privileged_obs=7)
        self.num_envs, self.num_actions = self.inner.num_envs, self.inner.num_actions
        self.max_episode_length, self.device, self.cfg = self.inner.max_episode_length, "cpu", {}
        self.names = names

    @property
    def episode_length_buf(self):
        return self.inner.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value):
        self.inner.episode_length_buf = value

    def groups(self, groups):
        renamed = {self.names[0]: groups["policy"], self.names[1]: groups["critic"]}
        return {**renamed, "camera": groups["policy"][:, :2].reshape(-1, 1, 1, 2) * torch.ones(1, 1, 3, 1)}

    def get_observations(self):
        return self.groups(self.inner.get_observations()[1]["observations"])

    def step(self, actions):
        _, rewards, dones, infos = self.inner.step(actions)
        final = self.groups(infos["final_observations"])
        groups = self.groups(infos["observations"])
        return groups, rewards, dones, {"time_outs": infos["time_outs"], "final_observations": final}


def test_reads_the_sets_of_rsl_rl():
    assert read_obs_groups(None) is None
    assert read_obs_groups({}) is None
    assert read_obs_groups({"policy": ["policy"], "critic": ["critic"]}) is None
    assert read_obs_groups({"policy": "policy"}) is None
    assert read_obs_groups({"actor": ["actor", "camera"]}) == ObsGroups(("actor", "camera"), ("critic",))
    joined = read_obs_groups({"policy": ["policy"], "critic": ["policy", "critic"], "rnd_state": ["policy"]})
    assert joined == ObsGroups(("policy",), ("policy", "critic"), ("policy",))


@pytest.mark.parametrize(
    ("obs_groups", "message"),
    [
        ({"teacher": ["a"]}, r"obs_groups names the sets \['teacher'\]; known: actor"),
        ({"actor": [3]}, r"obs_groups\['actor'\] is \[3\]; give a list of group names"),
        (["policy"], r"obs_groups is \['policy'\]; give"),
        ({"actor": ["actor", "lidar"]}, "no observation group 'lidar'; it has"),
    ],
)
def test_rejects_wrong_groups(obs_groups, message):
    with pytest.raises(ValueError, match=message):
        make_runner(GroupedEnv(), small_config(obs_groups=obs_groups))


@pytest.mark.parametrize("names", [("policy", "critic"), ("actor", "critic")])
def test_environment_of_rsl_rl_5_trains_without_reset(names):
    env = GroupedEnv(names)
    runner = make_runner(env, small_config(empirical_normalization=True))
    assert (runner.num_obs, runner.num_critic_obs) == (4, 7)
    runner.learn(2, init_at_random_ep_len=True)
    make_runner(env, small_config()).learn(1)
    groups = env.get_observations()
    policy = runner.get_inference_policy()
    assert torch.equal(policy(groups), policy(groups[names[0]]))


def test_joins_groups_of_actor_and_critic(tmp_path):
    env = GroupedEnv()
    groups = {"actor": ["actor", "camera"], "critic": ["actor", "critic"]}
    runner = make_runner(env, small_config(obs_groups=groups, strict=True), log_dir=tmp_path)
    assert (runner.num_obs, runner.num_critic_obs) == (10, 11)
    # A group without known terms is one segment, in the shape of its tensor.
    assert runner.alg.actor_critic.obs_segments == {"actor": 4, "camera": (1, 3, 2)}
    assert runner.alg.actor_critic.critic_obs_segments == {"actor": 4, "critic": 7}
    seen = []
    act = runner.alg.act
    runner.alg.act = lambda obs, critic_obs: seen.append((obs, critic_obs)) or act(obs, critic_obs)
    delivered = env.get_observations()
    runner.learn(1)
    assert torch.equal(seen[0][0], torch.cat([delivered["actor"], delivered["camera"].flatten(1)], dim=1))
    assert torch.equal(seen[0][1], torch.cat([delivered["actor"], delivered["critic"]], dim=1))
    delivered = env.get_observations()
    loaded = load_policy(tmp_path)
    assert torch.equal(loaded(delivered), runner.get_inference_policy()(delivered))


def test_terms_keep_their_names_in_joined_groups():
    env = EchoEnv(num_privileged_obs=6)
    env.critic_obs_segments = {"target": 2, "height": (4,)}
    groups = {"policy": ["policy"], "critic": ["policy", "critic"]}
    runner = make_runner(env, small_config(obs_groups=groups))
    segments = {"target": 2, "noise": (2,), "critic/target": 2, "height": (4,)}
    assert runner.alg.actor_critic.critic_obs_segments == segments
    runner.learn(1)


def test_critic_reads_the_group_of_the_actor_if_configured():
    env = EchoEnv(num_privileged_obs=6)
    runner = make_runner(env, small_config(obs_groups={"policy": ["policy"], "critic": ["policy"]}))
    assert (runner.num_critic_obs, runner.alg.storage.critic_observations) == (4, None)
    runner.learn(1)


def test_final_observations_are_joined():
    env = GroupedEnv()
    groups = {"actor": ["actor"], "critic": ["critic", "camera"]}
    runner = make_runner(env, small_config(obs_groups=groups))
    widths = []
    process = runner.alg.process_env_step

    def record(rewards, dones, infos, *args):
        widths.append(infos["final_observations"]["critic"].shape[1])
        return process(rewards, dones, infos, *args)

    runner.alg.process_env_step = record
    runner.learn(2)
    assert set(widths) == {13}


def test_state_of_random_network_distillation_is_joined():
    rnd = {"num_outputs": 4, "predictor_hidden_dims": [8], "target_hidden_dims": [8]}
    groups = {"actor": ["actor"], "critic": ["critic"], "rnd_state": ["actor", "camera"]}
    runner = make_runner(GroupedEnv(), small_config(algorithm={"rnd_cfg": rnd}, obs_groups=groups))
    assert runner.alg.rnd.num_states == 10
    runner.learn(1)
