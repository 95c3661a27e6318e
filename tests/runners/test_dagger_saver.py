"""`DaggerSaver`: a student acts, a teacher labels, and checkpoints of the student's run are followed."""

import importlib
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from st_rl.modules import ActorCritic, EmpiricalNormalization
from st_rl.runners import DaggerSaver, OnPolicyRunner
from st_rl.runners.dagger_saver import TRAINER
from st_rl.utils.files import save_checkpoint
from st_rl.utils.files.heartbeat import Heartbeat
from tests.runners.test_demonstration import load
from tests.runners.training import recurrent, small_config
from tests.storage.recordings import EchoPolicy, RecordingEnv


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """Run folder of a student after two iterations, with normalized observations."""
    return train(tmp_path / "student", empirical_normalization=True)


def train(folder: Path, policy: Any = None, env: Any = None, **runner_cfg: Any) -> Path:
    runner = OnPolicyRunner(env or RecordingEnv(), small_config(policy, **runner_cfg), log_dir=folder)
    runner.learn(2)
    runner.close()
    return folder


def make_saver(student: Path, folder: Path, env: Any = None, **kwargs: Any) -> DaggerSaver:
    settings = {"rollout_storage_length": 5, "min_timesteps": 60, "min_episodes": 2, "teacher_act_prob": 0.0} | kwargs
    env = RecordingEnv(num_envs=4, termination_prob=0.1) if env is None else env
    policy = settings.pop("policy", None) or EchoPolicy()
    return DaggerSaver(env, policy, folder, training_policy_logdir=student, **settings)


def put_checkpoint(folder: Path, iteration: int, weights: float = 0.0, **more: Any) -> None:
    """Write a checkpoint with all weights set to one value."""
    model = ActorCritic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    state = {name: torch.full_like(value, weights) for name, value in model.state_dict().items()}
    save_checkpoint({"model_state_dict": state, "iter": iteration} | more, folder / f"model_{iteration}.pt")


class TestActing:
    @pytest.mark.parametrize("probability", [0.0, 1.0])
    def test_student_acts_and_teacher_labels(self, student, tmp_path, probability):
        saver = make_saver(student, tmp_path / "data", teacher_act_prob=probability)
        saver.init_traj_handlers()
        obs = saver.env.get_observations()[0].clone()
        labels, _, dones, infos, _, _ = saver.get_transition()
        executed = torch.from_numpy(saver.env.seen[0]["action"])
        torch.testing.assert_close(labels, 0.5 * obs[:, :2])
        assert saver.use_teacher_act_mask.tolist() == [probability == 1.0] * 4
        assert torch.equal(executed, labels) == (probability == 1.0)
        saver.add_transition(0, infos)
        saver.policy_reset(dones)
        saver.close()
        content = load(tmp_path / "data" / "trajectory_0" / "traj_000000_000001.pickle")
        np.testing.assert_array_equal(content["actions"][0], labels[0])

    def test_student_gets_normalized_observation(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data", action_sample_std=1e-9)
        saver.init_traj_handlers()
        saver.load_latest_training_policy()
        saved = torch.load(student / "model_2.pt", weights_only=True)
        policy = ActorCritic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
        policy.load_state_dict(saved["model_state_dict"])
        normalizer = EmpiricalNormalization(4).eval()
        normalizer.load_state_dict(saved["obs_norm_state_dict"])
        obs = saver.env.get_observations()[0].clone()
        saver.get_transition()
        torch.testing.assert_close(
            torch.from_numpy(saver.env.seen[0]["action"]), policy.act_inference(normalizer(obs)), atol=1e-5, rtol=1e-5
        )
        assert saver.training_policy_iteration == 2
        saver.close()

    def test_teacher_can_use_critic_observation(self, tmp_path):
        env, teacher = RecordingEnv(num_envs=3, num_privileged_obs=7), EchoPolicy()
        folder = train(tmp_path / "student", env=RecordingEnv(num_privileged_obs=7))
        saver = make_saver(folder, tmp_path / "data", env, policy=teacher, use_critic_obs=True)
        saver.collect_and_save()
        np.testing.assert_array_equal(teacher.observations[0].numpy(), env.seen[0]["privileged_observation"])

    def test_teacher_mask_follows_schedule_at_student_iteration(self, student, tmp_path):
        asked = []
        saver = make_saver(student, tmp_path / "data", teacher_act_prob=lambda it: asked.append(it) or 0.5)
        saver.build_training_policy()
        torch.manual_seed(0)
        saver.load_latest_training_policy()
        first = saver.use_teacher_act_mask
        assert first.shape == (4,)
        assert first.dtype == torch.bool
        draws = []
        for _ in range(300):
            saver.load_latest_training_policy()
            draws.append(saver.use_teacher_act_mask.float().mean())
        assert set(asked) == {2}
        assert abs(float(torch.stack(draws).mean()) - 0.5) < 0.06

    def test_schedule_uses_iteration_of_checkpoint(self, student, tmp_path):
        asked = []
        saver = make_saver(student, tmp_path / "data", teacher_act_prob=lambda it: asked.append(it) or 0.5)
        for _ in range(3):
            saver.load_latest_training_policy()
            saver.print_log()
        assert asked == [2, 2, 2]

    def test_named_schedules(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data", teacher_act_prob="exp", update_times_scale=100)
        assert saver.teacher_act_prob(50) == pytest.approx(0.99**50)
        assert make_saver(student, tmp_path / "data", teacher_act_prob=0.3).teacher_act_prob(7) == 0.3

    def test_student_action_noise(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data", action_sample_std=0.25)
        own = make_saver(student, tmp_path / "data", action_sample_std=0.0)
        for each in (saver, own):
            each.build_training_policy()
            each.load_latest_training_policy()
        assert saver.training_policy.std.tolist() == [0.25, 0.25]
        untrained = make_saver(student, tmp_path / "data", action_sample_std=0.25)
        untrained.build_training_policy()
        assert untrained.training_policy.std.tolist() == [0.25, 0.25]
        saved = torch.load(student / "model_2.pt", weights_only=True)["model_state_dict"]["std"]
        assert torch.equal(own.training_policy.std, saved)

    def test_deterministic_student_gets_noise_on_mean(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data", action_sample_std=0.5)
        saver.build_training_policy()

        class Deterministic:
            def act(self, obs):
                return torch.ones(len(obs), 2)

        saver.training_policy = Deterministic()
        saver.obs = torch.zeros(4000, 4)
        actions = saver._student_actions()
        assert abs(float(actions.mean()) - 1.0) < 0.05
        assert abs(float(actions.std()) - 0.5) < 0.05

    def test_hidden_states_of_both_policies_are_cleared_after_episodes(self, tmp_path):
        saver = make_saver(train(tmp_path / "student", recurrent("gru")), tmp_path / "data")
        saver.init_traj_handlers()
        saver.get_transition()
        saver.policy_reset(torch.tensor([1, 0, 0, 0]))
        hidden = saver.training_policy.get_hidden_states().actor
        assert not hidden[:, 0].any()
        assert hidden[:, 1:].abs().sum(dim=-1).all()
        assert saver.policy.resets[-1].tolist() == [True, False, False, False]
        saver.close()


class TestCheckpointFollowing:
    def test_newer_checkpoints_are_loaded_and_recorded(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data", rollout_storage_length=4, min_timesteps=1e9)
        saver.init_traj_handlers()
        for iteration in (2, 9, 1000000):
            if iteration > 2:
                put_checkpoint(student, iteration, iteration / 1e6)
            saver.check_stop()
            assert saver.training_policy_iteration == iteration
            for step_i in range(4):
                saver.collect_step(step_i)
        saver.close()
        content = [load(p)["policy_iterations"] for p in sorted((tmp_path / "data").rglob("traj_*"))]
        assert set(np.concatenate(content).tolist()) == {2, 9, 1000000}

    def test_unchanged_checkpoint_is_loaded_once(self, student, tmp_path, monkeypatch):
        loaded = []
        saver = make_saver(student, tmp_path / "data")
        saver.init_traj_handlers()
        load_student = saver._load_student
        monkeypatch.setattr(
            saver, "_load_student", lambda content: loaded.append(content["iter"]) or load_student(content)
        )
        for _ in range(3):
            saver.load_latest_training_policy()
        put_checkpoint(student, 5, 0.25)
        saver.load_latest_training_policy()
        saver.close()
        assert loaded == [2, 5]

    def test_newer_checkpoint_replaces_logged_iteration(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data")
        saver.init_traj_handlers()
        saver.check_stop()
        for _ in range(10):
            saver.print_log()
        assert saver.training_policy_iteration == 12
        put_checkpoint(student, 5, 0.25)
        saver.check_stop()
        assert saver.training_policy_iteration == 5
        assert saver.training_policy.actor[0].weight[0, 0].item() == 0.25
        saver.close()

    def test_untrained_student_without_checkpoint(self, student, tmp_path, caplog):
        for path in student.glob("model_*.pt"):
            path.unlink()
        saver = make_saver(student, tmp_path / "data", teacher_act_prob="linear")
        with caplog.at_level(logging.INFO, "st_rl"):
            saver.collect_and_save()
        assert "no checkpoint yet" in caplog.text
        content = load(next((tmp_path / "data").rglob("traj_*")))
        assert set(content["policy_iterations"].tolist()) == {0}

    def test_partial_checkpoint_is_read_again(self, student, tmp_path, monkeypatch):
        put_checkpoint(student, 7)
        whole = (student / "model_7.pt").read_bytes()
        (student / "model_7.pt").write_bytes(whole[: len(whole) // 2])
        naps = []

        def nap(seconds):
            naps.append(seconds)
            if len(naps) == 2:
                (student / "model_7.pt").write_bytes(whole)

        monkeypatch.setattr("st_rl.runners.dagger_saver.time.sleep", nap)
        saver = make_saver(student, tmp_path / "data")
        saver.load_latest_training_policy()
        assert saver.training_policy_iteration == 7
        assert len(naps) == 2

    def test_broken_checkpoint_keeps_student(self, student, tmp_path, monkeypatch, caplog):
        saver = make_saver(student, tmp_path / "data")
        saver.load_latest_training_policy()
        (student / "model_8.pt").write_bytes(b"nothing")
        monkeypatch.setattr("st_rl.runners.dagger_saver.time.sleep", lambda seconds: None)
        with caplog.at_level(logging.WARNING, "st_rl"):
            saver.load_latest_training_policy()
        assert "the student stays at iteration 2" in caplog.text
        assert saver.training_policy_iteration == 2

    def test_logs_start_and_end_of_the_trainer(self, student, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr("st_rl.runners.dagger_saver._CHECK_INTERVAL_S", 0.0)
        saver = make_saver(student, tmp_path / "data")
        saver.init_traj_handlers()
        with caplog.at_level(logging.INFO, "st_rl"):
            heart = Heartbeat(student, TRAINER, "somewhere-1")
            saver.get_transition()
            heart.stop()
            saver.get_transition()
        saver.close()
        assert "trainer somewhere-1" in caplog.text
        assert "is running" in caplog.text
        assert "has finished" in caplog.text


class TestInterface:
    def test_rejects_missing_teacher(self, student, tmp_path):
        for arguments in ({}, {"policy": None}):
            with pytest.raises(TypeError, match="teacher"):
                DaggerSaver(RecordingEnv(), save_dir=tmp_path, training_policy_logdir=student, **arguments)
        for positional in ((None, tmp_path), (tmp_path,), (str(tmp_path),)):
            with pytest.raises(TypeError, match="teacher"):
                DaggerSaver(RecordingEnv(), *positional, training_policy_logdir=student)

    def test_documented_import(self):
        from st_rl.datasets.dagger_saver import DaggerSaver as documented

        assert documented is DaggerSaver
        module = importlib.import_module("st_rl.datasets.dagger_saver")
        with pytest.raises(AttributeError, match="nothing"):
            _ = module.nothing

    def test_error_names_missing_student(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"config\.json"):
            make_saver(tmp_path / "nobody", tmp_path / "data").init_traj_handlers()

    def test_metadata_and_episode_infos(self, student, tmp_path, capsys):
        folder = tmp_path / "collector_7_extra_words"
        saver = make_saver(student, folder, log_to_tensorboard=True, action_sample_std=0.1)
        saver.collect_and_save()
        metadata = json.loads((folder / "metadata.json").read_text())
        assert metadata["training_policy_logdir"] == str(student)
        assert (metadata["update_times_scale"], metadata["action_sample_std"]) == (5000, 0.1)
        assert list((student / "collector_collector_7").glob("events*"))
        assert "Episode/echo_error" in capsys.readouterr().out
        assert saver.rollout_episode_infos == []

    def test_every_episode_tag_starts_with_episode(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data")
        tags = {}
        saver.tb_writer = SimpleNamespace(
            add_scalar=lambda tag, value, step: tags.update({tag: value}), close=lambda: None
        )
        saver.rollout_episode_infos = [{"reward": 1.0, "Curriculum/level": 2.0}]
        saver.print_log()
        assert tags == {"Episode/reward": 1.0, "Episode/Curriculum/level": 2.0}

    def test_print_log_without_episodes(self, student, tmp_path):
        saver = make_saver(student, tmp_path / "data")
        saver.print_log()
        assert saver.training_policy_iteration == 1

    def test_overridden_student_starts_at_iteration_0(self, tmp_path):
        class OwnStudent(DaggerSaver):
            def build_training_policy(self):
                self.training_policy = EchoPolicy()

        settings = {"rollout_storage_length": 5, "min_timesteps": 20, "min_episodes": 0}
        env = RecordingEnv(num_envs=4)
        saver = OwnStudent(env, EchoPolicy(), tmp_path / "data", training_policy_logdir=tmp_path, **settings)
        saver.collect_and_save()
        assert saver.use_teacher_act_mask.all()  # "exp" is 1 at iteration 0
        assert saver.total_timesteps == 20

    def test_stepping_without_collect_and_save(self, student, tmp_path):
        env = RecordingEnv(num_envs=4)
        saver = make_saver(student, tmp_path / "data", env, teacher_act_prob="exp")
        saver.init_traj_handlers()
        for step_i in range(7):
            *_, dones, infos, _, _ = saver.get_transition()
            saver.add_transition(step_i, infos)
            saver.policy_reset(dones)
        saver.close()
        assert saver.total_timesteps == 28
