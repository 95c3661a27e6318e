"""What motion tracking does between raw sensors and joint targets, for a policy that runs on a robot with its clips."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from st_rl.env.signals import Signal
from st_rl.sim.deploy.measured_state import MeasuredState, Tensors
from st_rl.sim.deploy.robot_interface import RobotInterface
from st_rl.sim.envs.legged_task import LeggedTask
from st_rl.sim.envs.motion_tracking import MotionTracking, in_frame
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.motions.kinematics import Kinematics

CLIPS_FILE = "clips.npz"
"""Beside the robot of a kit: `qpos` `(F, nq)` and `qvel` `(F, nv)` of all clips in turn, and `first` row `(C,)`."""


def make_interface(task: LeggedTask, ignored: Collection[str] = ()) -> RobotInterface:
    """The interface of a walking or of a tracking task; `ignored` terms are zeros."""
    return TrackingInterface(task, ignored) if isinstance(task, MotionTracking) else RobotInterface(task, ignored)


class TrackedState(MeasuredState):
    """What a robot that tracks a clip measures, and the frames of the clip: attributes of `MotionTracking`."""

    def __init__(self, interface: "TrackingInterface", inputs: Tensors, state: Tensors) -> None:
        self.robot, self.cfg, self.step_dt = interface.robot, interface.cfg, interface.cfg.physics.control_period
        self.num_envs, self.device = len(state["frame"]), state["frame"].device
        self._interface, self._inputs, self._state = interface, inputs, state
        self.clip = inputs["clip"][:, 0].clamp(0.0, len(interface.clip_table) - 1.0)
        """`(N,)` number of the clip that is played."""
        self.first_row, self.last_frame, repeats = interface.clip_table.index_select(0, self.clip.long()).unbind(1)
        at = state["frame"][:, 0]
        starts = (state["played_clip"][:, 0] != self.clip + 1.0) | ((at >= self.last_frame) & (repeats > 0.5))
        self.frame = torch.where(starts, torch.zeros_like(at), at)
        """`(N,)` frame of the clip that the robot is at: the first one where it starts or repeats a clip."""
        self.anchor = interface.anchor_rotation(self.orientation, self.joint_pos)
        """`(N, 3, 3)` rotation of the anchor in the world."""
        first = interface.reference(self.first_row)[2]
        cosine = (self.anchor[:, :2, 0] * first[:, :2, 0]).sum(dim=1)
        sine = first[:, 0, 0] * self.anchor[:, 1, 0] - first[:, 1, 0] * self.anchor[:, 0, 0]
        turn = torch.stack([cosine, sine], dim=1)
        turn = turn / (turn * turn).sum(dim=1, keepdim=True).clamp(min=1e-12).sqrt()
        self.clip_heading = torch.where(starts[:, None], turn, state["heading"])
        """`(N, 2)` cosine and sine of the angle by which the clip is turned, to the robot's heading at its start."""

    def _next(self, later: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Joint positions and velocities, rotation and position of the anchor `later` frames after the next one."""
        interface = self._interface
        frame = torch.minimum(self.frame + (1.0 + later), self.last_frame)
        return interface.reference(self.first_row + frame)

    @property
    def target_joint_offset(self) -> Tensor:
        """`(N, J)` joint positions of the next frame, relative to the default pose, rad."""
        return self._next()[0] - self._interface.default_joint_pos

    @property
    def target_joint_vel(self) -> Tensor:
        """`(N, J)` joint velocities of the next frame, rad/s."""
        return self._next()[1]

    @property
    def target_anchor_rot(self) -> Tensor:
        """`(N, 3, 3)` rotation of the anchor in the next frame, in the frame of the robot's anchor."""
        cosine, sine = self.clip_heading.unbind(1)
        x, y, z = self.anchor.unbind(1)
        cosine, sine = cosine[:, None], sine[:, None]
        # The anchor in the frame of the clip.
        own = torch.stack([cosine * x + sine * y, cosine * y - sine * x, z], dim=1)
        return in_frame(own[:, None], self._next()[2].mT).mT

    def future_joint_offset(self) -> Tensor:
        """`(N, K J)` joint positions of the `future_steps`, relative to the default pose, rad."""
        default = self._interface.default_joint_pos
        return torch.cat([self._next(step)[0] - default for step in self._interface.future_steps], dim=1)

    def future_anchor_pose(self) -> Tensor:
        """`(N, 9 K)` position and rotation of the anchor in the `future_steps`, from the next frame."""
        _, _, rot, pos = self._next()
        parts = []
        for step in self._interface.future_steps:
            _, _, later_rot, later_pos = self._next(step)
            local = in_frame(rot, later_pos - pos)
            turned = in_frame(rot[:, None], later_rot.mT).mT
            parts.append(torch.cat([local, turned[..., :2].flatten(1)], dim=1))
        return torch.cat(parts, dim=1)


class TrackingInterface(RobotInterface):
    """A `RobotInterface` with the clips inside: the input `clip` says which one is played, from its first frame.

    A clip begins at the heading that the robot has then. It is held at its last frame, or repeated if its first pose
    continues its last one. Another number at `clip` begins another clip at once.
    """

    clip_table: Tensor
    """`(C, 3)` row of the first frame of each clip, number of its last frame, and 1 where it is repeated, else 0."""
    frames: Tensor
    """`(F, 2 J + 12)` joint positions and velocities, rotation and position of the anchor."""

    def _read_settings(self, task: LeggedTask) -> None:
        """Copy the clips of the task."""
        assert isinstance(task, MotionTracking)
        if task.cfg.action_center != "default_pose":
            raise ValueError(
                f"a policy with action_center '{task.cfg.action_center}' cannot be deployed yet: its targets need "
                "the clip; train it with --env.action-center default_pose"
            )
        reference, robot = task.reference, task.robot
        counts = torch.tensor(reference.num_frames)
        joint_pos, joint_vel, pos, rot = reference.targets(torch.arange(int(counts.sum()), device=task.device))
        repeats = (reference.followers(task.cfg.transition_distance).diagonal() > 0).cpu()
        for name, value in {
            "frames": torch.cat([joint_pos, joint_vel, rot.flatten(1), pos], dim=1),
            "clip_table": torch.stack([counts.cumsum(0) - counts, counts - 1, repeats], dim=1),
        }.items():
            self.register_buffer(name, value.detach().to("cpu", torch.float32))
        self.future_steps = task.cfg.future_steps
        self._clips, self._period = reference.clips, task.step_dt
        self._widths = [robot.num_joints, robot.num_joints, 9, 3]
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

    def reference(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """At rows `(N,)`: joint positions and velocities `(N, J)`, rotation `(N, 3, 3)` and position of the anchor."""
        joint_pos, joint_vel, rot, pos = self.frames.index_select(0, row.long()).split(self._widths, dim=1)
        return joint_pos, joint_vel, rot.unflatten(1, (3, 3)), pos

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
        assert isinstance(task, MotionTracking)
        return {
            "joint_pos": task.joint_pos,
            "joint_vel": task.joint_vel,
            "base_ang_vel": task.base_ang_vel,
            "orientation": task.orientation,
            "clip": task.clip[:, None].float(),
        }

    def _started_states(self, task: LeggedTask) -> dict[str, Tensor]:
        assert isinstance(task, MotionTracking)
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
        states = [clip_to_qpos_qvel(self.robot, clip) for clip in self._clips]
        qpos, qvel = (np.concatenate(part) for part in zip(*states))
        np.savez_compressed(path.parent / CLIPS_FILE, allow_pickle=False, qpos=qpos, qvel=qvel, first=first)

    def _describe_task(self) -> dict[str, Any]:
        """The clips by number."""
        seconds = [(clip.num_frames - 1) * self._period for clip in self._clips]
        return {
            "clips": [
                {"name": clip.name, "seconds": duration, "repeats": bool(repeats)}
                for clip, duration, repeats in zip(self._clips, seconds, self.clip_table[:, 2])
            ]
        }
