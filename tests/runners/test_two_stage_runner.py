"""`TwoStageRunner`: pretraining from files, then training in the environment."""

import copy
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from st_rl.runners import TwoStageRunner, build_runner, two_stage_runner
from st_rl.runners.dagger_saver import TRAINER
from st_rl.storage.rollout_files import rollout_dataset
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from st_rl.utils.files.heartbeat import Heartbeat, heartbeats
from tests.fakes import EchoEnv
from tests.runners.training import progress, recurrent, small_config, weights
from tests.storage.recordings import EchoPolicy, RecordingEnv, record


class Perfect(EchoPolicy):
    """Takes the optimal actions of the echo task."""

    def act_inference(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[:, : self.num_actions].clone()


def demonstrations(folder: Path, **env: Any) -> Path:
    """Record trajectories of an optimal policy."""
    record(folder, RecordingEnv(**({"num_envs": 4, "seed": 7} | env)), policy=Perfect(), min_timesteps=200)
    return folder


def make(folder: Path, env: Any = None, policy: Any = None, algorithm: Any = None, dataset: Any = None, **cfg: Any):
    """Build a runner that pretrains from a folder for two iterations, with TPPO and an untrained teacher."""
    log_dir = cfg.pop("log_dir", None)
    settings = {"class_name": "TPPO", "teacher_policy": {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}}
    dataset = {"data_dir": str(folder), "dataset_loops": 0, "wait_seconds": 0} | (dataset or {})
    config = small_config(policy, settings | (algorithm or {}), pretrain_dataset=dataset)
    config |= {"pretrain_iterations": 2, "log_interval": 1} | cfg
    return TwoStageRunner(EchoEnv(num_envs=4) if env is None else env, config, log_dir=log_dir)


def collected(runner: TwoStageRunner) -> list[Any]:
    """Record every dataset transition that the algorithm receives."""
    taken, collect = [], runner.alg.collect_transition_from_dataset

    def spy(transition, infos):
        taken.append((transition, infos))
        collect(transition, infos)

    runner.alg.collect_transition_from_dataset = spy
    return taken


class Stream:
    """A user's dataset: transitions and infos, and nothing at every fourth step."""

    __slots__ = ("num_asked", "source")

    def __init__(self, source: RolloutDataset):
        self.source = source
        self.num_asked = 0

    def get_transition_batch(self) -> tuple[Any, dict[str, Any]]:
        self.num_asked += 1
        transition, infos = self.source.get_transition_batch()
        return None if self.num_asked % 4 == 0 else transition, infos | {"age": self.num_asked}


class TestStages:
    @pytest.mark.parametrize(("pretrain_iterations", "from_files", "from_env"), [(0, 0, 3), (2, 2, 1), (-1, 3, 0)])
    def test_stage_lengths(self, tmp_path, pretrain_iterations, from_files, from_env):
        runner = make(demonstrations(tmp_path), RecordingEnv(num_envs=4), pretrain_iterations=pretrain_iterations)
        taken = collected(runner)
        runner.learn(3)
        assert len(taken) == 6 * from_files
        assert len(runner.env.seen) == 6 * from_env

    def test_step_results(self, tmp_path):
        runner = make(demonstrations(tmp_path, num_privileged_obs=7), EchoEnv(num_envs=4, num_privileged_obs=7))
        taken = collected(runner)
        obs = torch.zeros(4, 4)
        next_obs, next_critic_obs, reward, done, infos = runner.rollout_step(obs, torch.zeros(4, 7))
        transition, given = taken[0]
        assert torch.equal(next_obs, transition.next_observation)
        assert torch.equal(next_critic_obs, transition.next_privileged_observation)
        assert reward is transition.reward
        assert done is transition.done
        assert infos is given
        assert list(infos) == ["time_outs"]

    def test_algorithm_stores_labels_and_dones_of_files(self, tmp_path):
        runner = make(demonstrations(tmp_path))
        taken = collected(runner)
        for _ in range(6):
            runner.rollout_step(torch.zeros(4, 4), torch.zeros(4, 4))
        storage = runner.alg.storage
        assert torch.equal(storage.action_labels, torch.stack([t.action for t, _ in taken]))
        assert torch.equal(storage.actions, storage.action_labels)
        assert torch.equal(storage.dones[..., 0].bool(), torch.stack([t.done for t, _ in taken]))

    @pytest.mark.parametrize("normalizes", [False, True])
    @pytest.mark.parametrize(
        ("recorded", "wanted", "words"),
        [
            ({"num_obs": 5}, {}, "observations of width 5, those of the environment have 4"),
            ({"num_privileged_obs": 6}, {"num_privileged_obs": 7}, "critic observations of width 6, .* have 7"),
        ],
    )
    def test_rejects_observations_of_other_width(self, tmp_path, normalizes, recorded, wanted, words):
        folder = demonstrations(tmp_path, **recorded)
        runner = make(folder, EchoEnv(num_envs=4, **wanted), empirical_normalization=normalizes)
        with pytest.raises(ValueError, match=words):
            runner.learn(1)

    def test_end_of_data_ends_stage(self, tmp_path, caplog):
        env = RecordingEnv(num_envs=4)
        runner = make(demonstrations(tmp_path), env, pretrain_iterations=-1, dataset={"dataset_loops": 1})
        taken = collected(runner)
        with caplog.at_level(logging.INFO, "st_rl"):
            runner.learn(12)
        assert "exhausted" in caplog.text
        assert 0 < len(taken) < 12 * 6
        assert len(taken) + len(env.seen) == 12 * 6

    def test_environment_steps_if_dataset_returns_nothing(self, tmp_path):
        env = RecordingEnv(num_envs=4)
        runner = make(demonstrations(tmp_path), env)
        runner.rollout_dataset.get_transition_batch = lambda: (None, {})
        seen = env.get_observations()[0].clone()
        runner.rollout_step(torch.full((4, 4), 9.0), torch.full((4, 4), 9.0))
        assert torch.equal(runner.alg.storage.observations[0], seen)
        assert len(env.seen) == 1


class TestStageTransition:
    @pytest.mark.parametrize("rnn_type", ["gru", "lstm"])
    def test_hidden_states_and_observations_are_reset(self, tmp_path, rnn_type):
        env = RecordingEnv(num_envs=4)
        runner = make(demonstrations(tmp_path), env, recurrent(rnn_type), pretrain_iterations=1)
        memories = []
        act = runner.alg.act
        runner.alg.act = lambda *args: (
            memories.append(copy.deepcopy(runner.alg.actor_critic.hidden_state_dict())) or act(*args)
        )
        shown = env.get_observations()[0].clone()
        runner.learn(2)
        leaves = [torch.stack([leaf for part in memory.values() for leaf in part]) for memory in memories[:2]]
        assert not leaves[0].any(), "the memory of the data set reached the environment"
        assert leaves[1].any()
        assert torch.equal(runner.alg.storage.observations[0], shown)

    def test_episode_does_not_continue_from_file_into_environment(self, tmp_path):
        runner = make(demonstrations(tmp_path), pretrain_iterations=-1, dataset={"dataset_loops": 1})
        stream = [runner.rollout_dataset.get_transition_batch() for _ in range(2)]

        def two_steps():
            if not stream:
                raise StopIteration
            return stream.pop(0)

        runner.rollout_dataset.get_transition_batch = two_steps
        for _ in range(4):
            runner.rollout_step(torch.zeros(4, 4), torch.zeros(4, 4))
        dones = runner.alg.storage.dones[:4, :, 0].bool()
        assert dones[1].all()
        assert not dones[2:].any()

    def test_normalization_is_kept(self, tmp_path, caplog):
        class Large(RecordingEnv):
            def _new_observation(self):
                return 50.0 + 20.0 * super()._new_observation()

        record(tmp_path, Large(num_envs=4, seed=3), policy=Perfect(), min_timesteps=400)
        runner = make(tmp_path, Large(num_envs=4, seed=5), empirical_normalization=True)
        with caplog.at_level(logging.INFO, "st_rl"):
            runner.learn(2)
            from_files = runner.alg.storage.observations.clone()
            runner.learn(1)
        assert "statistics of 4" in caplog.text
        from_env = runner.alg.storage.observations
        for observations in (from_files, from_env):
            assert abs(float(observations.mean())) < 0.5
            assert 0.7 < float(observations.std()) < 1.3

    def test_recorded_frames_do_not_update_statistics(self, tmp_path):
        runner = make(demonstrations(tmp_path), empirical_normalization=True, pretrain_iterations=-1)
        runner.learn(1)
        count = int(runner.alg.obs_normalizer.count)
        runner.learn(2)
        assert int(runner.alg.obs_normalizer.count) == count

    def test_statistics_of_a_trained_normalizer_are_kept(self, tmp_path):
        runner = make(demonstrations(tmp_path), empirical_normalization=True, pretrain_iterations=-1)
        runner.alg.obs_normalizer.update(torch.randn(10, runner.num_obs))
        runner.learn(1)
        # Only the first observation of the four environments is added.
        assert int(runner.alg.obs_normalizer.count) == 10 + 4

    def test_statistics_use_part_of_large_dataset(self, tmp_path, monkeypatch, caplog):
        caplog.set_level(logging.INFO)
        monkeypatch.setattr(two_stage_runner, "STATISTICS_FRAMES", 20)
        runner = make(demonstrations(tmp_path), empirical_normalization=True, pretrain_iterations=-1)
        runner.learn(1)
        (message,) = [record.getMessage() for record in caplog.records if "recorded frames" in record.getMessage()]
        assert 20 <= int(message.split("statistics of ")[1].split()[0]) < 100

    def test_statistics_follow_growing_dataset(self, tmp_path, monkeypatch):
        monkeypatch.setattr(rollout_dataset, "_CHECK_INTERVAL_S", 0.0)
        folder = demonstrations(tmp_path)
        runner = make(folder, empirical_normalization=True, pretrain_iterations=-1)
        runner.learn(1)
        before = int(runner.alg.obs_normalizer.count)
        heart = Heartbeat(folder, "collector", "somewhere-1")
        runner.rollout_dataset.reset()
        runner.learn(5)
        heart.stop()
        assert int(runner.alg.obs_normalizer.count) > before + 150


class TestResume:
    def test_resumed_training_continues_in_its_stage(self, tmp_path):
        folder = demonstrations(tmp_path / "data")
        first = make(folder, log_dir=tmp_path / "run", pretrain_iterations=4, save_interval=1)
        first.learn(3)
        first.close()
        second = make(folder, log_dir=tmp_path / "run", pretrain_iterations=4)
        second.load(tmp_path / "run" / "model_3.pt")
        taken = collected(second)
        second.learn(2)
        second.close()
        assert len(taken) == 6
        assert second.current_learning_iteration == 5

    def test_resume_at_stage_transition(self, tmp_path):
        folder = demonstrations(tmp_path / "data")
        first = make(folder, log_dir=tmp_path / "run")
        first.learn(2)
        first.close()
        env = RecordingEnv(num_envs=4)
        second = make(folder, env)
        second.load(tmp_path / "run" / "model_2.pt")
        shown = env.get_observations()[0].clone()
        second.learn(1)
        assert torch.equal(second.alg.storage.observations[0], shown)

    def test_two_learn_calls_equal_one(self, tmp_path):
        folder = demonstrations(tmp_path)
        results = []
        for parts in ((4,), (2, 2)):
            torch.manual_seed(0)
            runner = make(folder)
            for part in parts:
                runner.learn(part)
            results.append(weights(runner))
        assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


class TestInterface:
    def test_learns_to_imitate(self, tmp_path):
        torch.manual_seed(0)
        record(tmp_path, RecordingEnv(num_envs=16), policy=Perfect(), min_timesteps=3000)
        algorithm = {"using_ppo": False, "learning_rate": 1e-2, "num_learning_epochs": 4}
        runner = make(tmp_path, EchoEnv(num_envs=16), algorithm=algorithm, pretrain_iterations=-1)
        runner.learn(60)
        obs = EchoEnv(num_envs=256, seed=99).get_observations()[0]
        error = (runner.get_inference_policy()(obs) - obs[:, :2]).square().mean()
        assert error.item() < 0.01

    def test_rejects_missing_dataset_and_unsupported_algorithm(self, tmp_path):
        config = small_config(algorithm={"class_name": "TPPO"})
        with pytest.raises(AssertionError, match="pretrain_dataset"):
            TwoStageRunner(EchoEnv(), config)
        config = small_config(pretrain_dataset={"data_dir": str(tmp_path)})
        with pytest.raises(TypeError, match="PPO cannot learn from a data set"):
            TwoStageRunner(EchoEnv(), config)

    def test_none_and_unknown_dataset_settings(self, tmp_path, caplog):
        dataset = {"keep_latest_n_trajs": None, "num_envs": 3, "dataset_lops": 4}
        with caplog.at_level(logging.WARNING, "st_rl"):
            runner = make(tmp_path, dataset=dataset)
        assert "did you mean 'dataset_loops'?" in caplog.text
        assert runner.rollout_dataset.keep_latest_n_trajs == 0
        assert runner.rollout_dataset.num_envs == runner.env.num_envs
        with pytest.raises(ValueError, match="dataset_lops"):
            make(tmp_path, dataset=dataset, strict=True)

    def test_defaults(self, tmp_path):
        config = small_config(algorithm={"class_name": "TPPO"}, pretrain_dataset={"data_dir": str(tmp_path)})
        runner = build_runner("TwoStageRunner", EchoEnv(num_envs=3), config)
        assert isinstance(runner, TwoStageRunner)
        assert (runner.pretrain_iterations, runner.log_interval) == (0, 50)
        assert (runner.rollout_dataset.num_envs, runner.rollout_dataset.device) == (3, "cpu")
        assert config["pretrain_dataset"] == {"data_dir": str(tmp_path)}

    @pytest.mark.parametrize("empirical_normalization", [False, True])
    def test_own_dataset_needs_one_method(self, tmp_path, empirical_normalization):
        folder, env = demonstrations(tmp_path / "data"), RecordingEnv(num_envs=4)
        runner = make(folder, env, log_dir=tmp_path / "run", empirical_normalization=empirical_normalization)
        runner.rollout_dataset = Stream(runner.rollout_dataset)
        taken = collected(runner)
        runner.learn(3)
        runner.close()
        # Two iterations of six steps, every fourth from the environment, then one from the environment only.
        assert (runner.rollout_dataset.num_asked, len(taken), len(env.seen)) == (12, 9, 3 + 6)
        assert [row.get("Perf/dataset_age") for row in progress(tmp_path / "run")] == ["6.0", "12.0", None]

    def test_log_contents(self, tmp_path):
        runner = make(demonstrations(tmp_path / "data"), log_dir=tmp_path / "run", pretrain_iterations=-1)
        batch = runner.rollout_dataset.get_transition_batch
        runner.rollout_dataset.get_transition_batch = lambda: (batch()[0], {"time_outs": torch.zeros(4), "age": 3.0})
        alive = []
        log = runner.log
        runner.log = lambda locs: alive.append(len(heartbeats(tmp_path / "run", TRAINER))) or log(locs)
        runner.learn(2)
        runner.close()
        row = progress(tmp_path / "run")[-1]
        assert float(row["Perf/dataset_age"]) == 3.0
        assert "Perf/dataset_time_outs" not in row
        assert float(row["Perf/dataset_trajectories"]) >= 4
        assert float(row["Perf/dataset_transitions_per_second"]) > 0
        assert float(row["Perf/dataset_waiting_fraction"]) < 1
        assert alive == [1, 1]
        assert heartbeats(tmp_path / "run", TRAINER) == []

    def test_requested_stop_ends_wait_for_files(self, tmp_path, caplog):
        caplog.set_level("INFO")
        dataset = {"wait_seconds": 20, "poll_seconds": 0.05}
        runner = make(tmp_path / "nothing", dataset=dataset, log_dir=tmp_path / "run")
        timer = threading.Timer(0.3, runner.request_stop)
        timer.start()
        begin = time.monotonic()
        with pytest.raises(InterruptedError, match=r"stopped while waiting for trajectories in .*nothing"):
            runner.learn(1)
        assert time.monotonic() - begin < 10
        assert "0 collectors running (0 of 20 s); start one: st-rl dagger TEACHER STUDENT" in caplog.text
        assert heartbeats(tmp_path / "run", TRAINER) == []
        # The next `learn` waits again.
        demonstrations(tmp_path / "nothing")
        runner.learn(1)
        assert runner.current_learning_iteration == 1
