"""Sizes are those of the delivered observations, not of an environment's attributes."""

import pytest
import torch

from st_rl.env import VecEnv
from tests.fakes import EchoEnv
from tests.runners.training import make_runner


class WrongSizeEnv(VecEnv):
    """The echo task with a wrong size attribute."""

    def __init__(self, **lies):
        self.env = EchoEnv(num_privileged_obs=6)
        for name in ("num_envs", "num_obs", "num_privileged_obs", "num_actions"):
            setattr(self, name, lies.get(name, getattr(self.env, name)))

    def get_observations(self):
        return self.env.get_observations()

    def reset(self):
        return self.env.reset()

    def step(self, actions):
        return self.env.step(actions)


def test_critic_width_is_that_of_delivered_observations():
    runner = make_runner(WrongSizeEnv(num_privileged_obs=99))
    assert runner.num_critic_obs == 6
    runner.learn(1)


def test_width_is_measured_if_env_has_no_num_obs():
    assert make_runner(WrongSizeEnv(num_obs=None)).num_obs == 4


@pytest.mark.parametrize("lies", [{"num_obs": 5}, {"num_envs": 7}])
def test_rejects_observations_of_other_shape(lies):
    with pytest.raises(ValueError, match=r"delivers observations of shape \(8, 4\); make them agree"):
        make_runner(WrongSizeEnv(**lies))


class MissingCriticObsEnv(EchoEnv):
    """Declares critic observations but delivers them in some methods only."""

    def __init__(self, at_start: bool, in_steps: bool, **kwargs):
        self.at_start, self.in_steps = at_start, in_steps
        super().__init__(**kwargs)

    def get_observations(self):
        obs, extras = super().get_observations()
        return obs, extras if self.at_start else {}

    def step(self, actions):
        obs, rewards, dones, infos = super().step(actions)
        if not self.in_steps:
            del infos["observations"]
        return obs, rewards, dones, infos


@pytest.mark.parametrize(("at_start", "in_steps"), [(False, False), (True, False), (False, True)])
def test_missing_critic_observations_allow_playing_but_not_training(at_start, in_steps):
    runner = make_runner(MissingCriticObsEnv(at_start, in_steps, num_privileged_obs=6))
    assert runner.num_critic_obs == 6
    assert runner.get_inference_policy()(torch.zeros(8, 4)).shape == (8, 2)
    with pytest.raises(ValueError, match=r"no critic observations, expected are 6 values; deliver extras"):
        runner.learn(1)


def test_rejects_critic_observations_that_only_step_delivers():
    class Surprising(MissingCriticObsEnv):
        @property
        def num_privileged_obs(self):
            return None if not self.in_steps else self._width

        @num_privileged_obs.setter
        def num_privileged_obs(self, value):
            self._width = value

    env = Surprising(at_start=False, in_steps=False, num_privileged_obs=6)
    runner = make_runner(env)
    env.in_steps = True
    with pytest.raises(ValueError, match=r"step\(\) delivers infos\['observations'\]\['critic'\] but get_observations"):
        runner.learn(1)


def test_rewards_and_dones_may_have_a_trailing_axis():
    class Columns(EchoEnv):
        def step(self, actions):
            obs, rewards, dones, infos = super().step(actions)
            return obs, rewards[:, None], dones[:, None], infos

    runners = []
    for env in (EchoEnv(episode_length=4), Columns(episode_length=4)):
        torch.manual_seed(0)
        runners.append(make_runner(env))
        runners[-1].learn(2)
    assert torch.equal(runners[0].alg.storage.returns, runners[1].alg.storage.returns)


class InNumpy(EchoEnv):
    """Returns one part of a step as a NumPy array."""

    def __init__(self, part: str):
        self.part = part
        super().__init__()

    def get_observations(self):
        obs, extras = super().get_observations()
        return obs.numpy() if self.part == "observations" else obs, extras

    def step(self, actions):
        parts = dict(zip(("later observations", "rewards", "dones", "infos"), super().step(actions)))
        if self.part in parts:
            parts[self.part] = parts[self.part].numpy()
        if self.part == "time_outs":
            parts["infos"]["time_outs"] = parts["dones"].numpy()
        return tuple(parts.values())


@pytest.mark.parametrize("part", ["observations", "later observations", "rewards", "dones", "time_outs"])
def test_rejects_numpy_arrays_with_hint(part):
    message = rf"delivers {part.removeprefix('later ')} as numpy.ndarray, not as a torch.Tensor; .*check_env\(env\)"
    with pytest.raises(TypeError, match=message):
        make_runner(InNumpy(part)).learn(1)
