"""What a policy is judged on: how many robots, for how long, under which commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Range = tuple[float, float]
AXES = ("forward", "sideways", "turning")


@dataclass
class EvaluationCfg:
    """How long, how many and under which commands."""

    robots: int = 64
    """Robots judged together, each under a command of its own."""
    seconds: float = 20.0
    """Length of the walk."""
    settle_s: float = 1.0
    """Seconds at the beginning that do not count."""
    forward: Range | None = None
    """Range of forward speeds, m/s; the task's own when None."""
    sideways: Range | None = None
    """Range of sideways speeds, m/s; the task's own when None."""
    turning: Range | None = None
    """Range of turning rates, rad/s; the task's own when None."""
    push_speed: float = 0.5
    """Size of the pushes in the second walk, m/s; 0 leaves it out."""
    push_interval_s: float = 4.0
    """Seconds between two pushes of a robot."""
    seed: int = 20_001
    """Of starting poses; differs from the seeds that trainings use. Pushes are the same for every seed."""

    @property
    def pushes(self) -> bool:
        """Whether there is a second walk with pushes: a walk may be over before the first one."""
        return self.push_speed > 0 and self.seconds > self.push_interval_s


def command_grid(ranges: Sequence[Range], count: int) -> Tensor:
    """Commands `(count, 3)` that fill the ranges evenly, with as many levels along each varying axis as `count` allows.

    Where `count` is no power of the levels, the grid starts over for the rest. Too few for two are in the middle.
    """
    varying = sum(high > low for low, high in ranges)
    levels = int(count ** (1 / varying) + 1e-9) if varying else 1
    middles = [torch.tensor([(low + high) / 2]) for low, high in ranges]
    axes = [
        torch.linspace(low, high, levels) if levels > 1 and high > low else middle
        for (low, high), middle in zip(ranges, middles)
    ]
    grid = torch.cartesian_prod(*axes).reshape(-1, len(ranges))
    return grid.repeat(-(-count // len(grid)), 1)[:count].clone()


def evaluation_commands(plan: EvaluationCfg, task: Any) -> Tensor:
    """Commands `(N, 3)` of a task's robots; shuffled where robots are on ground of different levels.

    Otherwise slow robots would be on the hardest ground and fast ones on the easiest.
    """
    commands = command_grid(command_ranges(plan, task.cfg.commands), task.num_envs)
    if getattr(task, "level", None) is None:
        return commands
    return commands[torch.randperm(len(commands), generator=torch.Generator().manual_seed(0))]


def command_ranges(plan: EvaluationCfg, commands: Any) -> list[Range]:
    """The ranges of the three commands, low to high: the plan's, else those of the task's configuration."""
    chosen = (getattr(plan, axis) if getattr(plan, axis) is not None else getattr(commands, axis) for axis in AXES)
    return [(float(min(ends)), float(max(ends))) for ends in chosen]
