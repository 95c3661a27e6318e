"""Formulas of observations that the simulation and the deployed policy share."""

import torch


def gait_clock(
    phase: torch.Tensor, moving: torch.Tensor, quarter_turn: torch.Tensor, full_turn: torch.Tensor
) -> torch.Tensor:
    """`(N, 2)` sine and cosine of the gait clock `phase` `(N,)`; zeros where `moving` `(N,)` is False.

    `quarter_turn` is the tensor `(0, pi / 2)`, `full_turn` is `2 pi`: constants on the device.
    """
    angle = torch.addcmul(quarter_turn, phase[:, None], full_turn)
    return angle.sin_().mul_(moving[:, None])


def zero_small_commands(commands: torch.Tensor, threshold: float) -> torch.Tensor:
    """The commands `(N, 3)`, zero where their norm is at most `threshold`."""
    return commands * (commands.norm(dim=1, keepdim=True) > threshold)


def yaw_angle(orientation: torch.Tensor) -> torch.Tensor:
    """`(N,)` yaw of quaternions `(N, 4)` (w, x, y, z), from the world's x axis to the left, rad."""
    w, x, y, z = orientation.unbind(1)
    forward = torch.stack([1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)], dim=1)
    return torch.atan2(forward[:, 1], forward[:, 0])
