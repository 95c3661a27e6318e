"""Records one robot: what it was told, what it did, and a video of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.env.utils import split_observations, split_step
from st_rl.sim.evaluation.evaluator import AXES, is_commanded
from st_rl.sim.evaluation.rendering import Arrow, FrameRenderer
from st_rl.sim.evaluation.rollout import Policy
from st_rl.sim.evaluation.video import open_video

COMMAND_COLOR = (0.17, 0.71, 0.45, 1.0)
VELOCITY_COLOR = (0.23, 0.51, 0.96, 1.0)
# Length of a velocity arrow, m for each m/s.
_ARROW_SCALE = 0.3


class CommandSegment(NamedTuple):
    """A command that is held for a while."""

    seconds: float
    command: tuple[float, float, float]
    """Forward and sideways speed, m/s, and turning rate, rad/s."""


@dataclass
class Traces:
    """One robot over time, a list for each quantity with one number for each step; empty where it has none."""

    period: float
    """Seconds of a step."""
    joints: list[str]
    """Names of the actuated joints."""
    position: list[list[float]]
    """Joint positions, rad, a row for each joint."""
    torque: list[list[float]]
    """Joint torques, N m, a row for each joint."""
    command: list[list[float]] = field(default_factory=list)
    """Forward, sideways, turning: what was commanded."""
    velocity: list[list[float]] = field(default_factory=list)
    """Forward, sideways, turning: what was measured."""
    feet: list[str] = field(default_factory=list)
    """Names of the feet."""
    contact: list[list[int]] = field(default_factory=list)
    """1 where a foot touches the ground, a row for each foot."""
    resets: list[float] = field(default_factory=list)
    """Seconds at which the robot was put back on its feet."""


def make_command_schedule(commands: Any, seconds: float) -> list[CommandSegment]:
    """A walk that shows everything within the task's command ranges, one thing after the other, `seconds` long."""
    forward, sideways, turning = (getattr(commands, axis) for axis in AXES)
    rest = tuple(min(max(0.0, low), high) for low, high in (forward, sideways, turning))
    slow = 0.5 * (rest[0] + forward[1])
    scenes = [(1.0, (slow, rest[1], rest[2])), (1.5, (forward[1], rest[1], rest[2]))]
    if turning[1] > turning[0]:
        scenes += [(1.0, (slow, rest[1], turning[1])), (1.0, (slow, rest[1], turning[0]))]
    if sideways[1] > sideways[0]:
        scenes += [(1.0, (rest[0], sideways[1], rest[2])), (1.0, (rest[0], sideways[0], rest[2]))]
    if forward[0] < rest[0] or forward[0] > 0.0:
        scenes.append((1.0, (forward[0], rest[1], rest[2])))
    if rest == (0.0, 0.0, 0.0):
        scenes.append((0.5, (0.0, 0.0, 0.0)))
    unit = seconds / sum(share for share, _ in scenes)
    return [CommandSegment(share * unit, (float(a), float(b), float(c))) for share, (a, b, c) in scenes]


class Recorder:
    """Steps a task of one robot under a policy and keeps what it does."""

    def __init__(self, task: Any, policy: Policy, script: list[CommandSegment] | None = None):
        self.task = task
        self._policy = policy
        self._script = script if script and is_commanded(task) else None
        self._rows: list[dict[str, Tensor]] = []
        self._resets: list[float] = []
        self._data: Any = None
        reset = getattr(policy, "reset", None)
        self._forget: Callable[..., Any] = reset if callable(reset) else lambda dones=None: None

    @torch.inference_mode()
    def run(self, seconds: float, each_step: Callable[[int], None] | None = None) -> Traces:
        """Walk through the script, or simply for so many seconds; `each_step` is called after every step."""
        task = self.task
        self._forget()
        task.reset()
        scene_ends, scene = self._scene_ends(), -1
        for step in range(round(seconds / task.step_dt)):
            if self._script is not None:
                now = min(sum(step >= end for end in scene_ends), len(self._script) - 1)
                if now != scene:
                    scene = now
                    task.hold_commands(torch.tensor([self._script[scene].command], device=task.device))
            obs = split_observations(task.get_observations())[0]
            _, _, _, dones, _ = split_step(task.step(self._policy(obs)))
            self._forget(dones)
            if bool(dones[0]):
                self._resets.append(round((step + 1) * task.step_dt, 4))
            self._rows.append(self._measure())
            if each_step is not None:
                each_step(step)
        return self._traces()

    def _scene_ends(self) -> list[float]:
        """The step at which each scene ends."""
        ends, total = [], 0.0
        for scene in self._script or []:
            total += scene.seconds
            ends.append(round(total / self.task.step_dt))
        return ends

    def _measure(self) -> dict[str, Tensor]:
        """What the robot does now."""
        task = self.task
        qpos, force = task.backend.qpos[0], task.backend.joint_force[0]
        row = {"position": qpos[list(task.robot.qpos_indices)], "torque": force[list(task.robot.qvel_indices)]}
        if is_commanded(task):
            row["command"] = task.commands[0]
            row["velocity"] = torch.cat([task.base_lin_vel[0, :2], task.base_ang_vel[0, 2:]])
            row["contact"] = task.foot_contact[0].long()
        return {name: value.cpu().clone() for name, value in row.items()}

    def _traces(self) -> Traces:
        """All steps so far, turned so that every quantity is a list."""
        robot = self.task.robot
        columns = {name: torch.stack([row[name] for row in self._rows]).T for name in self._rows[0]}
        numbers: dict[str, Any] = {
            name: [[_short(v) for v in line] for line in values.tolist()] for name, values in columns.items()
        }
        feet = [foot.name for foot in robot.feet] if "contact" in numbers else []
        return Traces(self.task.step_dt, list(robot.joint_names), feet=feet, resets=self._resets, **numbers)

    def clear(self) -> None:
        """Forget all that was recorded."""
        self._rows.clear()
        self._resets.clear()

    def picture(self) -> tuple[Any, list[Arrow]]:
        """The robot as `mujoco.MjData`, and arrows of its command and its velocity."""
        self._data = self.task.backend.snapshot(0, self._data)
        if not is_commanded(self.task):
            return self._data, []
        base = self.task.robot.free_joint.body
        place = self._data.xpos[base] + np.array([0.0, 0.0, 0.22])
        forward = self._data.xmat[base].reshape(3, 3)[:, 0]
        heading = math.atan2(forward[1], forward[0])
        row = self._rows[-1] if self._rows else self._measure()
        command = _arrow(place, row["command"], heading, COMMAND_COLOR)
        return self._data, [
            command,
            _arrow(place + np.array([0.0, 0.0, 0.05]), row["velocity"], heading, VELOCITY_COLOR),
        ]


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _arrow(place: np.ndarray, velocity: Tensor, heading: float, rgba: tuple[float, float, float, float]) -> Arrow:
    """An arrow for a velocity in the frame of the base."""
    x, y = float(velocity[0]), float(velocity[1])
    cos, sin = math.cos(heading), math.sin(heading)
    return Arrow(place, _ARROW_SCALE * np.array([cos * x - sin * y, sin * x + cos * y, 0.0]), rgba)


def record_video(
    recorder: Recorder, path: Path, seconds: float, width: int = 640, height: int = 360, fps: float = 25.0
) -> Traces:
    """Run a recorder and write what it shows as an mp4 in real time."""
    every = max(1, round(1.0 / (fps * recorder.task.step_dt)))
    real_fps = 1.0 / (every * recorder.task.step_dt)
    with (
        FrameRenderer(recorder.task.backend.model, width, height) as renderer,
        open_video(path, width, height, real_fps) as video,
    ):

        def draw(step: int) -> None:
            if step % every == 0:
                video.add(renderer.draw(*recorder.picture()))

        return recorder.run(seconds, draw)
