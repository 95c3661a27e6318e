import copy
import subprocess
import sys

import pytest
import torch

from st_rl.env import VecEnv


def test_exactly_three_methods_are_abstract():
    assert VecEnv.__abstractmethods__ == {"get_observations", "reset", "step"}
    with pytest.raises(TypeError):
        VecEnv()  # pyright: ignore[reportAbstractUsage]


def test_abstract_interface_raises_with_hint():
    class Half(VecEnv):
        def reset(self):
            return None

    with pytest.raises(TypeError, match=r"VecEnv is an interface.*get_observations, reset, step, or use make_gymn"):
        VecEnv({"num_envs": 4})  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(TypeError, match=r"Half is an interface.*defines get_observations, step, or"):
        Half()  # pyright: ignore[reportAbstractUsage]


def test_subclass_with_constructor_arguments():
    class Env(VecEnv):
        def get_observations(self): ...
        def reset(self): ...
        def step(self, actions): ...

    class Sized(Env):
        def __init__(self, size):
            self.size = size

    assert Sized(3).size == Sized(size=3).size == copy.copy(Sized(3)).size == 3
    with pytest.raises(TypeError):
        Env(3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError):
        Sized()  # pyright: ignore[reportCallIssue]


def test_annotates_the_attributes_without_defining_them():
    names = ["num_envs", "num_obs", "num_privileged_obs", "num_actions", "max_episode_length", "privileged_obs_buf"]
    names += ["obs_buf", "rew_buf", "reset_buf", "episode_length_buf", "extras", "device"]
    assert list(VecEnv.__annotations__) == names
    for name in [*names, "__init__", "__slots__"]:
        assert name not in VecEnv.__dict__
    assert not any(isinstance(value, property) for value in vars(VecEnv).values())


def test_wrapper_may_use_properties_and_copied_dictionaries():
    class Wrapper(VecEnv):
        def __init__(self):
            self.device = "cpu"
            self.length = torch.zeros(2)

        @property
        def num_envs(self):
            return 2

        @property
        def episode_length_buf(self):
            return self.length

        @episode_length_buf.setter
        def episode_length_buf(self, value):
            self.length = value

        def get_observations(self):
            return torch.zeros(2, 3), {}

        def reset(self):
            return self.get_observations()

        def step(self, actions):
            return torch.zeros(2, 3), torch.zeros(2), torch.zeros(2), {}

    class MetricWrapper(Wrapper):
        def __init__(self, inner):
            self.__dict__.update(inner.__dict__)

    env = MetricWrapper(Wrapper())
    env.episode_length_buf = torch.ones(2)
    assert env.num_envs == 2
    assert env.length.tolist() == [1.0, 1.0]
    assert env.get_privileged_observations() is None


def test_import_needs_torch_and_numpy_only():
    code = (
        "import sys, st_rl.env, st_rl.env.utils; "
        "bad = {'gymnasium', 'tensordict', 'mujoco', 'tensorboard', 'rich'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
