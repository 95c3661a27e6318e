from collections import OrderedDict

import pytest
import torch

from st_rl.env.utils import observe, split_final_observations, split_observations, split_step
from tests.fakes import ClientEnv, EchoEnv, LegacyEnv, TensorDictEnv

OBS = torch.arange(6.0).reshape(2, 3)
CRITIC = torch.arange(8.0).reshape(2, 4)
REWARDS = torch.tensor([1.0, 2.0])
DONES = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("ret", "critic"),
    [
        (OBS, None),
        ((OBS, {}), None),
        ((OBS, None), None),
        ((OBS, {"observations": {}}), None),
        ((OBS, {"observations": None}), None),
        ([OBS, {"observations": {"critic": CRITIC, "camera": torch.zeros(2)}}], CRITIC),
        ((OBS, CRITIC), CRITIC),
        ({"policy": OBS}, None),
        (OrderedDict(policy=OBS, critic=CRITIC), CRITIC),
        (({"policy": OBS, "critic": CRITIC}, {}), CRITIC),
        (({"policy": OBS}, {"observations": {"critic": CRITIC}}), CRITIC),
    ],
)
def test_split_observations_reads_every_form(ret, critic):
    obs, critic_obs, extras = split_observations(ret)
    assert obs is OBS
    assert critic_obs is critic
    assert isinstance(extras, dict)


@pytest.mark.parametrize(
    ("ret", "critic"),
    [
        ((OBS, REWARDS, DONES, {}), None),
        ((OBS, REWARDS, DONES, {"observations": {"critic": CRITIC}}), CRITIC),
        (({"policy": OBS, "critic": CRITIC}, REWARDS, DONES, {}), CRITIC),
        ((OBS, None, REWARDS, DONES, {}), None),
        ((OBS, CRITIC, REWARDS, DONES, {}), CRITIC),
        ((OBS, None, REWARDS, DONES, {"observations": {"critic": CRITIC}}), CRITIC),
    ],
)
def test_split_step_accepts_four_and_five_values(ret, critic):
    obs, critic_obs, rewards, dones, infos = split_step(ret)
    assert obs is OBS
    assert critic_obs is critic
    assert rewards is REWARDS
    assert dones is DONES
    assert isinstance(infos, dict)


def test_mapping_groups_become_observations_in_a_new_dict():
    reference = torch.zeros(2, 2, 21)
    log = {"a": 1.0}
    extras = {"log": log, "observations": {"rnd_state": CRITIC}}
    _, critic_obs, _, _, infos = split_step(({"policy": OBS, "ref_obs": reference}, REWARDS, DONES, extras))
    assert critic_obs is None
    assert infos["observations"]["ref_obs"] is reference
    assert infos["observations"]["rnd_state"] is CRITIC
    assert infos["log"] is log
    assert extras == {"log": log, "observations": {"rnd_state": CRITIC}}


def test_extras_dict_is_not_copied():
    extras = {"observations": {"critic": CRITIC}}
    assert split_observations((OBS, extras)).extras is extras
    assert split_step((OBS, REWARDS, DONES, extras)).infos is extras


def test_tensordict_observations():
    env = TensorDictEnv(num_envs=3, num_obs=5, num_privileged_obs=7)
    obs, critic_obs, extras = split_observations(env.get_observations())
    assert torch.equal(obs, env.obs)
    assert critic_obs.shape == (3, 7)
    assert extras["observations"]["debug"].shape == (3, 2)
    assert split_observations(env.reset()).obs.shape == (3, 5)
    obs, critic_obs, rewards, dones, infos = split_step(env.step(torch.zeros(3, 2)))
    assert torch.equal(obs, env.obs)
    assert critic_obs.shape == (3, 7)
    assert rewards.shape == dones.shape == (3,)
    assert infos["time_outs"].shape == (3,)
    without_critic = TensorDictEnv(num_envs=3)
    assert split_observations(without_critic.get_observations()).critic_obs is None


def test_all_forms_of_the_fakes_agree():
    envs = [kind(num_envs=4, num_privileged_obs=9, seed=3) for kind in (EchoEnv, LegacyEnv, TensorDictEnv)]
    actions = torch.linspace(-1, 1, 8).reshape(4, 2)
    for _ in range(12):
        first, *others = [split_step(env.step(actions)) for env in envs]
        for other in others:
            for left, right in zip(first[:4], other[:4]):
                assert torch.equal(left, right)
    assert torch.equal(envs[1].get_privileged_observations(), first.critic_obs)
    assert split_observations(envs[1].reset()).critic_obs.shape == (4, 9)


def test_final_observations_prefer_the_critic_group():
    assert split_final_observations({}) is None
    assert split_final_observations({"final_observations": None}) is None
    assert split_final_observations({"final_observations": {}}) is None
    assert split_final_observations({"final_observations": {"policy": OBS}}) is OBS
    assert split_final_observations({"final_observations": {"policy": OBS, "critic": CRITIC}}) is CRITIC
    assert split_final_observations({"final_observations": {"policy": OBS, "critic": None}}) is OBS


@pytest.mark.parametrize("ret", [None, (OBS,), (OBS, {}, {}), 3.0])
def test_rejects_unreadable_observations_with_hint(ret):
    with pytest.raises(TypeError, match=r"\(obs, extras\)"):
        split_observations(ret)


@pytest.mark.parametrize("ret", [OBS, (OBS, REWARDS, DONES), (OBS,) * 6])
def test_rejects_unreadable_step_with_hint(ret):
    with pytest.raises(TypeError, match=r"\(obs, rewards, dones, infos\)"):
        split_step(ret)


def test_rejects_infos_that_are_not_a_dict():
    with pytest.raises(TypeError, match="must be a dict, not a float"):
        split_step((OBS, REWARDS, DONES, 1.0))


def test_rejects_groups_that_are_not_a_dict():
    with pytest.raises(TypeError, match=r"extras\['observations'\] must be a dict of groups, not a Tensor"):
        split_observations((OBS, {"observations": CRITIC}))


def test_rejects_groups_without_policy():
    with pytest.raises(ValueError, match=r"\['critic', 'state'\] without policy or actor"):
        split_observations({"state": OBS, "critic": CRITIC})


def test_rejects_tensordict_without_policy_group():
    tensordict = pytest.importorskip("tensordict")
    groups = tensordict.TensorDict({"state": torch.zeros(3, 2), "critic": torch.zeros(3, 4)}, batch_size=[3])
    with pytest.raises(ValueError, match=r"groups \['critic', 'state'\] without policy or actor"):
        split_observations(groups)


@pytest.mark.parametrize("convert", [lambda tensor: tensor, lambda tensor: tensor.numpy()], ids=["torch", "numpy"])
def test_rejects_gymnasium_step_with_hint(convert):
    with pytest.raises(ValueError, match="GymnasiumVecEnv"):
        split_step((*map(convert, (OBS, REWARDS, DONES, DONES)), {}))


def test_client_extras_are_one_object():
    env = ClientEnv()
    _, extras = env.get_observations()
    assert extras["log"]
    obs, critic_obs, _, dones, infos = split_step(env.step(torch.zeros(8, 3)))
    assert infos is extras is env.extras
    assert dones.dtype == torch.int64
    assert obs is env.obs_buf[-1]
    assert critic_obs.shape == (8, env.num_privileged_obs)
    assert infos["observations"]["ref_obs"].shape == (8, 2, 21)
    assert infos["ref_motion"].shape == (8, 42)
    with pytest.raises(AttributeError):
        env.num_obs = 3


class GroupsAndOldMethodEnv(EchoEnv):
    """An environment with groups that also has the older method."""

    def get_privileged_observations(self):
        raise NotImplementedError("use the groups")


def test_get_privileged_observations_is_not_called_with_groups():
    obs, critic_obs, _ = observe(GroupsAndOldMethodEnv())
    assert (obs.shape, critic_obs) == ((8, 4), None)
    obs, critic_obs, _ = observe(LegacyEnv(num_privileged_obs=6))
    assert critic_obs.shape == (8, 6)
