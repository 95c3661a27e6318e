"""What motion tracking does between raw sensors and joint targets, for a policy that runs on a robot with its clips."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from st_rl.env.signals import Signal
from st_rl.sim.deploy.measured_state import MeasuredState, Tensors
from st_rl.sim.deploy.robot_interface import RobotInterface
from st_rl.sim.envs.legged_task import LeggedTask
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.motions.clip_states import clips_to_qpos_qvel
from st_rl.sim.motions.kinematics import Kinematics
from st_rl.sim.motions.tracking_reference import ReferenceFrames

CLIPS_FILE = "clips.npz"
"""Beside the robot of a kit: `qpos` `(F, nq)` and `qvel` `(F, nv)` of all clips in turn, and `first` row `(C,)`."""


def make_interface(task: LeggedTask, ignored: Collection[str] = ()) -> RobotInterface:
    """The interface of a walking or of a tracking task; `ignored` terms are zeros."""
    return TrackingInterface(task, ignored) if isinstance(task, MotionTracking) else RobotInterface(task, ignored)


class TrackedState(MeasuredState):
    """What a robot that tracks a clip measures, and the frames of the clip: attributes of `MotionTracking`."""

    def __init__(self, interface: "TrackingInterface", inputs: Tensors, state: Tensors) -> None:
        super().__init__(interface.robot, interface.cfg, inputs, state)
        self._frames, self._future_steps = interface.frames, torch.tensor(interface.cfg.future_steps)
        self.clip = inputs["clip"][:, 0].clamp(0.0, len(interface.clip_table) - 1.0)
        """`(N,)` number of the clip that is played."""
        self.first_row, self.last_frame, repeats = interface.clip_table.index_select(0, self.clip.long()).unbind(1)
        at = state["frame"][:, 0]
        starts = (state["played_clip"][:, 0] != self.clip + 1.0) | ((at >= self.last_frame) & (repeats > 0.5))
        self.frame = torch.where(starts, torch.zeros_like(at), at)
        """`(N,)` frame of the clip that the robot is at: the first one where it starts or repeats a clip."""
        anchor = interface.anchor_rotation(self.orientation, self.joint_pos)
        first = ReferenceFrames.read(self._frames, self.first_row.long()).anchor_rot
        cosine = (anchor[:, :2, 0] * first[:, :2, 0]).sum(dim=1)
        sine = first[:, 0, 0] * anchor[:, 1, 0] - first[:, 1, 0] * anchor[:, 0, 0]
        turn = torch.stack([cosine, sine], dim=1)
        turn = turn / (turn * turn).sum(dim=1, keepdim=True).clamp(min=1e-12).sqrt()
        self.clip_heading = torch.where(starts[:, None], turn, state["heading"])
        """`(N, 2)` cosine and sine of the angle by which the clip is turned, to the robot's heading at its start."""
        cosine, sine = self.clip_heading[:, None].unbind(2)
        x, y, z = anchor.unbind(1)
        self.anchor_rot = torch.stack([cosine * x + sine * y, cosine * y - sine * x, z], dim=1)
        """`(N, 3, 3)` rotation of the anchor in the frame of the clip."""

    @property
    def next_frame(self) -> ReferenceFrames:
        """The frame `(N,)` of the clip after the one that the robot is at."""
        row = self.first_row + torch.minimum(self.frame + 1.0, self.last_frame)
        return ReferenceFrames.read(self._frames, row.long())

    def future_frames(self) -> ReferenceFrames:
        """The frames `(N, K)` of `future_steps` after the next one."""
        frames = (self.frame + 1.0)[:, None] + self._future_steps
        rows = self.first_row[:, None] + torch.minimum(frames, self.last_frame[:, None])
        return ReferenceFrames.read(self._frames, rows.long())


class TrackingInterface(RobotInterface):
    """A `RobotInterface` with the clips inside: the input `clip` says which one is played, from its first frame.

    A clip begins at the heading that the robot has then. It is held at its last frame, or repeated if its first pose
    continues its last one. Another number at `clip` begins another clip at once.
    """

    clip_table: Tensor
    """`(C, 3)` row of the first frame of each clip, number of its last frame, and 1 where it is repeated, else 0."""
    frames: Tensor
    """`(F, 2 J + 12)` what `ReferenceFrames.read` reads."""

    def _read_settings(self, task: LeggedTask) -> None:
        """Copy the clips of the task."""
        task = cast("MotionTracking", task)
        reference, robot = task.reference, task.robot
        counts = torch.tensor(reference.num_frames)
        repeats = (reference.followers(task.cfg.transition_distance).diagonal() > 0).cpu()
        for name, value in {
            "frames": reference.frame_table,
            "clip_table": torch.stack([counts.cumsum(0) - counts, counts - 1, repeats], dim=1),
        }.items():
            self.register_buffer(name, value.detach().to("cpu", torch.float32))
        self._clips, self._period = reference.clips, task.step_dt
        anchor = robot.model.body(reference.anchor).id
        self._kinematics = Kinematics(robot.model, robot.require_locomotion("a deployed policy"), [anchor])
        self._joint_columns = [
            robot.qpos_indices.index(k) if k in robot.qpos_indices else -1 for k in range(robot.model.nq)
        ]

    def sensors(self) -> dict[str, Signal]:
        """Sensors, and the number of the clip."""
        signals = super().sensors()
        del signals["command"], signals["foot_contact"]
        names = ", ".join(f"{number} {clip.name}" for number, clip in enumerate(self._clips))
        return {**signals, "clip": Signal((1,), "1", f"number of the clip to play: {names}")}

    def state_signals(self) -> dict[str, Signal]:
        """Last actions, and the place in the clip."""
        joints = (self.robot.num_joints,)
        return {
            "previous_actions": Signal(joints, "1", "clipped actions of the last step"),
            "played_clip": Signal((1,), "1", "1 + number of the clip that is played; 0 before the first"),
            "frame": Signal((1,), "1", "frame of the clip that the robot is at, one for each control step"),
            "heading": Signal((2,), "1", "cosine and sine of the angle by which the clip is turned"),
        }

    def measure(self, inputs: Tensors, state: Tensors) -> MeasuredState:
        """What observation terms read."""
        return TrackedState(self, inputs, state)

    def action_center(self, inputs: Tensors, state: Tensors) -> Tensor:
        """The default pose, or the joint positions of the next frame of the clip."""
        if self.cfg.action_center == "default_pose":
            return self.default_joint_pos
        return TrackedState(self, inputs, state).next_frame.joint_pos

    def anchor_rotation(self, orientation: Tensor, joint_pos: Tensor) -> Tensor:
        """`(N, 3, 3)` rotation of the anchor of robots with orientation `(N, 4)` and joints `(N, J)`."""
        model, base = self.robot.model, self.robot.require_locomotion("a deployed policy").qpos
        zero = torch.zeros_like(orientation[:, :1])
        columns = [zero if k < 0 else joint_pos[:, k : k + 1] for k in self._joint_columns]
        columns[base + 3 : base + 7] = [orientation[:, k : k + 1] for k in range(4)]
        qvel = torch.zeros(len(orientation), model.nv)
        return self._kinematics(torch.cat(columns, dim=1), qvel).rot[:, 0]

    def next_state(self, inputs: Tensors, state: Tensors, obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """The states after a step with observation `(N, O)` and clipped actions `(N, J)`."""
        tracked = TrackedState(self, inputs, state)
        frame = torch.minimum(tracked.frame + 1.0, tracked.last_frame)
        return {
            "previous_actions": actions,
            "played_clip": tracked.clip[:, None] + 1.0,
            "frame": frame[:, None],
            "heading": tracked.clip_heading,
        }

    def _readings(self, task: LeggedTask) -> dict[str, Tensor]:
        task = cast("MotionTracking", task)
        return {
            "joint_pos": task.joint_pos,
            "joint_vel": task.joint_vel,
            "base_ang_vel": task.base_ang_vel,
            "orientation": task.orientation,
            "clip": task.clip[:, None].float(),
        }

    def _started_states(self, task: LeggedTask) -> dict[str, Tensor]:
        task = cast("MotionTracking", task)
        yaw = task.placement[:, 0]
        return {
            "previous_actions": task.actions,
            "played_clip": task.clip[:, None] + 1.0,
            "frame": (task.row - task.reference.first_row[task.clip])[:, None].float(),
            "heading": torch.stack([yaw.cos(), yaw.sin()], dim=1),
        }

    def save_robot(self, path: Path) -> None:
        """Write the clips beside the robot."""
        super().save_robot(path)
        first = self.clip_table[:, 0].long().numpy()
        qpos, qvel = clips_to_qpos_qvel(self.robot, self._clips)
        np.savez_compressed(path.parent / CLIPS_FILE, allow_pickle=False, qpos=qpos, qvel=qvel, first=first)

    def _describe_task(self) -> dict[str, Any]:
        """The clips by number, and what a fall is."""
        clips = []
        for clip, repeats in zip(self._clips, self.clip_table[:, 2]):
            x, y = clip.root_rot[:, 1], clip.root_rot[:, 2]
            clips.append(
                {
                    "name": clip.name,
                    "seconds": (clip.num_frames - 1) * self._period,
                    "repeats": bool(repeats),
                    "max_tilt_rad": np.arccos(np.clip(1 - 2 * (x * x + y * y), -1, 1)).max(),
                }
            )
        bodies = {name: self._io[name] for name in ("anchor_body", "end_effector_bodies")}
        return {"clips": clips, "fall": {**bodies, **vars(self.cfg.limits)}}
