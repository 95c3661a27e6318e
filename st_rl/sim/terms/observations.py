"""Observations that the simulation and the deployed policy compute with the same code.

The terms of motion tracking take a `MotionTracking`, or the `TrackedState` of a deployed robot: `N` robots, `J` joints,
`B` tracked bodies, `K` future frames.
"""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from st_rl.sim.deploy.tracking_interface import TrackedState
    from st_rl.sim.envs.motion_tracking import MotionTracking

# Walking.


def gait_clock(
    phase: torch.Tensor, moving: torch.Tensor, quarter_turn: torch.Tensor, full_turn: torch.Tensor
) -> torch.Tensor:
    """`(N, 2)` sine and cosine of the gait clock `phase` `(N,)`; zeros where `moving` `(N,)` is False.

    `quarter_turn` is the tensor `(0, pi / 2)`, `full_turn` is `2 pi`: constants on the device.
    """
    angle = torch.addcmul(quarter_turn, phase[:, None], full_turn)
    return angle.sin_().mul_(moving[:, None])


def zero_small_commands(commands: torch.Tensor, threshold: float) -> torch.Tensor:
    """The commands `(N, 3)`, zero where their norm is at most `threshold`."""
    return commands * (commands.norm(dim=1, keepdim=True) > threshold)


def yaw_angle(orientation: torch.Tensor) -> torch.Tensor:
    """`(N,)` yaw of quaternions `(N, 4)` (w, x, y, z), from the world's x axis to the left, rad."""
    w, x, y, z = orientation.unbind(1)
    forward = torch.stack([1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)], dim=1)
    return torch.atan2(forward[:, 1], forward[:, 0])


# Motion tracking.


def reference_joint_pos(task: "MotionTracking | TrackedState") -> torch.Tensor:
    """`(N, J)` joint positions of the next frame of the clip, relative to the default pose."""
    return task.next_frame.joint_pos - task.default_joint_pos


def reference_joint_vel(task: "MotionTracking | TrackedState") -> torch.Tensor:
    """`(N, J)` joint velocities of the next frame of the clip."""
    return task.next_frame.joint_vel


def anchor_pos(task: "MotionTracking") -> torch.Tensor:
    """`(N, 3)` position of the anchor in the next frame, from the anchor of the robot."""
    return in_frame(task.anchor_rot, task.next_frame.anchor_pos - task.anchor_pos)


def anchor_rot(task: "MotionTracking | TrackedState") -> torch.Tensor:
    """`(N, 6)` two columns of the rotation of the anchor in the next frame, from the anchor of the robot."""
    return in_frame(task.anchor_rot[:, None], task.next_frame.anchor_rot.mT).mT[..., :2].flatten(1)


def future_joint_pos(task: "MotionTracking | TrackedState") -> torch.Tensor:
    """`(N, K J)` joint positions of the future frames, relative to the default pose."""
    return (task.future_frames().joint_pos - task.default_joint_pos).flatten(1)


def future_anchor(task: "MotionTracking | TrackedState") -> torch.Tensor:
    """`(N, 9 K)` position and two columns of the rotation of the anchor in the future frames, from the next frame."""
    now, future = task.next_frame, task.future_frames()
    pos = in_frame(now.anchor_rot[:, None], future.anchor_pos - now.anchor_pos[:, None])
    rot = in_frame(now.anchor_rot[:, None, None], future.anchor_rot.mT).mT
    return torch.cat([pos, rot[..., :2].flatten(2)], dim=2).flatten(1)


def body_pos(task: "MotionTracking") -> torch.Tensor:
    """`(N, 3 B)` positions of the tracked bodies, from the anchor."""
    return in_frame(task.anchor_rot[:, None], task.bodies.pos[:, :-1] - task.anchor_pos[:, None]).flatten(1)


def body_rot(task: "MotionTracking") -> torch.Tensor:
    """`(N, 6 B)` two columns of the rotations of the tracked bodies, from the anchor."""
    return in_frame(task.anchor_rot[:, None, None], task.bodies.rot[:, :-1].mT).mT[..., :2].flatten(1)


def in_frame(frame: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """World vectors `(..., 3)` in a frame `(..., 3, 3)`; a sum of products, because a GPU may round matrix products."""
    return (frame * vectors[..., None]).sum(dim=-2)
