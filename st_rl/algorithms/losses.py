"""The formulas of PPO as pure functions of tensors."""

from typing import cast

import torch
from torch import Tensor

# Factor and limits of the adaptive learning rate.
RATE_FACTOR = 1.5
LOWEST_RATE, HIGHEST_RATE = 1.0e-5, 1.0e-2


def gaussian_kl(mean: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor, ratio_offset: float = 1.0e-5) -> Tensor:
    """KL divergence of the new from the old diagonal Gaussian, `(..., A) -> (...)`; exact without `ratio_offset`."""
    spread = torch.log(std / old_std + ratio_offset)
    return (spread + (old_std.square() + (old_mean - mean).square()) / (2.0 * std.square()) - 0.5).sum(dim=-1)


def adapt_learning_rate(learning_rate: Tensor, kl: Tensor, desired_kl: float) -> Tensor:
    """The next learning rate: lower if `kl` is above twice `desired_kl`, higher if it is below half; all 0-d."""
    slower = (learning_rate / RATE_FACTOR).clamp(min=LOWEST_RATE)
    faster = (learning_rate * RATE_FACTOR).clamp(max=HIGHEST_RATE)
    rate = torch.where(kl > 2.0 * desired_kl, slower, learning_rate)
    return torch.where((kl > 0.0) & (kl < 0.5 * desired_kl), faster, rate)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: float | Tensor) -> tuple[Tensor, Tensor]:
    """The surrogate loss per sample with the ratio and with the clipped ratio, all `(...)`."""
    limit = cast(float, clip)  # torch's stubs know two numbers or two tensors, not their union
    return -advantages * ratio, -advantages * ratio.clamp(1.0 - limit, 1.0 + limit)


def clipped_value(values: Tensor, old_values: Tensor, clip: float | Tensor) -> Tensor:
    """The new values clamped to within `clip` of the old ones, all `(...)`."""
    limit = cast(float, clip)
    return old_values + (values - old_values).clamp(-limit, limit)
