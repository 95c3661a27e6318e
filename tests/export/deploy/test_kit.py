"""The kit: files that agree with each other and with torch."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

from st_rl.export.deploy import OnnxStep, kit, replay_golden
from st_rl.export.deploy.leapp_bundle import LeappStep
from st_rl.export.onnx_file import ExportError
from tests.export.deploy.kits import make_golden_task, make_kit, make_policy

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits") / "kit"
    task = make_golden_task()
    make_kit(folder, task, make_policy(task, "ActorCriticRecurrent", rnn_hidden_size=8))
    return folder


def test_onnx_replays_golden_run(folder):
    step, golden = OnnxStep(folder / "policy.onnx"), dict(np.load(folder / "golden.npz"))
    differences = replay_golden(step, golden, step.description)
    assert max(differences.values()) <= 1e-5
    assert golden["joint_targets"].shape == (600, 12)
    golden["joint_pos"] = np.roll(golden["joint_pos"], 1, axis=1)
    assert replay_golden(step, golden, step.description)["joint_targets"] > 1e-3


def test_description_is_the_same_in_both_files_at_full_precision(folder):
    description = yaml.safe_load((folder / "deploy.yaml").read_text())
    assert description == OnnxStep(folder / "policy.onnx").description
    assert json.loads(json.dumps(description)) == description
    task = make_golden_task()
    np.testing.assert_array_equal([j["default_pos"] for j in description["joints"]], task.robot.default_joint_pos)
    np.testing.assert_array_equal([j["stiffness"] for j in description["joints"]], task.robot.stiffness)
    assert [j["name"] for j in description["joints"]] == list(task.robot.joint_names)
    assert description["inputs"]["orientation"] == {
        "shape": [4], "unit": "unit quaternion w, x, y, z", "meaning": "rotation from the base to the world, z up"
    }  # fmt: skip


def test_checksums_hold_and_notice_changes(folder):
    command = ["sha256sum", "--check", "--quiet", "checksums.sha256"]
    assert subprocess.run(command, cwd=folder).returncode == 0
    listed = {line.split()[1] for line in (folder / "checksums.sha256").read_text().splitlines()}
    assert listed == {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {"checksums.sha256"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no DISPLAY")
def test_simulation_says_that_there_is_no_display(folder):
    hidden = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}
    command = [sys.executable, str(folder / "simulate.py"), "--view"]
    outcome = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **hidden})
    assert (outcome.returncode, outcome.stderr) == (2, "")
    assert outcome.stdout.startswith("--view needs a display")


def test_rejects_file_that_differs(tmp_path, monkeypatch):
    write_policy = kit.write_policy

    def write_other(policy, path, description):
        policy.interface.action_scale.mul_(1.01)
        write_policy(policy, path, description)

    monkeypatch.setattr(kit, "write_policy", write_other)
    task = make_golden_task()
    with pytest.raises(ExportError, match=r"policy.onnx differs from the policy by .* rad"):
        make_kit(tmp_path / "kit", task, make_policy(task))
    assert list(tmp_path.iterdir()) == []


def test_leapp_bundle_replays_golden_run(tmp_path):
    pytest.importorskip("leapp")
    task = make_golden_task()
    trained = make_policy(task, "ActorCriticRecurrent", rnn_type="gru", rnn_hidden_size=8)
    description = make_kit(tmp_path / "kit", task, trained, with_leapp=True)
    with np.load(tmp_path / "kit" / "golden.npz") as arrays:
        golden = dict(arrays)
    step = LeappStep(tmp_path / "kit" / "leapp")
    assert replay_golden(step, golden, description)["joint_targets"] <= 1e-5
    bundle = yaml.safe_load((tmp_path / "kit" / "leapp" / "leapp.yaml").read_text())
    inputs = {signal["name"]: signal for signal in bundle["models"]["policy"]["inputs"]}
    assert inputs["joint_pos"]["element_names"] == [[joint["name"] for joint in description["joints"]]]
    assert inputs["orientation"]["unit"] == "unit quaternion w, x, y, z"


def test_policy_without_joint_velocities_has_guards(tmp_path, monkeypatch):
    table = type(make_golden_task(num_envs=1)).OBSERVATIONS
    monkeypatch.setitem(table, "joint_vel", dataclasses.replace(table["joint_vel"], privileged=True))
    task = make_golden_task()
    description = make_kit(tmp_path / "kit", task, make_policy(task))
    assert "joint_vel" not in description["inputs"]
    assert description["guards"]["max_joint_vel"] == [30.0] * 12
