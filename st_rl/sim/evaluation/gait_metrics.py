"""Gait metrics: foot clearance, swings, diagonal alternation, step-time asymmetry, cost of transport.

`T` steps, `N` robots, `F` feet. `valid` `(T, N)` marks the steps that count: after the warm-up, before a fall.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GRAVITY = 9.81
# Shorter losses of contact are chatter, not swings.
_MIN_AIRBORNE_STEPS = 2
# Below this speed, m/s, a cost of transport is meaningless.
_MIN_SPEED = 0.1


class Swings(NamedTuple):
    """Swing phases of the feet of each robot, from lift-off to touch-down."""

    clearance: Tensor
    """`(N,)` mean peak height of a swing, m; NaN for a robot that never lifts a foot."""
    rate: Tensor
    """`(N,)` swings per foot and second."""


def mean_over_time(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over time of values `(T, N, ...)` where `valid` `(T, N)`: `(N, ...)`, NaN where no step is valid."""
    weights = valid.reshape(valid.shape + (1,) * (values.dim() - 2)).to(values.dtype)
    return (torch.nan_to_num(values) * weights).sum(0) / weights.sum(0)


def nan_mean(values: Tensor) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    return float(values.nanmean())


def find_swings(height: Tensor, contact: Tensor, valid: Tensor, step_dt: float) -> Swings:
    """Find the swing phases from sole heights and contacts `(T, N, F)`, `step_dt` seconds apart."""
    peak = torch.zeros_like(height[0])
    airborne = torch.zeros_like(height[0])
    total, count = torch.zeros_like(peak), torch.zeros_like(peak)
    # A foot in the air at the first valid step has no known lift-off.
    complete = torch.zeros_like(contact[0])
    for now_height, now_contact, now_valid in zip(height, contact, valid):
        usable = now_valid[:, None]
        landed = now_contact & complete & usable & (airborne >= _MIN_AIRBORNE_STEPS)
        total += torch.where(landed, peak, 0.0)
        count += landed
        airborne = torch.where(now_contact, 0.0, airborne + 1)
        peak = torch.where(now_contact, 0.0, torch.maximum(peak, now_height))
        complete = usable & (now_contact | complete)
    seconds = valid.sum(0) * step_dt * height.shape[2]
    return Swings(total.sum(1) / count.sum(1), count.sum(1) / seconds)


def diagonal_pairs(foot_positions: Tensor) -> tuple[tuple[int, int], ...]:
    """The two diagonal pairs of feet at `(F, 2)` in the base frame.

    Empty unless there are four feet, one in each quadrant around their centre.
    """
    if foot_positions.shape[0] != 4:
        return ()
    signs = torch.sign(foot_positions - foot_positions.mean(0)).tolist()
    pairs = {(i, j) for i in range(4) for j in range(i + 1, 4) if signs[i] == [-signs[j][0], -signs[j][1]]}
    return tuple(sorted(pairs)) if len(pairs) == 2 and all(0.0 not in sign for sign in signs) else ()


def diagonal_alternation(contact: Tensor, valid: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Fraction of time in which one diagonal pair stands and the other swings, `(N,)`; NaN without two pairs."""
    if len(pairs) != 2:
        return torch.full((contact.shape[1],), float("nan"))
    (a, b), (c, d) = pairs
    together = (contact[..., a] == contact[..., b]) & (contact[..., c] == contact[..., d])
    return mean_over_time((together & (contact[..., a] != contact[..., c])).float(), valid)


def side_pairs(foot_positions: Tensor) -> tuple[tuple[int, int], ...]:
    """Pairs `(left, right)` of feet at `(F, 2)` in the base frame, front first.

    Empty if the numbers of left and right feet differ.
    """
    if foot_positions.shape[0] == 0:
        return ()
    is_left = foot_positions[:, 1] > foot_positions[:, 1].mean()
    front_to_rear = torch.argsort(foot_positions[:, 0], descending=True, stable=True).tolist()
    left, right = ([foot for foot in front_to_rear if bool(is_left[foot]) == side] for side in (True, False))
    return tuple(zip(left, right)) if len(left) == len(right) else ()


def step_asymmetry(contact: Tensor, valid: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Difference of the mean step times of left and right, relative to their mean, `(N,)`.

    The step time of a foot is the time from the touch-down of the other foot of its pair to its own; feet that do not
    alternate take no steps. The mean over all `pairs` of a left and a right foot; NaN for a robot without steps on both
    sides. `contact` is `(T, N, F)` bool.
    """
    ratios = [_pair_asymmetry(contact[..., list(pair)], valid) for pair in pairs]
    return torch.stack(ratios).nanmean(dim=0) if ratios else torch.full((contact.shape[1],), float("nan"))


def _pair_asymmetry(contact: Tensor, valid: Tensor) -> Tensor:
    """`step_asymmetry` of one pair, contacts `(T, N, 2)`."""
    shape = contact[0].shape
    airborne, since_landing = torch.zeros(shape), torch.full(shape, float("inf"))
    total, count = torch.zeros(shape), torch.zeros(shape)
    for now_contact, now_valid in zip(contact, valid):
        usable = now_valid[:, None]
        since_landing = torch.where(usable, since_landing + 1, float("inf"))
        landed = now_contact & (airborne >= _MIN_AIRBORNE_STEPS) & usable
        # The other foot landed after the last landing of this one, and not in the same step.
        since_other = since_landing.flip(1)
        is_step = landed & ~landed.flip(1) & (since_other < since_landing)
        total += torch.where(is_step, since_other, 0.0)
        count += is_step
        since_landing = torch.where(landed, 0.0, since_landing)
        airborne = torch.where(now_contact | ~usable, 0.0, airborne + 1)
    mean = total / count
    return (mean[:, 0] - mean[:, 1]).abs() / mean.mean(dim=1)


def mean_cost_of_transport(power: Tensor, speed: Tensor, mass: float, valid: Tensor) -> Tensor:
    """Mean mechanical power / (weight * mean speed), `(N,)`; NaN for robots slower than 0.1 m/s.

    `power` `(T, N)` is the sum of |torque| |joint velocity|, W; `speed` `(T, N)` the horizontal one of the base, m/s.
    `st_rl.utils.metrics.cost_of_transport`, which training logs, is the instantaneous one.
    """
    mean_speed = mean_over_time(speed, valid)
    cost = mean_over_time(power, valid) / (mass * GRAVITY * mean_speed)
    return torch.where(mean_speed > _MIN_SPEED, cost, float("nan"))
