"""What tasks on uneven ground share: where the ground under a robot counts, and how its level changes."""

import torch

from st_rl.sim.robots import Robot

SWING_AHEAD = 0.12
"""How far ahead of a foot the ground counts for the height of its swing, m."""


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
