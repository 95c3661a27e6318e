"""The command `st-rl robot`: built-in robots, pictures, and robots that cannot be asked to stand."""

import io

import numpy as np
import pytest

from st_rl.cli import main
from st_rl.cli.commands.robot import png
from tests.sim.robots.foreign_robots import FIXED_ARM, torque_quadruped


def test_built_in_quadruped_stands_and_is_described(capsys):
    assert main(["robot", "quadruped", "--seconds", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["1", "FR_thigh_joint", "0.9", "-0.681", "4.5", "35", "0.5", "24", "+4"]
    assert sum(line.startswith("foot ") for line in lines) == 4
    assert lines[-1].startswith("stands for 0.5 s")
    assert main(["robot", "quadruped", "--seconds", "0", "--stiffness", "60"]) == 0
    assert "note: the robot has position servos: --stiffness" in capsys.readouterr().out


def test_torque_robot_needs_gains_to_stand(tmp_path, capsys):
    path = tmp_path / "robot.xml"
    path.write_text(torque_quadruped())
    assert main(["robot", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "stands" not in shown
    assert "note: torque motors: set --stiffness and --damping here" in shown
    assert main(["robot", str(path), "--stiffness", "60", "--damping", "2", "--seconds", "0.5"]) == 0
    assert "stands for 0.5 s" in capsys.readouterr().out
    path.write_text(torque_quadruped().replace('pos="0 0 0.45"', 'pos="0 0 0.45" euler="0.5 0.5 0"'))
    assert main(["robot", str(path), "--stiffness", "0.1", "--damping", "0.1"]) == 0
    assert "falls after" in capsys.readouterr().out


def test_robot_with_fixed_base_is_described(tmp_path, capsys):
    path = tmp_path / "robot.xml"
    path.write_text(FIXED_ARM)
    assert main(["robot", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "1 joint with position servos" in shown
    assert "fixed base" in shown


def test_picture_is_a_png():
    image = pytest.importorskip("PIL.Image")
    frame = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(image.open(io.BytesIO(png(frame)))), frame)
