"""Resumed trainings are bit-exact."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from st_rl.utils.files import load_checkpoint
from tests.fakes import EchoEnv
from tests.runners.resumed_trainings import POLICIES, make_training
from tests.runners.training import (
    RND,
    NoveltyEnv,
    StatelessEnv,
    differences,
    make_runner,
    progress,
    recurrent,
    small_config,
    weights,
)

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    """Folder `whole` with 6 iterations, `parts` with 3 and, from a new process, 3 more, for every kind of policy."""
    folder = tmp_path_factory.mktemp("resume")
    for name in POLICIES:
        for part, iterations in (("whole", 6), ("parts", 3)):
            runner = make_training(name, folder / part / name, seed=1)
            runner.learn(iterations)
            runner.close()
    command = [sys.executable, "-m", "tests.runners.resumed_trainings", str(folder / "parts")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def checkpoint(path):
    """A checkpoint without its times."""
    loaded = load_checkpoint(path)
    loaded["runner_state_dict"].pop("tot_time")
    return loaded


@pytest.mark.parametrize("name", POLICIES)
def test_resume_in_new_process_is_bit_exact(trainings, name):
    whole, parts = (checkpoint(trainings / part / name / "model_6.pt") for part in ("whole", "parts"))
    assert differences(whole, parts) == []
    # The comparison must not be vacuous: none of these keys may be missing, and the weights must have changed.
    for key in ("optimizer_state_dict", "obs_norm_state_dict", "critic_obs_norm_state_dict", "rnd_state_dict",
                "reward_norm_state_dict",
                "rnd_optimizer_state_dict", "rng_state_dict", "env_state_dict", "runner_state_dict"):  # fmt: skip
        assert whole[key]
    assert bool(whole["runner_state_dict"]["memory"]) == (name != "feed_forward")
    start = checkpoint(trainings / "parts" / name / "model_3.pt")
    for key in ("model_state_dict", "optimizer_state_dict", "obs_norm_state_dict", "rnd_state_dict", "env_state_dict"):
        assert differences(start[key], whole[key])
    # The adapted learning rate, not the configured one, is restored.
    assert start["runner_state_dict"]["learning_rate"] == start["optimizer_state_dict"]["param_groups"][0]["lr"] > 2e-4


@pytest.mark.parametrize("name", POLICIES)
def test_logged_values_of_resumed_training_are_equal(trainings, name):
    def values(part):
        rows = progress(trainings / part / name)
        return [{k: v for k, v in row.items() if not k.startswith("Perf/") and k != "wall_time"} for row in rows]

    whole, parts = values("whole"), values("parts")
    assert [row["step"] for row in whole] == list("012345")
    assert whole == parts
    for tag in ("Loss/value_loss", "Loss/rnd", "Loss/learning_rate", "Train/mean_reward", "Rnd/weight"):
        assert len({row[tag] for row in whole}) > 1


@pytest.mark.parametrize("policy", [{}, recurrent("lstm")])
def test_same_seed_same_weights_twice(policy):
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        runner = make_runner(EchoEnv(seed=3), small_config(policy, empirical_normalization=True))
        runner.learn(2)
        runs.append(weights(runner))
    assert differences(*runs) == []


@pytest.mark.parametrize("policy", [{}, recurrent("gru")])
def test_second_learn_continues_the_first(tmp_path, policy):
    ends = []
    for calls in ([4], [2, 2]):
        torch.manual_seed(5)
        runner = make_runner(
            EchoEnv(seed=5, num_privileged_obs=6),
            small_config(policy, {"schedule": "adaptive"}, empirical_normalization=True),
            log_dir=tmp_path / str(len(calls)),
        )
        for iterations in calls:
            runner.learn(iterations)
        ends.append(checkpoint(tmp_path / str(len(calls)) / "model_4.pt"))
    assert differences(*ends) == []


def test_second_learn_reads_environment_reset_in_between():
    env = EchoEnv(seed=1)
    runner = make_runner(env)
    runner.learn(1)
    env.reset()
    runner._init_observations()
    assert runner._last_observations is not None
    assert torch.equal(runner._last_observations[0], env.obs)


def test_resume_acts_on_stored_observation(tmp_path):
    class NoisyObservationEnv(EchoEnv):
        """Adds new sensor noise at every call, as simulators do."""

        def get_observations(self):
            obs, extras = super().get_observations()
            return obs + 0.1 * torch.randn_like(obs), extras

    whole = make_runner(NoisyObservationEnv(seed=4))
    start = weights(whole)
    generators = torch.get_rng_state()
    whole.learn(4)
    first = make_runner(NoisyObservationEnv(seed=4))
    first.alg.actor_critic.load_state_dict(start)
    torch.set_rng_state(generators)
    first.learn(2)
    first.save(tmp_path / "model_2.pt")
    second = make_runner(NoisyObservationEnv(seed=5))
    second.load(tmp_path / "model_2.pt")
    second.learn(2)
    assert differences(weights(whole), weights(second)) == []


def test_resume_without_environment_state_starts_new_episodes(tmp_path):
    config = small_config(recurrent("lstm"), empirical_normalization=True)
    first = make_runner(StatelessEnv(episode_length=50), config)
    first.learn(3)
    first.save(tmp_path / "model_3.pt")
    second = make_runner(StatelessEnv(episode_length=50, seed=9), config)
    second.load(tmp_path / "model_3.pt")
    assert "env_state_dict" not in load_checkpoint(tmp_path / "model_3.pt")
    assert differences(first.alg.state_dict(), second.alg.state_dict()) == []
    assert (second.current_learning_iteration, second.tot_timesteps) == (3, first.tot_timesteps)
    # New episodes must not inherit running rewards.
    assert first._episodes.cur_episode_length.tolist() == [18.0] * 8
    assert second._episodes.cur_episode_length.tolist() == [0.0] * 8
    assert second.alg.actor_critic.hidden_state_dict() == {}
    second.learn(1)


def test_resume_with_other_num_envs_restores_the_rest(tmp_path):
    config = small_config(recurrent("lstm"), empirical_normalization=True)
    first = make_runner(EchoEnv(num_envs=8), config)
    first.learn(2)
    first.save(tmp_path / "model_2.pt")
    second = make_runner(EchoEnv(num_envs=3), config)
    second.load(tmp_path / "model_2.pt")
    assert differences(first.alg.state_dict(), second.alg.state_dict()) == []
    assert second.current_learning_iteration == 2
    second.learn(1)


def test_warns_and_starts_new_episodes_if_environment_state_cannot_be_loaded(tmp_path, caplog):
    first = make_runner(EchoEnv())
    first.learn(1)
    first.save(tmp_path / "model_1.pt")

    class OtherEnv(EchoEnv):
        def load_state_dict(self, state):
            raise KeyError("terrain")

    second = make_runner(OtherEnv())
    second.load(tmp_path / "model_1.pt")
    assert "'terrain'" in caplog.text
    assert "starts new episodes" in caplog.text
    second.learn(1)


def test_load_without_optimizer_restores_networks_and_normalizers_only(tmp_path):
    config = small_config(algorithm={"schedule": "adaptive", "rnd_cfg": RND}, empirical_normalization=True)
    first = make_runner(NoveltyEnv(), config)
    first.learn(3)
    first.save(tmp_path / "model_3.pt", infos={"note": "walks"})
    env = NoveltyEnv(seed=8)
    second = make_runner(env, config)
    before, generator = env.obs.clone(), torch.get_rng_state()
    assert second.load(tmp_path / "model_3.pt", load_optimizer=False) == {"note": "walks"}
    ours, theirs = second.alg.state_dict(), first.alg.state_dict()
    for key in ("model_state_dict", "obs_norm_state_dict", "critic_obs_norm_state_dict", "rnd_state_dict"):
        assert differences(ours[key], theirs[key]) == []
    assert ours["optimizer_state_dict"]["state"] == ours["rnd_optimizer_state_dict"]["state"] == {}
    assert theirs["rnd_optimizer_state_dict"]["state"] != {}
    assert second.alg.learning_rate == 1e-3 != first.alg.learning_rate
    assert second.current_learning_iteration == second.alg.current_learning_iteration == 3
    assert second.tot_timesteps == 0
    assert torch.equal(env.obs, before)
    assert torch.equal(torch.get_rng_state(), generator)


def test_evaluations_and_checkpoints_do_not_change_training(tmp_path):
    def noisy_evaluator(policy):
        policy(torch.randn(3, 4))
        policy.reset(torch.tensor([True, False, True]))
        return float(torch.rand(()))

    ends = []
    for save_interval in (1, 100):
        torch.manual_seed(2)
        config = small_config(recurrent("lstm"), save_interval=save_interval, empirical_normalization=True)
        runner = make_runner(EchoEnv(seed=2), config, log_dir=tmp_path / str(save_interval))
        runner.evaluator = noisy_evaluator
        runner.learn(3)
        ends.append(checkpoint(tmp_path / str(save_interval) / "model_3.pt"))
    assert differences(*ends) == []


def test_schedules_resume_at_iteration(tmp_path):
    first = make_runner()
    first.learn(2)
    first.save(tmp_path / "model_2.pt")
    second = make_runner()
    second.load(tmp_path / "model_2.pt")
    assert second.alg.current_learning_iteration == 2
    seen = []
    update = second.alg.update
    second.alg.update = lambda iteration: seen.append(iteration) or update(iteration)
    second.learn(2)
    assert seen == [2, 3]
