"""`TerrainWalk`: the base class of tasks on uneven terrain."""

import pytest
import torch

from st_rl.sim.envs.terrain_walk import hip_offsets, next_levels
from st_rl.sim.robots import Robot, robot_path
from tests.sim.robots.foreign_robots import torque_quadruped


def test_hip_offsets_of_built_in_and_other_robot(tmp_path):
    # Learned policies depend on these numbers of the built-in robot.
    assert hip_offsets(Robot.from_file(robot_path("quadruped"))) == (-0.19, 0.19)
    path = tmp_path / "robot.xml"
    path.write_text(torque_quadruped().replace('pos="0.2 ', 'pos="0.3 '))
    robot = Robot.from_file(path)
    assert hip_offsets(robot) == (-0.2, 0.3)
    assert sorted(robot.hip_positions[:, 1].tolist()) == pytest.approx([-0.12, -0.12, 0.12, 0.12])


def test_next_levels_move_up_down_or_random_after_last():
    level = torch.tensor([0, 0, 1, 2, 2, 2, 2])
    up = torch.tensor([False, True, False, True, True, True, False])
    down = torch.tensor([True, False, True, False, False, False, False])
    uniform = torch.tensor([0.9, 0.9, 0.9, 0.0, 0.5, 0.999999, 0.0])
    assert next_levels(level, up, down, uniform, 3).tolist() == [0, 1, 0, 0, 1, 2, 2]
