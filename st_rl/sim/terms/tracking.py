"""Rewards and terminations of motion tracking: functions of the task that return `(N,)`."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from st_rl.sim.envs.motion_tracking import MotionTracking


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


def anchor_height(task: "MotionTracking") -> torch.Tensor:
    """Whether the height of the anchor is too far from that of the reference."""
    return task.anchor_height_error > task.cfg.limits.anchor_height


def anchor_tilt(task: "MotionTracking") -> torch.Tensor:
    """Whether the tilt of the anchor is too far from that of the reference."""
    return task.anchor_tilt_error > task.cfg.limits.anchor_tilt


def end_effectors(task: "MotionTracking") -> torch.Tensor:
    """Whether the height of a foot, a hand or the head is too far from that of the reference."""
    return (task.end_effector_height_error > task.cfg.limits.end_effector_height).any(dim=1)
