"""The check of a kit passes for a good one, and names what is wrong with another."""

import shutil
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml

from tests.export.deploy.kits import make_golden_task, make_kit, make_policy

pytest.importorskip("mujoco")
pytest.importorskip("onnxscript")

from st_rl.env.utils import split_step
from st_rl.export.deploy.check import check_kit, run_robots
from st_rl.export.deploy.files import simulate
from st_rl.export.deploy.kit import write_checksums


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A kit of a policy that stands."""
    task = make_golden_task()
    trained = make_policy(task)
    for parameter in trained.actor_critic.actor[-1].parameters():
        parameter.mul_(0.02)
    folder = tmp_path_factory.mktemp("kits") / "kit"
    make_kit(folder, task, trained)
    return folder


@pytest.fixture
def copy(kit, tmp_path):
    return shutil.copytree(kit, tmp_path / "kit")


def rows(folder, **settings):
    return {result.name: result for result in check_kit(folder, num_robots=2, seconds=1.0, **settings)}


def test_good_kit_passes_every_check(kit):
    results = rows(kit)
    assert [name for name, result in results.items() if result.passed is False] == []
    assert results["golden run: policy.onnx"].passed
    assert results["golden run: policy.hpp"].passed is (
        True if shutil.which("g++") or shutil.which("clang++") else None
    )
    assert results["golden run: controller.py"].passed
    assert results["walk: undisturbed"].passed
    assert results["walk: noise, 20 ms delay"].detail.startswith("0 of 2 fell")


def test_names_changed_and_missing_files(copy):
    (copy / "simulate.py").write_text("print()")
    (copy / "README.md").unlink()
    (result,) = check_kit(copy)
    assert result.passed is False
    assert "simulate.py was changed" in result.detail
    assert "README.md is missing" in result.detail


def test_notices_header_of_another_policy(copy):
    header = (copy / "policy.hpp").read_text()
    (copy / "policy.hpp").write_text(header.replace("sum[j] = b[j]", "sum[j] = 2.0f * b[j]"))
    write_checksums(copy)
    result = rows(copy)["golden run: policy.hpp"]
    assert result.passed is False
    assert result.detail == "it is not the translation of policy.onnx"


def test_notices_description_of_another_joint_order(copy):
    description = yaml.safe_load((copy / "deploy.yaml").read_text())
    description["joints"] = description["joints"][::-1]
    (copy / "deploy.yaml").write_text(yaml.safe_dump(description))
    write_checksums(copy)
    result = rows(copy)["deploy.yaml = metadata of policy.onnx"]
    assert (result.passed, result.detail) == (False, "differ in joints")


def test_notices_golden_run_of_another_policy(copy):
    with np.load(copy / "golden.npz") as arrays:
        golden = dict(arrays)
    golden["joint_targets"] = golden["joint_targets"] + np.float32(2e-5)
    np.savez_compressed(copy / "golden.npz", **golden)
    write_checksums(copy)
    results = rows(copy)
    assert results["golden run: policy.onnx"].passed is False
    assert results["golden run: controller.py"].passed is False


def test_notices_controller_of_another_version(copy):
    with (copy / "controller.py").open("a") as file:
        file.write("# changed")
    write_checksums(copy)
    result = rows(copy)["golden run: controller.py"]
    assert (result.passed, result.detail.split(";")[0]) == (False, "not the file of this version of st_rl")


def test_fails_robot_that_falls(copy):
    xml = (copy / "robot" / "robot.xml").read_text()
    weak = xml.replace('gainprm="35" biasprm="0 -35 -0.5"', 'gainprm="1" biasprm="0 -1 -0.5"')
    assert weak != xml
    (copy / "robot" / "robot.xml").write_text(weak)
    write_checksums(copy)
    result = rows(copy)["walk: undisturbed"]
    assert result.passed is False
    assert not result.detail.startswith("0 of 2 fell")


def with_evaluation(kit, commands, velocities, fell):
    """Write an evaluation of robots that start as those of the golden run into a kit."""
    golden, count = dict(np.load(kit / "golden.npz")), len(commands)
    arrays = {"command": commands, "velocity": velocities, "fell": np.array(fell)}
    arrays |= {name: golden[f"start_{name}"][:count] for name in ("qpos", "qvel")}
    np.savez_compressed(kit / "golden.npz", **golden, **{f"evaluation_{name}": array for name, array in arrays.items()})
    write_checksums(kit)


def test_velocity_error_is_limited_by_that_of_the_same_robots(kit, tmp_path):
    # Robots that stand: they miss a command of 0.5 m/s by about as much.
    commands = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    for error, passed in ((0.5, True), (0.05, False)):
        velocities = commands - [[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [error, 0.0, 0.0]]
        copy = shutil.copytree(kit, tmp_path / f"kit{error}")
        with_evaluation(copy, commands, velocities, fell=[False] * 3)
        # The first and the last of the three robots.
        result = rows(copy)["walk: undisturbed"]
        assert result.passed is passed
        assert f"(forward at most {1.2 * error / 2:.3f}; 0 fell in st-rl eval)" in result.detail


def test_robots_that_fell_in_the_evaluation_do_not_count(copy):
    commands = np.array([[0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    with_evaluation(copy, commands, commands - [[0.1, 0.0, 0.0], [0.0, 0.0, 0.0]], fell=[False, True])
    result = rows(copy)["walk: undisturbed"]
    # The second robot stands instead of walking at 0.5 m/s.
    assert result.passed
    assert "(forward at most 0.120; 1 fell in st-rl eval)" in result.detail


def test_touching_knee_is_a_fall_as_in_the_task(kit):
    """A robot on its knees, with level base and feet behind it."""
    task = make_golden_task(num_envs=1)
    policy = simulate.Policy(kit / "policy.onnx")
    robot = simulate.SimulatedRobot(policy.deploy, kit / "robot" / "robot.xml", simulate.Disturbance())
    qpos = task.robot.default_qpos.copy()
    qpos[list(task.robot.qpos_indices)] = np.tile([0.0, 0.0, -1.5], 4)
    for base_height, has_fallen in ((0.35, False), (0.2, True)):
        qpos[2] = base_height
        robot.reset(qpos, np.zeros(robot.model.nv))
        bodies = robot.model.geom_bodyid[robot.data.contact.geom]
        assert robot.model.body(task.describe_io()["base_body"]).id not in bodies
        assert robot.has_fallen is has_fallen
        start = torch.from_numpy(qpos)[None].float(), torch.zeros(1, robot.model.nv)
        task.backend.reset(torch.ones(1, dtype=torch.bool), *start)
        dones = split_step(task.step(torch.zeros(1, 12))).dones
        assert bool(dones) is has_fallen


class Fallen(NamedTuple):
    fell: bool


def moved(falling, count, num_first, may_fall=True):
    """The numbers of the robots that move if those of the set `falling` fall."""
    return list(run_robots(lambda number: Fallen(number in falling), count, num_first, may_fall))


def test_all_robots_decide_if_too_many_of_the_first_ones_fall():
    first = [0, 4, 8, 13, 17, 21, 25, 29, 34, 38, 42, 46, 50, 55, 59, 63]
    assert moved(set(), 64, 16) == first
    assert moved({0, 1, 2, 3, 5, 6}, 64, 16) == first
    assert moved({0, 63}, 64, 16) == [*first, *(number for number in range(64) if number not in first)]
    assert moved({0, 63}, 64, 16, may_fall=False) == first
    assert moved({0, 1, 2}, 3, 5) == [0, 1, 2, 3, 4]


def test_rejects_kit_of_another_format(copy):
    text = (copy / "deploy.yaml").read_text()
    (copy / "deploy.yaml").write_text(text.replace("format: 3", "format: 2"))
    write_checksums(copy)
    results = rows(copy)
    assert results["format"].detail == "format 2 of deploy.yaml, this st_rl reads 3: write the kit again"
    assert list(results) == ["files and checksums", "format"]
