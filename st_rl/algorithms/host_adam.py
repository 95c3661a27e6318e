"""Adam's step on a CPU without all that torch does around its kernel, which takes several times as long."""

from collections.abc import Sequence

import torch
from torch import Tensor

from st_rl.algorithms.adam_state import moments, unwatched_adam


def can_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Whether `follow` does what the optimiser would: fused Adam on a CPU, whose first step has made its state."""
    group = unwatched_adam(optimizer, parameters)
    if group is None or any(parameter.is_cuda for parameter in parameters):
        return False
    return group["fused"] and not group["amsgrad"] and isinstance(group["lr"], float)


@torch.no_grad()
def follow(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor], divisor: float = 1.0
) -> None:
    """Divide the gradients, in place, and step along them.

    The state stays where torch keeps it and holds what torch's own step would leave.
    """
    group = optimizer.param_groups[0]
    steps, means, squares = moments(optimizer, parameters)
    torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
    torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
        list(parameters),
        list(gradients),
        means,
        squares,
        [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
        grad_scale=torch.tensor(divisor) if divisor != 1.0 else None,
    )
