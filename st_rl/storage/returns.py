"""Generalized advantage estimation (GAE)."""

import torch

from st_rl.utils.distributed import average, world_size


@torch.no_grad()
def generalized_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    dones: torch.Tensor,
    last_values: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute returns and advantages of a rollout.

    Args:
        rewards: `(T, N)`.
        values: `(T, N)`, of the states before the steps.
        dones: `(T, N)`, any dtype, non-zero where the episode ends with the step.
        last_values: `(N,)`, of the states after the last step.
        gamma: discount.
        lam: GAE decay.

    Returns:
        `returns (T, N)` and `advantages (T, N)`, not normalized.
    """
    discount = gamma * (dones == 0).to(values.dtype)
    advantages = torch.empty_like(values).copy_(rewards).sub_(values)
    advantages[:-1].addcmul_(discount[:-1], values[1:])
    advantages[-1].addcmul_(discount[-1], last_values)
    decay = discount.mul_(lam).unbind(0)
    rows = advantages.unbind(0)
    for step in range(len(rows) - 2, -1, -1):
        rows[step].addcmul_(decay[step], rows[step + 1])
    return advantages + values, advantages


@torch.no_grad()
def normalize_advantages(advantages: torch.Tensor) -> torch.Tensor:
    """Return `(advantages - mean) / (std + 1e-8)`, any shape, with the unbiased moments over all ranks."""
    # Relative to one element: then the mean of equal elements is exact and their deviations are exactly zero.
    origin = advantages.flatten()[0]
    mean = average(origin + (advantages - origin).mean())
    centered = advantages - mean
    count = advantages.numel() * world_size()
    variance = average(centered.square().mean()) * (count / max(count - 1, 1))
    return centered / (variance.sqrt() + 1e-8)
