"""Records one robot under a policy: commands, velocities, joints and contacts over time, and a video."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.env.utils import split_observations, split_step
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.envs.task import Task
from st_rl.sim.evaluation.command_grid import task_ranges
from st_rl.sim.evaluation.rendering import Arrow, FrameRenderer
from st_rl.sim.evaluation.rollout import Policy, is_commanded, reset_policy
from st_rl.sim.evaluation.video import open_video
from st_rl.sim.require import MjData

COMMAND_COLOR = (0.17, 0.71, 0.45, 1.0)
VELOCITY_COLOR = (0.23, 0.51, 0.96, 1.0)
# Length of a velocity arrow in m per m/s.
_ARROW_SCALE = 0.3


class CommandSegment(NamedTuple):
    """A command held for some time."""

    seconds: float
    command: tuple[float, float, float]
    """lin_vel_x and lin_vel_y, m/s, and ang_vel_yaw, rad/s."""


@dataclass
class Traces:
    """Time series of one robot: for each quantity a list of rows with one number per step; empty if it has none."""

    period: float
    """Seconds per step."""
    joints: list[str]
    position: list[list[float]]
    """Joint positions, rad, one row per joint."""
    torque: list[list[float]]
    """Joint torques, N m, one row per joint."""
    command: list[list[float]] = field(default_factory=list)
    """Commanded lin_vel_x, lin_vel_y, ang_vel_yaw."""
    velocity: list[list[float]] = field(default_factory=list)
    """Measured lin_vel_x, lin_vel_y, ang_vel_yaw."""
    feet: list[str] = field(default_factory=list)
    contact: list[list[int]] = field(default_factory=list)
    """1 where a foot touches the ground, one row per foot."""
    resets: list[float] = field(default_factory=list)
    """Times of the resets, s."""


def make_command_schedule(commands: CommandsCfg, seconds: float) -> list[CommandSegment]:
    """Commands that cover the ranges of a task's configuration one after the other, `seconds` in total."""
    x, y, yaw = task_ranges(commands)
    rest = tuple(min(max(0.0, low), high) for low, high in (x, y, yaw))
    slow = 0.5 * (rest[0] + x[1])
    segments = [(1.0, (slow, rest[1], rest[2])), (1.5, (x[1], rest[1], rest[2]))]
    if yaw[1] > yaw[0]:
        segments += [(1.0, (slow, rest[1], yaw[1])), (1.0, (slow, rest[1], yaw[0]))]
    if y[1] > y[0]:
        segments += [(1.0, (rest[0], y[1], rest[2])), (1.0, (rest[0], y[0], rest[2]))]
    if x[0] < rest[0] or x[0] > 0.0:
        segments.append((1.0, (x[0], rest[1], rest[2])))
    if rest == (0.0, 0.0, 0.0):
        segments.append((0.5, (0.0, 0.0, 0.0)))
    unit = seconds / sum(weight for weight, _ in segments)
    return [CommandSegment(weight * unit, (float(a), float(b), float(c))) for weight, (a, b, c) in segments]


class Snapshot(NamedTuple):
    """What a frame shows."""

    data: MjData
    """The robot as `mujoco.MjData`."""
    arrows: list[Arrow]
    """Its command and its velocity."""
    ghost: np.ndarray | None
    """`(nq,)` pose of the reference that it tracks, if any."""


class Recorder:
    """Steps a task of one robot under a policy and records time series.

    A robot that tracks clips begins with the first one; each reset begins the next one.
    """

    def __init__(self, task: Task, policy: Policy, schedule: list[CommandSegment] | None = None):
        self.task = task
        self._policy = policy
        self._commanded = task if is_commanded(task) else None
        self._tracking = task if isinstance(task, MotionTracking) else None
        self._schedule = schedule or []
        self._rows: list[dict[str, Tensor]] = []
        self._resets: list[float] = []
        self._data: MjData = None

    @torch.inference_mode()
    def run(self, seconds: float, each_step: Callable[[int], None] | None = None) -> Traces:
        """Run from a reset, under the schedule if there is one; `each_step` is called after every step."""
        task = self.task
        reset_policy(self._policy)
        task.reset()
        self._hold_clip(0, reset=True)
        ends = [round(end / task.step_dt) for end in accumulate(segment.seconds for segment in self._schedule)]
        starts = dict(zip([0, *ends], self._schedule))
        for step in range(round(seconds / task.step_dt)):
            if self._commanded is not None and step in starts:
                self._commanded.hold_commands(torch.tensor([starts[step].command], device=task.device))
            obs = split_observations(task.get_observations())[0]
            _, _, _, dones, _ = split_step(task.step(self._policy(obs)))
            reset_policy(self._policy, dones)
            if bool(dones[0]):
                self._resets.append(round((step + 1) * task.step_dt, 4))
                self._hold_clip(len(self._resets) + 1)
            self._rows.append(self._measure())
            if each_step is not None:
                each_step(step)
        return self._traces()

    def _hold_clip(self, number: int, reset: bool = False) -> None:
        """Choose the clip of the next episode, or with `reset` of this one and the next."""
        task = self._tracking
        if task is None:
            return
        clips = torch.full((1,), number, device=task.device) % len(task.reference.clips)
        task.hold_clips(clips, reset)
        if reset:
            self._hold_clip(number + 1)

    def _measure(self) -> dict[str, Tensor]:
        backend, robot, env = self.task.backend, self.task.robot, self._commanded
        row = {
            "position": backend.qpos[0, list(robot.qpos_indices)],
            "torque": backend.joint_force[0, list(robot.qvel_indices)],
        }
        if env is not None:
            row["command"] = env.commands[0]
            row["velocity"] = torch.cat([env.base_lin_vel[0, :2], env.base_ang_vel[0, 2:]])
            row["contact"] = env.foot_contact[0].long()
        return {name: value.cpu().clone() for name, value in row.items()}

    def _traces(self) -> Traces:
        """All steps so far, transposed to one list per quantity."""
        robot = self.task.robot
        columns = {name: torch.stack([row[name] for row in self._rows]).T for name in self._rows[0]}
        numbers: dict[str, Any] = {
            name: [[v if isinstance(v, int) else float(f"{v:.5g}") for v in line] for line in values.tolist()]
            for name, values in columns.items()
        }
        feet = [foot.name for foot in robot.feet] if "contact" in numbers else []
        return Traces(self.task.step_dt, list(robot.joint_names), feet=feet, resets=self._resets, **numbers)

    def clear(self) -> None:
        """Discard the recorded steps."""
        self._rows.clear()
        self._resets.clear()

    def snapshot(self) -> Snapshot:
        """The robot with arrows of its command and its velocity, or with the reference that it tracks."""
        self._data = self.task.backend.snapshot(0, self._data)
        if self._tracking is not None:
            ghost = self._tracking.reference_qpos()[0].cpu().numpy().astype(np.float64)
            return Snapshot(self._data, [], ghost)
        if self._commanded is None:
            return Snapshot(self._data, [], None)
        base = self._commanded.robot.require_locomotion("a recording").body
        start = self._data.xpos[base] + np.array([0.0, 0.0, 0.22])
        forward = self._data.xmat[base].reshape(3, 3)[:, 0]
        heading = math.atan2(forward[1], forward[0])
        row = self._rows[-1] if self._rows else self._measure()
        above = start + np.array([0.0, 0.0, 0.05])
        command = _make_arrow(start, row["command"], heading, COMMAND_COLOR)
        velocity = _make_arrow(above, row["velocity"], heading, VELOCITY_COLOR)
        return Snapshot(self._data, [command, velocity], None)


def _make_arrow(start: np.ndarray, velocity: Tensor, heading: float, rgba: tuple[float, float, float, float]) -> Arrow:
    """An arrow in the world for a velocity in the base frame."""
    x, y = float(velocity[0]), float(velocity[1])
    cos, sin = math.cos(heading), math.sin(heading)
    return Arrow(start, _ARROW_SCALE * np.array([cos * x - sin * y, sin * x + cos * y, 0.0]), rgba)


def record_video(
    recorder: Recorder, path: Path, seconds: float, width: int = 640, height: int = 360, fps: float = 25.0
) -> Traces:
    """Run a recorder and write an mp4 in real time."""
    task = recorder.task
    every = max(1, round(1.0 / (fps * task.step_dt)))
    with (
        FrameRenderer(task.backend.model, width, height) as renderer,
        open_video(path, width, height, 1.0 / (every * task.step_dt)) as video,
    ):

        def draw(step: int) -> None:
            if step % every == 0:
                video.add(renderer.draw(*recorder.snapshot()))

        return recorder.run(seconds, draw)
