"""What a viewer draws: the states of a few robots as one flat row, and a file that shares rows between processes."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from st_rl.sim.envs.task import Task
from st_rl.sim.evaluation.rollout import is_commanded

MAX_ROBOTS = 16
"""Robots that a viewer shows at most."""
# Header of the shared file: a sequence number that is odd during a write, whether a browser is connected, number of
# rows, iteration, step of the newest row.
_SEQUENCE, _IS_WATCHED, _NUM_ROWS, _ITERATION, _STEP = range(5)
_HEADER = 64


class Frame(NamedTuple):
    """`K` robots at one time."""

    qpos: np.ndarray
    """`(K, nq)`"""
    qvel: np.ndarray
    """`(K, nv)`"""
    joint_force: np.ndarray
    """`(K, nv)` generalized force of the actuators."""
    commands: np.ndarray
    """`(K, 3)`, or `(K, 0)` for a task without commands."""
    actions: np.ndarray
    """`(K, A)`"""
    rewards: np.ndarray
    """`(R,)` weighted reward terms of the last step, mean over all robots of the task."""


@dataclass(frozen=True)
class FrameLayout:
    """Sizes and names of the parts of a frame, and of the robot that it shows."""

    task: str
    """Name of the task."""
    num_robots: int
    """`K`"""
    nq: int
    nv: int
    has_commands: bool
    reward_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    joint_qpos: tuple[int, ...]
    """Columns of `qpos` of the actuated joints."""
    step_dt: float
    """Seconds per step."""
    base_body: int
    """Body that the camera follows."""
    base_qpos: int | None
    """First column of the free joint in `qpos`; None for a robot that is fixed to the world."""
    base_qvel: int | None
    """First column of the free joint in `qvel`."""
    shares_origin: bool
    """Whether all robots start at the same place, so that a viewer has to spread them."""

    @classmethod
    def of_task(cls, task: Task, num_robots: int = MAX_ROBOTS) -> FrameLayout:
        """Describe the frames of the first robots of a task, at most `MAX_ROBOTS`."""
        from st_rl.sim.envs.terrain_walk import TerrainWalk

        robot, base = task.robot, task.robot.free_joint
        return cls(
            task=task.task_id or type(task).__name__,
            num_robots=min(num_robots, task.num_envs, MAX_ROBOTS),
            nq=robot.model.nq,
            nv=robot.model.nv,
            has_commands=is_commanded(task),
            reward_names=task.reward_names,
            joint_names=tuple(robot.joint_names),
            joint_qpos=tuple(int(index) for index in robot.qpos_indices),
            step_dt=task.step_dt,
            base_body=1 if base is None else int(base.body),
            base_qpos=None if base is None else int(base.qpos),
            base_qvel=None if base is None else int(base.qvel),
            shares_origin=not isinstance(task, TerrainWalk),
        )

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        count = self.num_robots
        return {
            "qpos": (count, self.nq),
            "qvel": (count, self.nv),
            "joint_force": (count, self.nv),
            "commands": (count, 3 if self.has_commands else 0),
            "actions": (count, len(self.joint_names)),
            "rewards": (len(self.reward_names),),
        }

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return sum(int(np.prod(shape)) for shape in self._shapes.values())

    def unpack(self, row: np.ndarray) -> Frame:
        """Return the frame of a row `(width,)`; its arrays are views."""
        shapes = self._shapes
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        return Frame(*(part.reshape(shape) for part, shape in zip(np.split(row, ends), shapes.values())))

    def packer(self, task: Task) -> Callable[[torch.Tensor, torch.Tensor], None]:
        """Return a function that writes the current frame of a task into a row `(width,)` on its device.

        Its second argument is the log of the step `(L,)`, which begins with the reward terms. No host sync: it may run
        while a rollout is captured.
        """
        backend, count, num_rewards = task.backend, self.num_robots, len(self.reward_names)
        states = [backend.qpos, backend.qvel, backend.joint_force]
        states += [task.commands] if is_commanded(task) else []
        views = [state[:count] for state in (*states, task.actions)]

        def pack(row: torch.Tensor, log: torch.Tensor) -> None:
            torch.cat([*(view.reshape(-1) for view in views), log[:num_rewards]], out=row)

        return pack


class SharedFrames:
    """Rows of frames in a file that a training writes and a viewer reads, without waiting for each other."""

    def __init__(self, path: Path, width: int, capacity: int, create: bool = False):
        """Map a file with room for `capacity` rows of `width` numbers."""
        self.capacity = capacity
        size = _HEADER + 4 * width * capacity
        if create:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self._header = np.frombuffer(self._memory, np.int64, _HEADER // 8)
        self._rows = np.frombuffer(self._memory, np.float32, width * capacity, _HEADER).reshape(capacity, width)

    @property
    def is_watched(self) -> bool:
        """Whether a browser is connected."""
        return bool(self._header[_IS_WATCHED])

    @is_watched.setter
    def is_watched(self, value: bool) -> None:
        self._header[_IS_WATCHED] = value

    @property
    def iteration(self) -> int:
        """Iterations of the training so far."""
        return int(self._header[_ITERATION])

    @iteration.setter
    def iteration(self, value: int) -> None:
        self._header[_ITERATION] = value

    @property
    def step(self) -> int:
        """Step of the training that the newest row shows."""
        return int(self._header[_STEP])

    def write(self, rows: np.ndarray, step: int = 0) -> None:
        """Replace the rows by those of successive steps `(n, width)`, the newest, of `step`, last."""
        self._header[_SEQUENCE] += 1
        self._header[_NUM_ROWS], self._header[_STEP] = len(rows), step
        self._rows[: len(rows)] = rows
        self._header[_SEQUENCE] += 1

    def read(self, last: int = 0) -> tuple[int, np.ndarray] | None:
        """Return a sequence number and copies of the rows; None if it is still `last`, or while they are written."""
        before = int(self._header[_SEQUENCE])
        if before == last or before % 2 == 1:
            return None
        rows = self._rows[: int(self._header[_NUM_ROWS])].copy()
        return (before, rows) if int(self._header[_SEQUENCE]) == before else None
