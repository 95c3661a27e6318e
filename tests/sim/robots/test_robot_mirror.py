"""Mirror images of joints, measured on the model."""

import numpy as np
import pytest

from st_rl.modules.symmetry import joint_mirror
from st_rl.sim.robots import Robot, robot_path
from tests.sim.robots.foreign_robots import torque_quadruped


@pytest.mark.parametrize("name", ["quadruped", "humanoid"])
def test_mirror_of_built_in_robots_matches_names(name):
    robot = Robot.from_mjcf(robot_path(name))
    by_name = joint_mirror(robot.joint_names)
    mirror = robot.mirror()
    assert list(mirror.joints) == by_name.permutation.tolist()
    assert list(mirror.signs) == by_name.signs.int().tolist()
    sides = [foot.name.replace("right", "left").replace("FR", "FL").replace("RR", "RL") for foot in robot.feet]
    assert all(sides[i] == sides[partner] and i != partner for i, partner in enumerate(mirror.feet))


def test_signs_follow_the_axes_of_the_file_and_not_the_names(tmp_path):
    path = tmp_path / "robot.xml"
    text = torque_quadruped(("rr", "fl", "fr", "rl"))
    path.write_text(text.replace('name="fr_hip" axis="0 1 0"', 'name="fr_hip" axis="0 -1 0"'))
    robot = Robot.from_mjcf(path)
    mirror = robot.mirror()
    names = robot.joint_names
    partner = {name: names[i] for name, i in zip(names, mirror.joints)}
    assert partner == {
        f"{leg}_{j}": f"{leg[0]}{'rl'[leg[1] == 'r']}_{j}" for leg in ("rr", "fl", "fr", "rl") for j in ("hip", "shank")
    }
    assert dict(zip(names, mirror.signs)) == {name: -1 if name in ("fr_hip", "fl_hip") else 1 for name in names}


def test_asymmetric_robot_error_names_joint(tmp_path):
    path = tmp_path / "robot.xml"
    path.write_text(torque_quadruped().replace('name="fl_upper" pos="0.2 0.12 0"', 'name="fl_upper" pos="0.1 0.12 0"'))
    with pytest.raises(ValueError, match=r"'f[lr]_hip' has no mirror image"):
        Robot.from_mjcf(path).mirror()
    robot = Robot.from_mjcf(robot_path("quadruped"))
    robot.default_qpos[robot.qpos_indices[1]] += 0.01
    with pytest.raises(ValueError, match=r"no mirror symmetry at 'F[LR]_thigh_joint'"):
        robot.mirror()
    np.testing.assert_allclose(robot.default_joint_pos[4], 0.9)
