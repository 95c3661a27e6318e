from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from st_rl.env import check_env
from st_rl.env.contract_checks import check_tensor
from tests.fakes import ClientEnv, EchoEnv, LegacyEnv, TensorDictEnv

GOOD_ENVS = {
    "echo": lambda: EchoEnv(),
    "one environment": lambda: EchoEnv(num_envs=1, num_obs=2),
    "one step": lambda: EchoEnv(episode_length=1),
    "critic": lambda: EchoEnv(num_privileged_obs=9, memory=True, termination_prob=0.2, stagger=True),
    "zero privileged": lambda: EchoEnv(num_privileged_obs=0, time_outs=False, final_observations=False),
    "uint8 dones": lambda: EchoEnv(dones_dtype=torch.uint8),
    "float dones": lambda: EchoEnv(dones_dtype=torch.float32),
    "client": lambda: ClientEnv(),
    "client without critic": lambda: ClientEnv(num_privileged_obs=None),
    "legacy": lambda: LegacyEnv(),
    "legacy critic": lambda: LegacyEnv(num_privileged_obs=7),
    "tensordict": lambda: TensorDictEnv(num_privileged_obs=7),
}


@pytest.mark.parametrize("name", GOOD_ENVS)
def test_valid_environments_have_no_violation(name):
    assert check_env(GOOD_ENVS[name](), raise_on_error=True) == []


class PlantedEnv(EchoEnv):
    """The echo task with values modified by `plant`."""

    def __init__(self, plant=None, plant_start=None, **kwargs):
        super().__init__(num_envs=4, num_obs=3, num_actions=2, num_privileged_obs=5, **kwargs)
        self.plant, self.plant_start = plant, plant_start

    def get_observations(self):
        obs, extras = super().get_observations()
        parts = SimpleNamespace(obs=obs, groups=extras["observations"])
        if self.plant_start:
            self.plant_start(parts)
        return parts.obs, {"observations": parts.groups}

    def step(self, actions):
        parts = SimpleNamespace(actions=actions)
        parts.obs, parts.rewards, parts.dones, parts.infos = super().step(actions)
        parts.groups = parts.infos["observations"]
        if self.plant:
            self.plant(parts)
        return parts.obs, parts.rewards, parts.dones, parts.infos


def set_part(name, function):
    return lambda parts: setattr(parts, name, function(getattr(parts, name)))


def set_info(name, function):
    return lambda parts: parts.infos.update({name: function(parts.infos.get(name))})


def set_group(name, function):
    return lambda parts: parts.groups.update({name: function(parts.groups.get(name))})


def set_final(function):
    return set_info("final_observations", function)


def add_reference(ref_obs, ref_motion):
    def plant(parts):
        if ref_obs is not None:
            parts.groups["ref_obs"] = ref_obs
        if ref_motion is not None:
            parts.infos["ref_motion"] = ref_motion

    return plant


def with_nan(tensor, row=2):
    tensor = tensor.clone()
    tensor[row] = float("nan")
    return tensor


STEP_BREACHES = [
    (set_part("obs", lambda x: x[:, :2]), "step 0: observation has shape (4, 2), expected (4, 3)"),
    (set_part("obs", lambda x: x[0]), "step 0: observation has shape (3,), expected (4, 3)"),
    (
        set_part("obs", lambda x: x.double()),
        "step 0: observation has dtype torch.float64, expected torch.float32; call .float() on it",
    ),
    (set_part("obs", lambda x: x.numpy()), "step 0: observation is a numpy.ndarray, not a tensor of shape (4, 3)"),
    (set_part("obs", with_nan), "step 0: observation holds 3 NaN and 0 Inf numbers, the first in environment 2"),
    (
        set_part("obs", lambda x: x / 0.0),
        "step 0: observation holds 0 NaN and 12 Inf numbers, the first in environment 0",
    ),
    (set_group("critic", lambda x: x[:, :4]), "step 0: observations['critic'] has shape (4, 4), expected (4, 5)"),
    (
        set_group("critic", with_nan),
        "step 0: observations['critic'] holds 5 NaN and 0 Inf numbers, the first in environment 2",
    ),
    (
        set_group("critic", lambda x: None),
        "step 0: observations['critic'] is missing, though one of 5 numbers was announced or delivered before; "
        "deliver it, or set num_privileged_obs to None",
    ),
    (set_info("observations", lambda x: 3), "step 0: extras['observations'] must be a dict of groups, not a int"),
    (
        set_group("rnd_state", lambda x: torch.zeros(4)),
        "step 0: observations['rnd_state'] has shape (4,), expected (4, *)",
    ),
    (set_part("rewards", lambda x: x[:, None]), "step 0: rewards has shape (4, 1), expected (4,)"),
    (set_part("rewards", lambda x: x.tolist()), None),
    (set_part("rewards", with_nan), "step 0: rewards holds 1 NaN and 0 Inf numbers, the first in environment 2"),
    (
        set_part("rewards", lambda x: x.long()),
        "step 0: rewards has dtype torch.int64, expected torch.float32; call .float() on it",
    ),
    (set_part("dones", lambda x: x[:, None]), "step 0: dones has shape (4, 1), expected (4,)"),
    (
        set_part("dones", lambda x: 2 * x.long() + 2),
        "step 0: dones holds 2; only 0 and 1 (or False and True) may occur",
    ),
    (set_part("dones", lambda x: None), "step 0: dones is None, not a tensor of shape (4,)"),
    (set_info("time_outs", lambda x: x[:3]), "step 0: time_outs has shape (3,), expected (4,)"),
    (
        set_info("time_outs", lambda x: x * 0.5 + 0.5),
        "step 0: time_outs holds 0.5; only 0 and 1 (or False and True) may occur",
    ),
    (
        set_info("time_outs", lambda x: torch.tensor([0, 0, 0, 1])),
        "step 0: time_outs is set where dones is not, first in environment 3; a time-out ends the episode",
    ),
    (
        add_reference(torch.zeros(4, 2, 21), torch.zeros(4, 40)),
        "step 0: ref_motion has 40 numbers for each environment, but observations['ref_obs'] has 42; "
        "both show one motion",
    ),
    (
        add_reference(torch.zeros(4, 2, 21), None),
        "step 0: ref_motion is missing, though observations['ref_obs'] is delivered; both are compared",
    ),
    (add_reference(None, torch.zeros(4)), "step 0: ref_motion has shape (4,), expected (4, *)"),
    (
        add_reference(torch.zeros(3, 2, 21), torch.zeros(4, 42)),
        "step 0: observations['ref_obs'] has shape (3, 2, 21), expected (4, *, *)",
    ),
    (
        set_final(lambda x: x["policy"]),
        "step 0: final_observations is a Tensor, not a dict of groups like observations",
    ),
    (
        set_final(lambda x: {"policy": x["policy"]}),
        "step 0: final_observations has the groups ['policy'], but not `critic`, which the critic reads",
    ),
    (
        set_final(lambda x: {**x, "critic": x["critic"][:, 1:]}),
        "step 0: final_observations['critic'] has shape (4, 4), expected (4, 5)",
    ),
    (
        # Rows that are not done may hold any values; environments 0 and 2 end at the second step.
        set_final(lambda x: {**x, "critic": with_nan(x["critic"])}),
        "step 1: final_observations['critic'] holds 5 NaN and 0 Inf numbers, the first in environment 2",
    ),
    (set_info("log", lambda x: [1.0]), "step 0: log is [1.0] (list), not a dict of name to number"),
    (
        set_info("log", lambda x: {"a": torch.zeros(2, 2)}),
        "step 0: log['a'] has shape (2, 2); give a 0-d or 1-d tensor",
    ),
    (
        set_info("episode", lambda x: {"a": "b"}),
        "step 0: episode['a'] is 'b' (str); give a number, a 0-d or a 1-d tensor",
    ),
    (set_info("log", lambda x: {3: 1.0}), "step 0: log has the key 3, which is not a string"),
    (
        set_part("actions", lambda x: x.zero_()),
        "step 0: step() changed the actions it was given; work on a copy of them",
    ),
]


@pytest.mark.parametrize(("plant", "message"), STEP_BREACHES)
def test_each_violation_in_step_gives_its_message(plant, message):
    violations = check_env(PlantedEnv(plant))
    assert len(violations) == 1
    if message is not None:
        assert violations == [message]


START_BREACHES = [
    (
        set_part("obs", lambda x: x.half()),
        "reset(): observation has dtype torch.float16, expected torch.float32; call .float() on it",
    ),
    (set_group("critic", lambda x: x[:3]), "reset(): observations['critic'] has shape (3, 5), expected (4, 5)"),
    (
        set_part("groups", lambda x: [1]),
        "reset(): extras['observations'] must be a dict of groups, not a list of 1 (int)",
    ),
]


@pytest.mark.parametrize(("plant", "message"), START_BREACHES)
def test_each_violation_in_reset_gives_its_message(plant, message):
    assert check_env(PlantedEnv(plant_start=plant)) == [message]


class AttributeWrapper:
    """Wraps an environment with some attributes replaced (`MISSING`: removed)."""

    MISSING = object()

    def __init__(self, **exchanged):
        self.inner = PlantedEnv()
        self.exchanged = exchanged

    def __getattr__(self, name):
        value = self.exchanged[name] if name in self.exchanged else getattr(self.inner, name)
        if value is AttributeWrapper.MISSING:
            raise AttributeError(name)
        return value


ATTRIBUTE_BREACHES = [
    ({"num_envs": None}, "num_envs is None; set the number of environments stepped together"),
    ({"num_envs": 0}, "num_envs is 0, less than 1; set the number of environments stepped together"),
    ({"num_actions": 2.0}, "num_actions is 2.0 (float); set the width of an action"),
    ({"num_obs": np.int64(3)}, "num_obs is np.int64(3) (numpy.int64); set the width of an observation"),
    ({"num_obs": 4}, "reset(): observation has shape (4, 3), expected (4, 4)"),
    ({"num_privileged_obs": 6}, "reset(): observations['critic'] has shape (4, 5), expected (4, 6)"),
    (
        {"num_privileged_obs": 0},
        "reset(): observations['critic'] has 5 numbers, but num_privileged_obs is 0; set it to that",
    ),
    (
        {"num_privileged_obs": -1},
        "num_privileged_obs is -1, less than 1; set the width of the critic observation, None or 0 without one",
    ),
    ({"device": None}, "device is None; set the torch device that holds the environment's tensors"),
    ({"device": "moon"}, "device is 'moon'; set the torch device that holds the environment's tensors"),
    ({"step": None}, "the method step() is missing; derive the class from st_rl.env.VecEnv"),
    ({"max_episode_length": None}, "max_episode_length is None; set the number of steps of the longest episode"),
    ({"max_episode_length": -5}, "max_episode_length is -5; set the number of steps of the longest episode"),
    ({"obs_segments": ["a"]}, "obs_segments is ['a'] (list), not a mapping of component name to shape"),
    (
        {"obs_segments": OrderedDict(a=2, b=(2, 1))},
        "the widths of obs_segments add up to 4, but the observation has 3 numbers",
    ),
    (
        {"num_obs": AttributeWrapper.MISSING, "obs_segments": {"a": 7}},
        "the widths of obs_segments add up to 7, but the observation has 3 numbers",
    ),
    (
        {"obs_segments": OrderedDict(a=np.int64(3))},
        "obs_segments['a'] is np.int64(3); a shape is a Python int or a tuple of them",
    ),
    ({"obs_segments": {1: 3}}, "obs_segments has the component name 1, which is not a string"),
    (
        {"critic_obs_segments": {"a": 4}},
        "the widths of critic_obs_segments add up to 4, but the observation has 5 numbers",
    ),
    (
        {"critic_obs_segments": {"a": 5}, "privileged_obs_segments": {"b": 5}},
        "critic_obs_segments and privileged_obs_segments differ; they are two names of one mapping",
    ),
    ({"state_dict": AttributeWrapper.MISSING}, "state_dict() is missing; an exact resume needs both methods"),
    (
        {"load_state_dict": AttributeWrapper.MISSING},
        "load_state_dict(state) is missing; an exact resume needs both methods",
    ),
    (
        {"episode_length_buf": torch.zeros(4, 1)},
        "episode_length_buf has shape (4, 1); it holds the steps of each current episode, (4,)",
    ),
    (
        {"episode_length_buf": AttributeWrapper.MISSING},
        "episode_length_buf is None; it holds the steps of each current episode, (4,)",
    ),
]


@pytest.mark.parametrize(("exchanged", "message"), ATTRIBUTE_BREACHES)
def test_each_violation_of_an_attribute_gives_its_message(exchanged, message):
    assert check_env(AttributeWrapper(**exchanged)) == [message]


@pytest.mark.parametrize("name", ["num_obs", "num_privileged_obs", "obs_segments", "get_privileged_observations"])
def test_optional_attributes_may_be_missing(name):
    assert check_env(AttributeWrapper(**{name: AttributeWrapper.MISSING})) == []


def test_reports_reused_observation_buffer():
    class Env(EchoEnv):
        buffer = torch.zeros(8, 4)

        def get_observations(self):
            return self.buffer.copy_(self.obs), {}

        def step(self, actions):
            obs, rewards, dones, infos = super().step(actions)
            return self.buffer.copy_(obs), rewards, dones, infos

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.buffer.copy_(self.obs)

    message = "step 0: step() overwrote the observation tensor it returned before; return a new tensor every time"
    assert check_env(Env()) == [message]


def test_reports_read_only_episode_lengths():
    class ReadOnly(AttributeWrapper):
        @property
        def episode_length_buf(self):
            return self.inner.episode_length_buf

    class Forgetful(ReadOnly):
        @property
        def episode_length_buf(self):
            return self.inner.episode_length_buf

        @episode_length_buf.setter
        def episode_length_buf(self, value):
            self.forgotten = value

    (violation,) = check_env(ReadOnly())
    assert violation.startswith("episode_length_buf cannot be set (")
    assert violation.endswith("); give the property a setter")
    assert check_env(Forgetful()) == ["episode_length_buf does not keep the value it is set to"]


def test_reports_tensor_on_another_device():
    def texts(device):
        return [text for _, text in check_tensor("rewards", torch.zeros(4, device="meta"), (4,), torch.device(device))]

    assert texts("cpu") == ["rewards is on meta, but env.device is cpu"]
    assert texts("cuda") == ["rewards is on meta, but env.device is cuda"]
    assert list(check_tensor("rewards", torch.zeros(4), (4,), torch.device("cpu", 0))) == []


def test_reports_state_without_generator():
    class Env(EchoEnv):
        def load_state_dict(self, state):
            super().load_state_dict({**state, "generator": self.generator.get_state()})

    message = (
        "the same actions give another result 1 steps after load_state_dict(); state_dict() must hold all that a step "
        "depends on"
    )
    assert check_env(Env()) == [message]


def test_reports_state_without_observation():
    class Env(EchoEnv):
        def load_state_dict(self, state):
            super().load_state_dict({**state, "obs": self.obs})

    message = "after load_state_dict() get_observations() is not the observation of the time of state_dict()"
    assert check_env(Env()) == [message]


def test_reports_state_that_cannot_be_saved():
    class Env(EchoEnv):
        def state_dict(self):
            return {**super().state_dict(), "space": SimpleNamespace(a=1)}

    (violation,) = check_env(Env())
    assert violation.startswith("state_dict() holds more than tensors, numbers, strings and plain containers")


@pytest.mark.parametrize("name", ["reset", "get_observations", "step", "state_dict", "load_state_dict"])
def test_exception_of_the_environment_is_a_violation(name):
    def fail(*args):
        raise RuntimeError("simulator lost")

    assert check_env(AttributeWrapper(**{name: fail})) == [f"{name}() raised RuntimeError: simulator lost"]


def test_reports_gymnasium_step():
    class Env(EchoEnv):
        def step(self, actions):
            obs, rewards, dones, infos = super().step(actions)
            return obs, rewards, dones, dones, infos

    (violation,) = check_env(Env())
    assert violation.startswith("step 0: step() returned five values")


def test_several_violations_are_one_list_and_one_error():
    def plant(parts):
        parts.rewards = parts.rewards[:, None]
        parts.obs = parts.obs[:, 1:]
        parts.infos["time_outs"] = torch.ones(4)

    env = PlantedEnv(plant)
    violations = check_env(env)
    assert [violation.split()[2] for violation in violations] == ["observation", "rewards", "time_outs"]
    with pytest.raises(
        ValueError, match=r"PlantedEnv breaks the contract.*\n- step 0: observation.*\n- step 0: rewards"
    ):
        check_env(env, raise_on_error=True)


def test_global_generator_is_unchanged():
    state = torch.get_rng_state()
    check_env(EchoEnv())
    assert torch.equal(state, torch.get_rng_state())
