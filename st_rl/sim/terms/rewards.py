"""Reward terms of walking tasks: functions of the task that return `(N,)`; the task's table gives their weights."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk import LeggedWalk

# Squared error at which a tracking reward is 1/e, (m/s)^2 or (rad/s)^2.
TRACKING_SCALE = 0.15
# Desired base height as a fraction of that of the default pose.
WALKING_HEIGHT = 0.9


def track_lin_vel_xy(task: "LeggedWalk") -> torch.Tensor:
    """`exp(-error^2 / scale)` of the horizontal velocity."""
    return torch.exp(-task.velocity_error[:, :2].square().sum(dim=1) / TRACKING_SCALE)


def track_ang_vel_z(task: "LeggedWalk") -> torch.Tensor:
    """`exp(-error^2 / scale)` of the yaw rate."""
    return torch.exp(-task.velocity_error[:, 2].square() / TRACKING_SCALE)


def alive(task: "LeggedWalk") -> torch.Tensor:
    """One in every step."""
    return torch.ones_like(task.phase)


def lin_vel_z(task: "LeggedWalk") -> torch.Tensor:
    """Squared velocity of the base along its own z axis."""
    return task.base_lin_vel[:, 2].square()


def ang_vel_xy(task: "LeggedWalk") -> torch.Tensor:
    """Squared angular velocity of the base about its horizontal axes."""
    return task.base_ang_vel[:, :2].square().sum(dim=1)


def tilt(task: "LeggedWalk") -> torch.Tensor:
    """Squared sine of the angle between the base and the horizontal."""
    return task.projected_gravity[:, :2].square().sum(dim=1)


def action_rate(task: "LeggedWalk") -> torch.Tensor:
    """Squared change of the action since the last step."""
    return (task.actions - task.last_actions).square().sum(dim=1)


def base_height(task: "LeggedWalk") -> torch.Tensor:
    """Squared distance of the base below the desired height, m^2."""
    return (WALKING_HEIGHT * task.default_height - task.base_height.squeeze(1)).clamp_(min=0.0).square()


def pose(task: "LeggedWalk") -> torch.Tensor:
    """Squared distance of the joints from the default pose."""
    return task.joint_offset.square().sum(dim=1)


def foot_slip(task: "LeggedWalk") -> torch.Tensor:
    """Squared horizontal velocity of feet in contact."""
    return (task.foot_velocity.square().sum(dim=2) * task.foot_contact).sum(dim=1)


def gait(task: "LeggedWalk") -> torch.Tensor:
    """Agreement of the foot contacts with the gait clock, from -1 to 1."""
    return (task.foot_contact == task.foot_stance).float().mean(dim=1) * 2.0 - 1.0


def foot_clearance(task: "LeggedWalk") -> torch.Tensor:
    """Squared distance of swing feet below the height of the gait clock, m^2."""
    return (task.swing_height - task.foot_height).clamp_(min=0.0).mul_(~task.foot_stance).square().sum(dim=1)


def energy(task: "LeggedWalk") -> torch.Tensor:
    """Absolute mechanical power of the joints, W."""
    return (task.torques * task.joint_vel).abs().sum(dim=1)
