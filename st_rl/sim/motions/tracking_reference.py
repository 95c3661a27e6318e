"""Clips to track, as states and body poses of a robot on the device of a task."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.datasets.library import load_clips
from st_rl.sim.motions.clip_states import clips_to_qpos_qvel
from st_rl.sim.motions.ground import raise_from_ground
from st_rl.sim.motions.kinematics import BodyStates, Kinematics
from st_rl.sim.motions.prepare import prepare_clip
from st_rl.sim.robots import Robot


class ReferenceFrames(NamedTuple):
    """Frames of clips, in the frame of their clip."""

    joint_pos: Tensor
    """`(..., J)` rad"""
    joint_vel: Tensor
    """`(..., J)` rad/s"""
    anchor_pos: Tensor
    """`(..., 3)` m"""
    anchor_rot: Tensor
    """`(..., 3, 3)`"""

    @classmethod
    def read(cls, table: Tensor, rows: Tensor) -> "ReferenceFrames":
        """The frames at `rows` `(...)` of a table `(F, 2 J + 12)` of all four, side by side."""
        num_joints = (table.shape[1] - 12) // 2
        found = table.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        joint_pos, joint_vel, pos, rot = found.split([num_joints, num_joints, 3, 9], dim=-1)
        return cls(joint_pos, joint_vel, pos, rot.unflatten(-1, (3, 3)))


class TrackingReference:
    """The frames of all clips, one per control step, as rows of tables; read without a host sync.

    Body poses and velocities are computed once, by forward kinematics of the robot's own model.
    """

    def __init__(
        self,
        robot: Robot,
        motions: Sequence[str],
        step_dt: float,
        bodies: Sequence[int],
        anchor: int,
        device: torch.device | str,
    ) -> None:
        """Load motions, named as for `motion_paths`; `bodies` are the ids of the tracked bodies, `anchor` is one too.

        A bad file of a folder is skipped with a warning, any other is a MotionError.
        """
        base = robot.require_locomotion("motion tracking")
        self.clips = load_clips(motions, robot.joint_names, lambda clip: prepare_clip(robot, clip, 1.0 / step_dt))
        """The clips with the joints of the robot and one frame per control step."""
        self.body_names = tuple(robot.model.body(body).name for body in bodies)
        """`B` names of the tracked bodies."""
        self.anchor = robot.model.body(anchor).name
        """Name of the body of which the position and heading in the world count."""
        self.num_frames = [clip.num_frames for clip in self.clips]
        """Number of frames of each of the `C` clips."""
        self.weights = [clip.weight for clip in self.clips]
        ends = np.cumsum(self.num_frames)
        self.first_row = torch.tensor(ends - self.num_frames, device=device)
        """`(C,)` row of the first frame of each clip."""
        self.last_row = torch.tensor(ends - 1, device=device)
        """`(C,)` row of the last frame of each clip."""
        self.clip_of_row = torch.tensor(np.repeat(np.arange(len(self.clips)), self.num_frames), device=device)
        """`(F,)` clip of each row."""
        qpos, qvel = map(torch.from_numpy, clips_to_qpos_qvel(robot, self.clips))
        self._num_bodies, self._split = len(bodies) + 1, [qpos.shape[1], qvel.shape[1]]
        poses = Kinematics(robot.model, base, [*bodies, anchor], dtype=torch.float64)(qpos, qvel)
        joints = [qpos[:, list(robot.qpos_indices)], qvel[:, list(robot.qvel_indices)]]

        def table(*parts: Tensor) -> Tensor:
            return torch.cat([part.flatten(1) for part in parts], dim=1).to(device, torch.float32)

        self.qpos = qpos.to(device, torch.float32)
        """`(F, nq)` positions of the model, as the clip has them."""
        self._start = table(torch.from_numpy(raise_from_ground(robot, qpos.numpy())), qvel)
        self._bodies = table(*poses)
        self.frame_table = table(*joints, poses.pos[:, -1], poses.rot[:, -1])
        """`(F, 2 J + 12)` what `ReferenceFrames.read` reads."""

    def start(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Positions `(N, nq)` and velocities `(N, nv)` at rows, raised where the robot would be in the ground."""
        qpos, qvel = self._start.index_select(0, row).split(self._split, dim=1)
        return qpos, qvel

    def bodies(self, row: Tensor) -> BodyStates:
        """The `B` tracked bodies, then the anchor, at rows `(N,)`, in the frame of the clip."""
        parts = self._bodies.index_select(0, row).split([self._num_bodies * width for width in (3, 9, 3, 3)], dim=1)
        pos, rot, lin_vel, ang_vel = (part.unflatten(1, (self._num_bodies, -1)) for part in parts)
        return BodyStates(pos, rot.unflatten(2, (3, 3)), lin_vel, ang_vel)

    def frames(self, rows: Tensor) -> ReferenceFrames:
        """Joints and anchor at rows `(...)`."""
        return ReferenceFrames.read(self.frame_table, rows)

    def followers(self, max_distance: float) -> Tensor:
        """`(C, C)` float64 probability that clip `j` follows clip `i`, by weight; rows of zeros where none does.

        A clip follows if no body of its first frame is further than `max_distance`, m, from that of the last frame of
        the other, relative to the anchor and its heading.
        """
        bodies = self.bodies(torch.cat([self.first_row, self.last_row]))
        poses = bodies.pos.double()
        heading = torch.nn.functional.normalize(bodies.rot[:, -1, :2, 0].double(), dim=1)
        cosine, sine = heading[:, :1], heading[:, 1:]
        x, y = (poses[..., :2] - poses[:, -1:, :2]).unbind(2)
        local = torch.stack([cosine * x + sine * y, cosine * y - sine * x, poses[..., 2]], dim=2)
        first, last = local.chunk(2)
        distance = (last[:, None] - first[None]).norm(dim=3).amax(dim=2)
        weight = (distance <= max_distance) * torch.tensor(self.weights, dtype=torch.float64, device=distance.device)
        return weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-12)
