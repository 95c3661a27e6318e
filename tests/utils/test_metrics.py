import math

import pytest
import torch

from st_rl.utils.metrics import cost_of_transport, lin_vel_rmsd


def test_velocity_error_uses_the_forward_axis_only():
    actual = torch.tensor([[1.0, 9.0, 9.0], [0.0, 9.0, 9.0]])
    command = torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    assert lin_vel_rmsd(actual, command).item() == pytest.approx(math.sqrt((1 + 4) / 2))
    assert lin_vel_rmsd(actual, command).shape == ()
    assert lin_vel_rmsd(actual, command, reduce=False).tolist() == [1.0, 2.0]


def test_cost_of_transport_is_power_over_weight_times_speed():
    torque = torch.tensor([[2.0, -3.0], [1.0, 1.0]])
    joint_vel = torch.tensor([[-1.0, 4.0], [2.0, 2.0]])
    velocity = torch.tensor([[3.0, 4.0, 100.0], [0.0, 0.0, 1.0]])
    cost = cost_of_transport(torque, joint_vel, 10.0, velocity)
    assert cost.tolist() == pytest.approx([14.0 / (10 * 9.8 * 5), 4.0 / (10 * 9.8 * 1.0)])
    per_robot = cost_of_transport(torque, joint_vel, torch.tensor([10.0, 20.0]), velocity, g=10.0)
    assert per_robot.tolist() == pytest.approx([14.0 / 500, 4.0 / 200])
