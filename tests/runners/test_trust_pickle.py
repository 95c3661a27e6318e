"""Checkpoints of teachers, sub-policies and students: NumPy values load, pickled objects only with `trust_pickle`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from st_rl.modules import ActorCriticMutex, load_policy
from st_rl.modules.policy.build import EnvSpec
from st_rl.runners import DaggerSaver, OnPolicyRunner
from st_rl.utils.files import CheckpointError
from tests.fakes import EchoEnv
from tests.modules.mutex_runs import OBS, SEGMENTS, A, write_run
from tests.runners.distillations import TEACHER, echo_env, save_perfect_teacher
from tests.runners.training import small_config
from tests.storage.recordings import EchoPolicy, RecordingEnv

NUMPY = {"score": np.float64(0.5), "history": np.arange(3)}


class Settings:
    """An object that needs pickle."""


def add_values(path: str | Path, **values: object) -> None:
    """Add values to a checkpoint, as in files of other libraries."""
    torch.save({**torch.load(path, weights_only=True), **values}, path)


def make_distillation(teacher: str, **teacher_policy):
    algorithm = {"class_name": "TPPO", "teacher_policy": {**TEACHER, "teacher_ac_path": teacher, **teacher_policy}}
    return small_config(algorithm=algorithm, strict=True)


class TestTeacher:
    @pytest.fixture
    def teacher(self, tmp_path: Path) -> str:
        return save_perfect_teacher(tmp_path / "teacher.pt")

    def test_numpy_values_load(self, teacher):
        add_values(teacher, **NUMPY)
        runner = OnPolicyRunner(echo_env(num_envs=4), make_distillation(teacher))
        expected = torch.load(teacher, weights_only=False)["model_state_dict"]
        torch.testing.assert_close(runner.alg.teacher_actor_critic.state_dict(), expected, rtol=0, atol=0)

    def test_objects_load_only_with_trust_pickle(self, teacher):
        add_values(teacher, settings=Settings())
        with pytest.raises(CheckpointError, match=r"Settings.*trust_pickle=True.*teacher_policy"):
            OnPolicyRunner(echo_env(num_envs=4), make_distillation(teacher))
        OnPolicyRunner(echo_env(num_envs=4), make_distillation(teacher, trust_pickle=True))

    def test_config_file_does_not_keep_trust(self, teacher, tmp_path):
        add_values(teacher, settings=Settings())
        config = make_distillation(teacher, trust_pickle=True)
        runner = OnPolicyRunner(echo_env(num_envs=4), config, log_dir=tmp_path / "run")
        runner.learn(1)
        runner.close()
        assert config["algorithm"]["teacher_policy"]["trust_pickle"] is True
        written = json.loads((tmp_path / "run" / "config.json").read_text())
        assert written["algorithm"]["teacher_policy"]["teacher_ac_path"] == teacher
        assert "trust_pickle" not in written["algorithm"]["teacher_policy"]


class TestSubPolicies:
    def make(self, folder: Path, **settings) -> ActorCriticMutex:
        return ActorCriticMutex(OBS, OBS, A, "ActorCritic", [folder], obs_segments=SEGMENTS, strict=True, **settings)

    def test_numpy_values_load(self, tmp_path):
        write_run(tmp_path, 1, iteration=3)
        add_values(tmp_path / "model_3.pt", **NUMPY)
        assert len(self.make(tmp_path).submodules) == 1

    def test_objects_load_only_with_trust_pickle(self, tmp_path):
        write_run(tmp_path, 1, iteration=3)
        add_values(tmp_path / "model_3.pt", settings=Settings())
        with pytest.raises(CheckpointError, match=r"Settings.*trust_pickle=True"):
            self.make(tmp_path)
        assert len(self.make(tmp_path, trust_pickle=True).submodules) == 1

    def test_mutex_teacher_passes_trust_to_its_sub_policies(self, tmp_path):
        write_run(tmp_path, 1, iteration=3)
        add_values(tmp_path / "model_3.pt", settings=Settings())
        teacher = {
            "class_name": "ActorCriticMutex",
            "sub_policy_class_name": "ActorCritic",
            "sub_policy_paths": [str(tmp_path)],
        }
        teacher |= {"obs_segments": SEGMENTS, "num_actor_obs": OBS, "trust_pickle": True}
        env = EchoEnv(num_obs=OBS, num_actions=A)
        algorithm = {"class_name": "TPPO", "teacher_policy": teacher, "label_action_with_critic_obs": False}
        runner = OnPolicyRunner(env, small_config(algorithm=algorithm))
        assert len(runner.alg.teacher_actor_critic.submodules) == 1


class TestStudent:
    def collect(self, student: Path, folder: Path, **settings) -> DaggerSaver:
        saver = DaggerSaver(
            RecordingEnv(num_envs=4), EchoPolicy(), folder, training_policy_logdir=student, rollout_storage_length=5,
            min_timesteps=20, min_episodes=0, **settings,
        )  # fmt: skip
        saver.collect_and_save()
        return saver

    @pytest.fixture
    def student(self, tmp_path: Path) -> Path:
        runner = OnPolicyRunner(RecordingEnv(), small_config(), log_dir=tmp_path / "student")
        runner.learn(2)
        runner.close()
        return tmp_path / "student"

    def test_numpy_values_load(self, student, tmp_path):
        add_values(student / "model_2.pt", **NUMPY)
        assert self.collect(student, tmp_path / "data").policy_iteration == 2

    def test_objects_load_only_with_trust_pickle(self, student, tmp_path, monkeypatch):
        monkeypatch.setattr("st_rl.runners.dagger_saver._RETRY_S", 0.0)
        add_values(student / "model_2.pt", settings=Settings())
        assert self.collect(student, tmp_path / "data").policy_iteration == 0
        assert self.collect(student, tmp_path / "more", trust_pickle=True).policy_iteration == 2


class TestConfigFile:
    """Run folders are untrusted: their `trust_pickle` is rejected."""

    @pytest.mark.parametrize("section", ["policy", "algorithm", "runner"])
    def test_trust_in_a_run_folder_is_rejected(self, section, tmp_path):
        write_run(tmp_path, 1, iteration=3)
        add_values(tmp_path / "model_3.pt", settings=Settings())
        config = json.loads((tmp_path / "config.json").read_text())
        config[section] = {**config.get(section, {}), "teacher_policy": {"trust_pickle": True}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"config\.json sets trust_pickle"):
            load_policy(tmp_path)

    def test_load_policy_takes_it_from_python(self, tmp_path):
        write_run(tmp_path, 1, iteration=3)
        add_values(tmp_path / "model_3.pt", settings=Settings())
        with pytest.raises(CheckpointError, match=r"Settings.*trust_pickle=True"):
            load_policy(tmp_path)
        spec = EnvSpec(OBS, OBS, A, SEGMENTS)
        assert load_policy(tmp_path, env=spec, trust_pickle=True).iteration == 3
