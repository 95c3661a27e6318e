"""Adam's step in a few kernels, for a compiler to fuse: torch's own is made for large tensors and leaves a GPU idle."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from st_rl.algorithms.adam_state import moments, unwatched_adam


def step_factors(norms: Sequence[Tensor], max_grad_norm: float, pause: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of all gradients, what to divide them by, and 1 where the step must be skipped, all 0-d."""
    norm = torch.linalg.vector_norm(torch.stack(list(norms)))
    is_good = norm < torch.inf if pause is None else (norm < torch.inf) & ~pause
    return norm, ((norm + 1e-6) / max_grad_norm).clamp(min=1.0), (~is_good).float()


def step_sizes(
    steps: Sequence[Tensor], skip: Tensor, learning_rate: Tensor, betas: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """The size of the step and the scale of its root, both `(P,)`, of P parameters that made `steps`, 0-d each."""
    # In double precision: little is left of 1 after the first steps.
    counts = torch.stack(list(steps)).double().clamp(min=1.0)
    sizes = (1.0 - skip) * learning_rate / (1.0 - betas[0] ** counts)
    return sizes.float(), (1.0 - betas[1] ** counts).sqrt().float()


def adam_step(
    parameters: list[Tensor],
    gradients: Sequence[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    factors: tuple[Tensor, ...],
    betas: tuple[float, float],
    eps: float,
) -> None:
    """One step of Adam for all parameters together; one to be skipped changes nothing, whatever the gradients are."""
    divisor, skip, sizes, scales = factors
    # Bad numbers must not even be multiplied by 0.
    clean = [torch.where(skip == 0.0, gradient / divisor, 0.0) for gradient in gradients]
    for averages, values, beta in ((means, clean, betas[0]), (squares, [value.square() for value in clean], betas[1])):
        torch._foreach_mul_(averages, torch.where(skip == 0.0, beta, 1.0))  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(averages, values, alpha=1.0 - beta)  # pyright: ignore[reportPrivateImportUsage]
    changes = [
        -size * mean / (square.sqrt() / scale + eps)
        for mean, square, size, scale in zip(means, squares, sizes.unbind(), scales.unbind())
    ]
    torch._foreach_add_(parameters, changes)  # pyright: ignore[reportPrivateImportUsage]


def can_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Whether `follow` does what the optimiser would: plain Adam, whose first step has made its state."""
    group = unwatched_adam(optimizer, parameters)
    if group is None or group["amsgrad"] or group["maximize"] or group["weight_decay"]:
        return False
    # Anything but a tensor on the device would become a part of the compiled code.
    return isinstance(group["lr"], Tensor)


@torch.no_grad()
def follow(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    factors: tuple[Tensor, Tensor],
    fused: Callable[..., Any],
) -> None:
    """Step along the gradients, divided by the first of `factors`, unless the second says 1; `fused` compiles.

    The state stays where torch keeps it, so that files and later steps of torch's own see no difference.
    """
    divisor, skip = factors
    steps, means, squares = moments(optimizer, parameters)
    # Counted outside of compiled code: in one kernel with their readers, counters are read before, during or after.
    torch._foreach_add_(steps, [1.0 - skip] * len(steps))  # pyright: ignore[reportPrivateImportUsage]
    group = optimizer.param_groups[0]
    sizes, scales = fused(step_sizes)(steps, skip, group["lr"], group["betas"])
    fused(adam_step)(
        list(parameters), gradients, means, squares, (divisor, skip, sizes, scales), group["betas"], group["eps"]
    )
