"""One outlier in the observations does not prevent learning with normalization."""

from statistics import fmean

import pytest
import torch

from st_rl.modules import normalizer
from st_rl.runners import build_runner
from tests.fakes import ClientEnv, EchoEnv
from tests.runners.amp_trainings import archived_config
from tests.runners.training import RND, NoveltyEnv, make_runner, small_config

STEP = 63
"""The environment step of the outlier: step 2 of iteration 10."""


class PlantedEnv(EchoEnv):
    """The echo task with one outlier in one observation."""

    value: float | None = None

    def step(self, actions):
        obs, rewards, dones, infos = super().step(actions)
        if self.num_steps_done == STEP and self.value is not None:
            obs = obs.clone()
            obs[3, 1] = self.value
            infos["observations"] = {**infos["observations"], "policy": obs}
        return obs, rewards, dones, infos


def train(value):
    torch.manual_seed(0)
    env = PlantedEnv(num_envs=32, seed=0)
    env.value = value
    config = small_config(algorithm={"schedule": "adaptive", "learning_rate": 3e-3}, empirical_normalization=True)
    runner = make_runner(env, config)
    runner.learn(45)
    return runner, fmean(runner._episodes.buffers()["rframebuffer"])


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_training_with_outlier_learns_equally_well(caplog, monkeypatch):
    clean, clean_reward = train(None)
    assert warnings(caplog) == []
    planted, planted_reward = train(1e6)
    assert warnings(caplog) == [
        "iteration 10: outliers in obs: 1 in column 1; values beyond 50 standard deviations are clipped in the "
        "statistics of the normalizer. Check that the simulation is stable"
    ]
    assert planted.alg.obs_normalizer.std[1] < 1.2 * clean.alg.obs_normalizer.std[1]
    monkeypatch.setattr(normalizer, "OUTLIER_WARM_UP", 10**9)
    spoiled, spoiled_reward = train(1e6)
    assert spoiled.alg.obs_normalizer.std[1] > 1000
    assert spoiled_reward + 0.05 < planted_reward
    assert planted_reward == pytest.approx(clean_reward, abs=0.02)


def test_outliers_in_rnd_states_are_reported(caplog):
    class Env(NoveltyEnv):
        def step(self, actions):
            obs, rewards, dones, infos = super().step(actions)
            if self.num_steps_done == STEP:
                state = infos["observations"]["rnd_state"].clone()
                state[1, 2] = 1e6
                infos["observations"]["rnd_state"] = state
            return obs, rewards, dones, infos

    runner = make_runner(Env(), small_config(algorithm={"rnd_cfg": RND}))
    runner.learn(12)
    found = warnings(caplog)
    assert found[0].startswith("iteration 10: outliers in rnd.state_normalizer: 1 in column 2;")
    assert found[1].startswith("iteration 10: outliers in rnd.reward_normalizer.statistics: 1 in column 0;")
    assert runner.alg.rnd.state_normalizer.std[2] < 10


def test_outliers_in_motion_features_are_reported(caplog):
    class Env(ClientEnv):
        def step(self, actions):
            outcome = super().step(actions)
            if self.env.num_steps_done == STEP:
                self.extras["ref_motion"] = self.extras["ref_motion"].clone()
                self.extras["ref_motion"].view(self.num_envs, -1)[2, 7] = 1e6
            return outcome

    runner = build_runner("AmpPolicyRunner", Env(), archived_config(), log_dir=None)
    runner.learn(STEP // runner.num_steps_per_env + 2)
    found = [message for message in warnings(caplog) if "outliers" in message]
    assert len(found) == 1
    assert "outliers in ref_obs: 1 in column 7;" in found[0]
    assert runner.alg.ref_obs_normalizer.std[7] < 10
