"""Reward terms: functions of the task that return `(N,)`; the task's table gives their weights."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk import LeggedWalk
    from st_rl.sim.envs.motion_tracking import MotionTracking

# Squared error at which a tracking reward is 1/e, (m/s)^2 or (rad/s)^2.
TRACKING_SCALE = 0.15
# Desired base height as a fraction of that of the default pose.
WALKING_HEIGHT = 0.9

# Walking.


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


# Motion tracking.


def anchor_pos(task: "MotionTracking") -> torch.Tensor:
    """`exp(-error^2 / scale^2)` of the position of the anchor."""
    return torch.exp(-(task.anchor_pos_error / task.cfg.scales.anchor_pos).square())


def anchor_rot(task: "MotionTracking") -> torch.Tensor:
    """`exp(-error^2 / scale^2)` of the orientation of the anchor."""
    return torch.exp(-(task.anchor_rot_error / task.cfg.scales.anchor_rot).square())


def body_pos(task: "MotionTracking") -> torch.Tensor:
    """`exp(-mean square error / scale^2)` of the positions of the bodies relative to the anchor."""
    return torch.exp(-(task.body_pos_distance / task.cfg.scales.body_pos).square().mean(dim=1))


def body_rot(task: "MotionTracking") -> torch.Tensor:
    """`exp(-mean square error / scale^2)` of the orientations of the bodies relative to the heading of the anchor."""
    return torch.exp(-(task.body_rot_angle / task.cfg.scales.body_rot).square().mean(dim=1))


def body_lin_vel(task: "MotionTracking") -> torch.Tensor:
    """`exp(-mean square error / scale^2)` of the linear velocities of the bodies."""
    return torch.exp(-(task.body_lin_vel_distance / task.cfg.scales.body_lin_vel).square().mean(dim=1))


def body_ang_vel(task: "MotionTracking") -> torch.Tensor:
    """`exp(-mean square error / scale^2)` of the angular velocities of the bodies."""
    return torch.exp(-(task.body_ang_vel_distance / task.cfg.scales.body_ang_vel).square().mean(dim=1))


def joint_limits(task: "MotionTracking") -> torch.Tensor:
    """Sum of the angles by which joints leave the inner `cfg.soft_joint_range` of their range, rad."""
    low, high = task.soft_joint_limits
    return ((low - task.joint_pos).clamp_(min=0.0) + (task.joint_pos - high).clamp_(min=0.0)).sum(dim=1)


def unwanted_contacts(task: "MotionTracking") -> torch.Tensor:
    """Number of geoms on the ground that should not be: base and knees, or those that a description names."""
    return (task.fall_contacts > 0).float().sum(dim=1)
