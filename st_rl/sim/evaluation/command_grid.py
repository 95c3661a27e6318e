"""The plan of an evaluation: number of robots, duration, and the grid of commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk import LeggedWalk
    from st_rl.sim.envs.legged_walk_cfg import CommandsCfg


Range = tuple[float, float]
AXES = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")
"""Components of a velocity command, in order."""


@dataclass
class EvaluationCfg:
    """Number of robots, duration and commands of an evaluation."""

    num_envs: int = 64
    """Robots evaluated in parallel, each with its own command."""
    seconds: float = 20.0
    """Length of the rollout."""
    warmup_s: float = 1.0
    """Seconds at the beginning that the metrics ignore."""
    lin_vel_x: Range | None = None
    """Range of forward speeds, m/s; the range of the task when None."""
    lin_vel_y: Range | None = None
    """Range of lateral speeds, m/s; the range of the task when None."""
    ang_vel_yaw: Range | None = None
    """Range of yaw rates, rad/s; the range of the task when None."""
    push_speed: float = 0.5
    """Velocity change of a push in the second rollout, m/s; 0 skips that rollout."""
    push_interval_s: float = 4.0
    """Seconds between two pushes."""
    seed: int = 20_001
    """Seed of the initial poses; differs from training seeds. Pushes do not depend on it."""

    @property
    def pushes(self) -> bool:
        """Whether there is a second rollout with pushes; there is none if it would end before the first push."""
        return self.push_speed > 0 and self.seconds > self.push_interval_s


@runtime_checkable
class _LeveledTask(Protocol):
    """A task with terrain of several difficulty levels."""

    level: Tensor


def command_grid(ranges: Sequence[Range], count: int) -> Tensor:
    """Commands `(count, 3)` on a regular grid, with equally many values along each axis of nonzero range.

    If `count` is not a power of that number, the grid repeats. With less than two values per axis, all commands are
    the centre of the ranges.
    """
    varying = sum(high > low for low, high in ranges)
    levels = int(count ** (1 / varying) + 1e-9) if varying else 1
    axes = [
        torch.linspace(low, high, levels) if levels > 1 and high > low else torch.tensor([(low + high) / 2])
        for low, high in ranges
    ]
    grid = torch.cartesian_prod(*axes).reshape(-1, len(ranges))
    return grid.repeat(-(-count // len(grid)), 1)[:count].clone()


def evaluation_commands(cfg: EvaluationCfg, task: "LeggedWalk") -> Tensor:
    """Commands `(N, 3)` of the robots of a task.

    Shuffled on terrain of several levels, so that speed and difficulty are not correlated.
    """
    commands = command_grid(command_ranges(cfg, task.cfg.commands), task.num_envs)
    if not isinstance(task, _LeveledTask):
        return commands
    return commands[torch.randperm(len(commands), generator=torch.Generator().manual_seed(0))]


def command_ranges(cfg: EvaluationCfg, commands: "CommandsCfg") -> list[Range]:
    """The range of each axis, low to high: from `cfg`, or from the task's configuration of commands."""
    ranges = (vars(cfg)[axis] or vars(commands)[axis] for axis in AXES)
    return [(float(min(ends)), float(max(ends))) for ends in ranges]


def task_ranges(commands: "CommandsCfg") -> tuple[Range, Range, Range]:
    """The ranges of lin_vel_x, lin_vel_y and ang_vel_yaw in a task's configuration of commands."""
    return commands.lin_vel_x, commands.lin_vel_y, commands.ang_vel_yaw
