"""What tasks on uneven ground share: where the ground counts, how far a robot has come, and how its level changes."""

from typing import NamedTuple

import torch

from st_rl.sim.robots import Robot

SWING_AHEAD = 0.12
"""How far ahead of a foot the ground counts for the height of its swing, m."""


class Course(NamedTuple):
    """What a task's optional method `course` tells an evaluation about robots that have a way to go."""

    success: torch.Tensor
    """`(N,)` 1 where all that is in the way lies behind the robot, 0 before, NaN where nothing is in the way."""
    is_at_end: torch.Tensor
    """`(N,)` bool: there is no ground to go on; what happens from here on is nobody's fall."""


def hip_offsets(robot: Robot) -> tuple[float, float]:
    """How far behind and ahead of the base its legs begin, m, to the centimetre: the base stands between them."""
    ahead = robot.hip_positions[:, 0]
    return round(float(ahead.min()), 2), round(float(ahead.max()), 2)


def next_levels(
    level: torch.Tensor, up: torch.Tensor, down: torch.Tensor, uniform: torch.Tensor, num_levels: int
) -> torch.Tensor:
    """Levels `(N,)` of robots that go on to the next one, `up` `(N,)`, or back, `down` `(N,)`, but not below the first.

    Who has done the last one goes on at a level drawn by a number `uniform` `(N,)` in [0, 1).
    """
    moved = (level + up.long() - down.long()).clamp(min=0)
    drawn = (uniform * num_levels).long().clamp(max=num_levels - 1)
    return torch.where(moved < num_levels, moved, drawn)
