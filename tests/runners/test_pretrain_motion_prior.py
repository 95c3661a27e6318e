"""Motion features in recorded data: recording, reading, and pretraining of APPO and ATPPO."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from st_rl.runners import DaggerSaver, DemonstrationSaver, OnPolicyRunner, TwoStageRunner
from st_rl.storage.rollout_files.frames import read_frames
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from tests.fakes import ClientEnv
from tests.runners.training import progress, recurrent, small_config
from tests.storage.recordings import EchoPolicy

AMP = {"input_dim": 2 * ClientEnv.REF_DIM, "style_reward_coef": 1.0, "hidden_dims": [16], "task_reward_lerp": 0.5}
TEACHER = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "APPO": {"class_name": "APPO", "dagger_loss_coef": 1.0},
    "ATPPO": {"class_name": "ATPPO", "teacher_policy": TEACHER},
}


class MotionEnv(ClientEnv):
    """Records the motion features of every step."""

    def __init__(self, num_envs: int = 4, **kwargs: Any):
        super().__init__(num_envs, **kwargs)
        self.delivered: list[tuple[np.ndarray, np.ndarray]] = []

    def step(self, actions: torch.Tensor):
        outcome = super().step(actions)
        ref_obs, ref_motion = self.extras["observations"]["ref_obs"], self.extras["ref_motion"]
        self.delivered.append((ref_obs.flatten(1).numpy().copy(), ref_motion.numpy().copy()))
        return outcome


class WithoutReference(ClientEnv):
    """Has no reference features."""

    def _refresh(self, obs, infos, ref_motion):
        super()._refresh(obs, infos, ref_motion)
        self.extras["ref_motion"] = None


class Perfect(EchoPolicy):
    """Takes the optimal actions of the echo task."""

    def act_inference(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[:, : self.num_actions].clone()


def record(folder: Path, env: Any = None, **settings: Any) -> Any:
    """Record with the saver of this library; returns the environment."""
    env = MotionEnv() if env is None else env
    settings = {"rollout_storage_length": 7, "min_timesteps": 200, "min_episodes": 0} | settings
    DemonstrationSaver(env, Perfect(env.num_actions), folder, **settings).collect_and_save()
    return env


def make_runner(
    folder: Path, algorithm: dict[str, Any], env: Any = None, policy: Any = None, **cfg: Any
) -> TwoStageRunner:
    policy = {"class_name": "AmpActorCritic", "amp_discriminator": AMP, **(policy or {})}
    dataset = {"data_dir": str(folder), "dataset_loops": 0, "wait_seconds": 0}
    log_dir = cfg.pop("log_dir", None)
    config = small_config(policy, algorithm, pretrain_dataset=dataset, **({"pretrain_iterations": 2} | cfg))
    return TwoStageRunner(ClientEnv(num_envs=4) if env is None else env, config | {"log_interval": 1}, log_dir=log_dir)


class TestSaver:
    @pytest.mark.parametrize("file_format", ["pickle", "npz"])
    def test_files_hold_features_of_environment(self, tmp_path, file_format):
        env = record(tmp_path, MotionEnv(termination_prob=0.0, episode_length=50), file_format=file_format)
        for index in range(4):
            folder = tmp_path / f"trajectory_{index}"
            files = [read_frames(path) for path in sorted(folder.glob("traj_*"))]
            for place, name in enumerate(("ref_obs", "ref_motion")):
                recorded = np.concatenate([frames[name] for frames in files])
                expected = np.stack([step[place][index] for step in env.delivered])[: len(recorded)]
                np.testing.assert_array_equal(recorded, expected)

    def test_nothing_is_recorded_without_a_reference(self, tmp_path):
        record(tmp_path, WithoutReference(num_envs=4))
        for path in tmp_path.glob("trajectory_*/traj_*"):
            assert not {"ref_obs", "ref_motion"} & set(read_frames(path))

    def test_dagger_saver_records_features(self, tmp_path):
        runner = OnPolicyRunner(ClientEnv(num_envs=4), small_config(), log_dir=tmp_path / "student")
        runner.learn(1)
        runner.close()
        env = MotionEnv()
        settings = {"rollout_storage_length": 5, "min_timesteps": 20, "min_episodes": 0}
        saver = DaggerSaver(
            env, EchoPolicy(3), tmp_path / "data", training_policy_logdir=tmp_path / "student", **settings
        )
        saver.collect_and_save()
        frames = read_frames(tmp_path / "data" / "trajectory_0" / "traj_000000_000005.pickle")
        np.testing.assert_array_equal(frames["ref_obs"], np.stack([step[0][0] for step in env.delivered[:5]]))


class TestDataset:
    def test_infos_hold_features_of_each_transition(self, tmp_path):
        env = record(tmp_path)
        dataset = RolloutDataset(tmp_path, num_envs=3, device="cpu", mark_first_frame_done=False)
        known = {step[0][i].tobytes(): step[1][i] for step in env.delivered for i in range(4)}
        for _ in range(20):
            transition, infos = dataset.get_transition_batch()
            assert sorted(infos) == ["observations", "ref_motion", "time_outs"]
            ref_obs = infos["observations"]["ref_obs"]
            assert ref_obs.shape == infos["ref_motion"].shape == (3, 42)
            # The second of its two frames is the action of the step.
            torch.testing.assert_close(ref_obs[:, 21:24], transition.action.clamp(-2.0, 2.0))
            for row, motion in zip(ref_obs.numpy(), infos["ref_motion"].numpy()):
                np.testing.assert_array_equal(motion, known[row.tobytes()])

    def test_no_features_in_other_data(self, tmp_path):
        record(tmp_path, WithoutReference(num_envs=4))
        dataset = RolloutDataset(tmp_path, num_envs=3, device="cpu")
        assert list(dataset.get_transition_batch()[1]) == ["time_outs"]

    def test_features_are_optional(self, tmp_path):
        record(tmp_path)
        dataset = RolloutDataset(tmp_path, num_envs=3, device="cpu", motion_features=False)
        assert list(dataset.get_transition_batch()[1]) == ["time_outs"]

    def test_mixed_data(self, tmp_path, caplog):
        record(tmp_path / "a")
        record(tmp_path / "b", WithoutReference(num_envs=4))
        settings = {"data_dir": [tmp_path / "a", tmp_path / "b"], "num_envs": 3, "device": "cpu", "dataset_loops": 1}
        for _ in RolloutDataset(**settings):
            pass
        assert "it has no ref_obs and ref_motion, which other files have" in caplog.text
        caplog.clear()
        assert len(list(RolloutDataset(**settings, motion_features=False))) > 50
        assert "skipped" not in caplog.text


class TestPretraining:
    @pytest.mark.parametrize(
        "policy", [{}, recurrent("gru") | {"class_name": "AmpActorCriticRecurrent"}], ids=["mlp", "gru"]
    )
    @pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
    def test_whole_run(self, tmp_path, algorithm, policy):
        record(tmp_path / "data")
        env = MotionEnv(seed=5)
        runner = make_runner(tmp_path / "data", algorithm, env, policy, log_dir=tmp_path / "run")
        runner.learn(2)
        storage = runner.alg.storage
        assert not env.delivered
        assert torch.equal(storage.action_labels, storage.actions)
        raw = runner.alg.ref_motion_normalizer.inverse(storage.ref_motion)
        assert 0.4 < float(raw.mean()) < 0.6  # features near ClientEnv.EXPERT_FEATURE
        assert int(runner.alg.ref_obs_normalizer.count) == 2 * 6 * 4 * 2
        runner.learn(2)
        runner.close()
        assert len(env.delivered) == 2 * 6
        rows = progress(tmp_path / "run")
        assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
        for row in rows:
            assert float(row["Loss/discriminator_expert_loss"]) > 0
            assert float(row["Episode_Reward/style_reward"]) > 0
            assert "Perf/dataset_ref_motion" not in row
        again = make_runner(tmp_path / "data", algorithm, policy=policy)
        again.load(tmp_path / "run" / "model_4.pt")
        assert again.current_learning_iteration == 4

    @pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
    def test_learns_to_imitate(self, tmp_path, algorithm):
        torch.manual_seed(0)
        record(tmp_path, MotionEnv(num_envs=16, num_privileged_obs=None), min_timesteps=3000)
        imitation = {"learning_rate": 1e-2, "num_learning_epochs": 4, "schedule": "fixed"}
        env = ClientEnv(num_envs=16, num_privileged_obs=None)
        runner = make_runner(tmp_path, {**algorithm, **imitation}, env, pretrain_iterations=-1)
        obs = ClientEnv(num_envs=256, seed=99, num_privileged_obs=None).get_observations()[0]

        def error() -> float:
            with torch.inference_mode():
                return float((runner.get_inference_policy()(obs) - obs[:, :3]).square().mean())

        before = error()
        runner.learn(60)
        assert error() < 0.1 * before

    @pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
    def test_rejects_data_without_features(self, tmp_path, algorithm):
        record(tmp_path, WithoutReference(num_envs=4))
        runner = make_runner(tmp_path, algorithm)
        with pytest.raises(ValueError, match=r"traj_.* has no motion features \(ref_obs and ref_motion\): collect in"):
            runner.learn(1)

    def test_rejects_features_of_other_width(self, tmp_path):
        record(tmp_path)
        runner = make_runner(tmp_path, ALGORITHMS["APPO"], policy={"amp_discriminator": {**AMP, "input_dim": 40}})
        with pytest.raises(ValueError, match=r"ref_obs'\] has shape \(4, 42\).*takes 40"):
            runner.learn(1)

    def test_tppo_ignores_features(self, tmp_path):
        record(tmp_path)
        algorithm = {"class_name": "TPPO", "teacher_policy": TEACHER}
        runner = make_runner(tmp_path, algorithm, policy={"class_name": "ActorCritic", "amp_discriminator": None})
        runner.learn(1)
        assert runner.rollout_dataset.motion_features is False
