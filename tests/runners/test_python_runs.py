"""Run folders of trainings started from Python work with the commands."""

import importlib.metadata
import json
from pathlib import Path

import pytest
import torch

from st_rl.cli import main
from st_rl.env import ObservationHistory
from st_rl.runners import OnPolicyRunner
from tests.fakes import EchoEnv
from tests.runners.training import make_runner, small_config


def read_run(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


class TestRunFile:
    def test_own_environment(self, tmp_path):
        torch.manual_seed(7)
        runner = make_runner(EchoEnv(num_envs=3), log_dir=tmp_path)
        assert not (tmp_path / "run.json").exists()
        runner.learn(2)
        runner.close()
        content = read_run(tmp_path)
        assert (content["task"], content["environment"]) == (None, "tests.fakes.EchoEnv")
        assert (content["num_envs"], content["seed"], content["iterations"]) == (3, 7, 2)
        assert content["versions"]["torch"] == importlib.metadata.version("torch")
        assert content["machine"]["cores"] >= 1
        assert set(content["git"]) <= {"commit", "changed"}
        runner.learn(3)
        assert read_run(tmp_path) == {**content, "iterations": 5}

    def test_resumed_run_keeps_its_file(self, tmp_path):
        runner = make_runner(log_dir=tmp_path)
        runner.learn(1)
        runner.close()
        content = {**read_run(tmp_path), "note": "mine"}
        (tmp_path / "run.json").write_text(json.dumps(content))
        again = make_runner(log_dir=tmp_path)
        again.load(tmp_path / "model_1.pt")
        again.learn(1)
        assert read_run(tmp_path) == content

    def test_settings_are_added(self, tmp_path):
        runner = make_runner(log_dir=tmp_path)
        runner.run_settings = {"task": "my-task", "note": [1, 2]}
        runner.learn(1)
        assert (read_run(tmp_path)["task"], read_run(tmp_path)["note"]) == ("my-task", [1, 2])

    def test_built_in_task(self, tmp_path):
        pytest.importorskip("mujoco")
        from st_rl.sim.tasks import make_task

        env = make_task("balance", 4, seed=3, **{"episode_length_s": 4.0})
        OnPolicyRunner(env, small_config(), log_dir=tmp_path).learn(1)
        content = read_run(tmp_path)
        assert content["task"] == "balance"
        assert content["task_config"]["episode_length_s"] == 4.0
        assert "joint_names" in content["policy_metadata"]

    def test_wrapped_task_is_recorded_as_own_environment(self, tmp_path):
        pytest.importorskip("mujoco")
        from st_rl.sim.tasks import make_task

        OnPolicyRunner(ObservationHistory(make_task("balance", 4), 2), small_config(), log_dir=tmp_path).learn(1)
        assert read_run(tmp_path)["task"] is None

    def test_gymnasium_environment_by_id(self, tmp_path):
        pytest.importorskip("gymnasium")
        from st_rl.env import make_gymnasium

        OnPolicyRunner(make_gymnasium("Pendulum-v1", num_envs=2), small_config(), log_dir=tmp_path).learn(1)
        content = read_run(tmp_path)
        assert content["task"] == "gym:Pendulum-v1"
        assert content["task_config"]["num_envs"] == 2
        with_settings = make_gymnasium("Pendulum-v1", num_envs=2, g=5.0)
        assert with_settings.task_id is None


class TestCommandsOnBuiltInTask:
    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, tmp_path_factory) -> Path:
        pytest.importorskip("mujoco")
        from st_rl.sim.tasks import make_task

        folder = tmp_path_factory.mktemp("python") / "run"
        runner = OnPolicyRunner(make_task("balance", 4), small_config(empirical_normalization=True), log_dir=folder)
        runner.learn(2)
        runner.close()
        return folder

    def test_eval_report_and_export(self, run, capsys):
        assert main(["eval", str(run), "--num-envs", "4", "--seconds", "1"]) == 0, capsys.readouterr().err
        assert json.loads((run / "eval.json").read_text())["task"] == "balance"
        assert main(["export", str(run)]) == 0, capsys.readouterr().err
        assert main(["report", str(run)]) == 0, capsys.readouterr().err
        assert "st-rl play" in capsys.readouterr().out

    def test_resume(self, run, capsys):
        assert main(["resume", str(run), "--iterations", "1"]) == 0, capsys.readouterr().err
        assert (run / "model_3.pt").is_file()
        assert read_run(run)["iterations"] == 3


class TestCommandsOnOwnEnvironment:
    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, tmp_path_factory) -> Path:
        folder = tmp_path_factory.mktemp("own") / "run"
        runner = make_runner(log_dir=folder)
        runner.learn(2)
        runner.close()
        return folder

    def test_report_and_export_work(self, run, capsys):
        assert main(["export", str(run)]) == 0, capsys.readouterr().err
        assert main(["report", str(run)]) == 0, capsys.readouterr().err
        assert "st-rl eval" not in capsys.readouterr().out
        assert "tests.fakes.EchoEnv" in (run / "report.html").read_text()

    @pytest.mark.parametrize("command", ["eval", "play", "resume", "collect"])
    def test_other_commands_explain_why_not(self, run, command, capsys):
        assert main([command, str(run), *(["--no-viewer"] if command == "play" else [])]) == 1
        error = capsys.readouterr().err
        assert "was trained from Python on tests.fakes.EchoEnv, which st-rl cannot build" in error
        assert "load_policy" in error


class TestExport:
    def test_exported_file_acts_as_policy(self, tmp_path):
        runtime = pytest.importorskip("onnxruntime")
        runner = make_runner(config=small_config(empirical_normalization=True))
        runner.learn(2)
        report = runner.export(tmp_path / "walk.onnx")
        assert report.largest_difference < 1e-5
        obs = torch.randn(5, runner.env.num_obs)
        session = runtime.InferenceSession(str(tmp_path / "walk.onnx"))
        (actions,) = session.run(["actions"], {"obs": obs.numpy()})
        with torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(actions), runner.get_inference_policy()(obs), atol=1e-5, rtol=0)
        assert json.loads((tmp_path / "walk.json").read_text())["metadata"]["iteration"] == 2

    def test_training_continues_unchanged(self, tmp_path):
        pytest.importorskip("onnxruntime")
        weights = []
        for exports in (False, True):
            torch.manual_seed(0)
            runner = make_runner()
            runner.learn(1)
            if exports:
                runner.export(str(tmp_path / "policy.onnx"))
            runner.learn(1)
            weights.append(runner.alg.actor_critic.state_dict())
        torch.testing.assert_close(*weights, rtol=0, atol=0)
