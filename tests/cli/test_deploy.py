"""`st-rl deploy` writes, checks and compares kits."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

from st_rl.cli import main
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.tasks import make_task

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")


ROUGH = "quadruped-rough"


def train(folder, *options: str, task: str = "quadruped-walk") -> str:
    """A training of one iteration."""
    small = ["--iterations", "1", "--num-envs", "4", "--runner.num-steps-per-env", "8", "--runner.engine", "eager"]
    assert main(["train", task, *small, "--log-dir", str(folder), *options]) == 0
    return str(folder)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    assert main(["deploy", train(folder / "run", "--env.deployable"), str(folder / "kit")]) == 0
    return folder / "kit"


def test_deployable_run_becomes_kit(kit):
    description = yaml.safe_load((kit / "deploy.yaml").read_text())
    assert list(description["inputs"]) == ["joint_pos", "joint_vel", "base_ang_vel", "orientation", "command"]
    assert description["task"] == "quadruped-walk"
    names = {path.relative_to(kit).as_posix() for path in kit.rglob("*") if path.is_file()}
    assert names >= {"policy.onnx", "golden.npz", "report.html", "README.md", "simulate.py", "robot/robot.xml"}


def test_simulates_without_this_library_and_log_has_no_fault(kit, tmp_path):
    log = tmp_path / "log.npz"
    # -I: neither the current folder nor PYTHONPATH is searched.
    code = f"import sys; sys.argv = ['simulate.py', '--seconds', '1', '--log', {str(log)!r}]; import runpy\n"
    code += f"try: runpy.run_path({str(kit / 'simulate.py')!r}, run_name='__main__')\n"
    code += "finally: assert not [name for name in sys.modules if name.split('.')[0] in ('torch', 'st_rl')]"
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert "measured" in result.stdout, result.stderr
    assert main(["deploy", "compare", str(kit), str(log)]) == 0
    with np.load(log) as arrays:
        broken = {**arrays, "orientation": arrays["orientation"] * 2}
    np.savez_compressed(log, **broken)
    assert main(["deploy", "compare", str(kit), str(log)]) == 1


def test_check_prints_table_and_fails_changed_kit(kit, tmp_path, capsys):
    main(["deploy", "check", str(kit), "--num-robots", "1", "--seconds", "0.1"])
    assert "pass  golden run: policy.onnx" in capsys.readouterr().out
    (tmp_path / "checksums.sha256").write_text(f"{'0' * 64}  policy.onnx\n")
    assert main(["deploy", "check", str(tmp_path)]) == 1
    assert "policy.onnx is missing" in capsys.readouterr().out
    assert main(["deploy", "check", str(tmp_path / "other")]) == 2


def test_walks_of_a_check_start_as_those_of_the_evaluation(tmp_path, monkeypatch):
    run, starts = train(tmp_path / "run", "--env.deployable", task=ROUGH), []
    hold_commands = LeggedWalk.hold_commands

    def record_start(task, commands):
        starts.append((task.backend.qpos.clone(), task.backend.qvel.clone()))
        hold_commands(task, commands)

    monkeypatch.setattr(LeggedWalk, "hold_commands", record_start)
    size = ["--num-envs", "3", "--seconds", "1.1", "--push-speed", "0", "--seed", "5"]
    assert main(["eval", run, *size]) == 0
    monkeypatch.undo()
    assert main(["deploy", run, str(tmp_path / "kit")]) == 0
    grid = json.loads((tmp_path / "run" / "eval.json").read_text())["grid"]["fine physics"]
    with np.load(tmp_path / "kit" / "golden.npz") as golden:
        for name, start in zip(("qpos", "qvel"), starts[-1]):
            np.testing.assert_array_equal(golden[f"evaluation_{name}"], start.numpy())
        for name in ("command", "velocity", "fell"):
            np.testing.assert_array_equal(golden[f"evaluation_{name}"], np.array(grid[name], float))
    # On rough ground a knee is no fall, in neither.
    fall = yaml.safe_load((tmp_path / "kit" / "deploy.yaml").read_text())["fall"]
    assert fall["contact_sensors"] == make_task(ROUGH, 1).robot.model.sensor("trunk_contact").adr.tolist()
    assert fall["max_tilt_rad"] == pytest.approx(np.deg2rad(60))


def test_rejects_unmeasurable_observations_with_three_fixes(tmp_path, capsys):
    run = train(tmp_path / "run")
    assert main(["deploy", run, str(tmp_path / "kit")]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "what joint sensors, IMU and foot contacts do not measure: base_lin_vel" in error
    for way in ("st-rl train quadruped-walk --env.deployable", "StateAc", "st-rl distill", "--allow-estimates"):
        assert way in error
    assert main(["deploy", run, str(tmp_path / "kit"), "--allow-estimates"]) == 0
    signal = yaml.safe_load((tmp_path / "kit" / "deploy.yaml").read_text())["inputs"]["base_lin_vel"]
    assert (signal["must_be_estimated"], signal["unit"]) == (True, "m/s in the frame base")
    assert main(["deploy", run, str(tmp_path / "kit"), "--allow-estimates"]) == 2


def test_estimated_velocity_is_no_input(tmp_path):
    settings = ['policy.estimator_target_components=["base_lin_vel"]', "policy.replace_state_prob=1.0"]
    classes = ["--policy.class-name", "StateAc", "--algorithm.class-name", "EstimatorPPO"]
    run = train(tmp_path / "run", *classes, "--set", *settings)
    assert main(["deploy", run, str(tmp_path / "kit")]) == 0
    assert "base_lin_vel" not in yaml.safe_load((tmp_path / "kit" / "deploy.yaml").read_text())["inputs"]


def test_rejects_task_without_joint_targets(tmp_path, capsys):
    assert main(["deploy", train(tmp_path / "run", task="balance"), str(tmp_path / "kit")]) == 1
    assert "st-rl export" in capsys.readouterr().err
