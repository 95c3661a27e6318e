"""Terminations: functions of the task that return `(N,)` bool."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk import LeggedWalk
    from st_rl.sim.envs.motion_tracking import MotionTracking
    from st_rl.sim.envs.terrain_walk import TerrainWalk


def touches_ground(task: "LeggedWalk") -> torch.Tensor:
    """Whether the base, or a knee where it counts, is on the ground."""
    return task.has_fallen


def tilted_over(task: "LeggedWalk") -> torch.Tensor:
    """Whether the base leans by more than the task allows."""
    return task.projected_gravity[:, 2] > -task.MAX_TILT_COSINE


def base_too_low(task: "TerrainWalk") -> torch.Tensor:
    """Whether the base is so low that the robot must be in a gap or off its ground."""
    return task.base_height.squeeze(1) < task.cfg.lowest_base


def anchor_height(task: "MotionTracking") -> torch.Tensor:
    """Whether the height of the anchor is too far from that of the reference."""
    return task.anchor_height_error > task.cfg.limits.anchor_height


def anchor_tilt(task: "MotionTracking") -> torch.Tensor:
    """Whether the tilt of the anchor is too far from that of the reference."""
    return task.anchor_tilt_error > task.cfg.limits.anchor_tilt


def end_effectors(task: "MotionTracking") -> torch.Tensor:
    """Whether the height of a foot, a hand or the head is too far from that of the reference."""
    return (task.end_effector_height_error > task.cfg.limits.end_effector_height).any(dim=1)
