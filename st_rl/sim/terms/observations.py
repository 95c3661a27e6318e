"""Observation terms of walking tasks: functions of the task that return `(N, width)` in SI units."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk import LeggedWalk


def base_lin_vel(task: "LeggedWalk") -> torch.Tensor:
    """`(N, 3)` linear velocity of the base in its own frame, m/s."""
    return task.base_lin_vel


def base_ang_vel(task: "LeggedWalk") -> torch.Tensor:
    """`(N, 3)` angular velocity of the base in its own frame, rad/s."""
    return task.base_ang_vel


def projected_gravity(task: "LeggedWalk") -> torch.Tensor:
    """`(N, 3)` direction of gravity in the frame of the base."""
    return task.projected_gravity


def joint_pos(task: "LeggedWalk") -> torch.Tensor:
    """`(N, J)` joint positions relative to the default pose, rad."""
    return task.joint_offset


def joint_vel(task: "LeggedWalk") -> torch.Tensor:
    """`(N, J)` rad/s."""
    return task.joint_vel


def commands(task: "LeggedWalk") -> torch.Tensor:
    """`(N, 3)` commanded velocities: m/s, m/s, rad/s."""
    return task.commands


def actions(task: "LeggedWalk") -> torch.Tensor:
    """`(N, J)` last action."""
    return task.actions


def clock(task: "LeggedWalk") -> torch.Tensor:
    """`(N, 2)` sine and cosine of the gait clock; zeros for a robot that stands."""
    return task.clock()


def base_height(task: "LeggedWalk") -> torch.Tensor:
    """`(N, 1)` m."""
    return task.base_height


def foot_contact(task: "LeggedWalk") -> torch.Tensor:
    """`(N, F)` 1 for a foot that touches something."""
    return task.foot_contact.float()


def foot_height(task: "LeggedWalk") -> torch.Tensor:
    """`(N, F)` height of the soles above the ground, m."""
    return task.foot_height


def properties(task: "LeggedWalk") -> torch.Tensor:
    """`(N, 4)` randomized friction, base mass, motor strength and latency."""
    return task.properties


def num_joints(task: "LeggedWalk") -> int:
    """`J`, the width of a joint quantity."""
    return task.robot.num_joints


def num_feet(task: "LeggedWalk") -> int:
    """`F`, the width of a foot quantity."""
    return len(task.robot.feet)
