"""Adam's step on a CPU without all that torch does around its kernel, which takes several times as long."""

from collections.abc import Sequence

import torch
from torch import Tensor


def can_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Whether `follow` does what the optimiser would: fused Adam, whose first step has made its state."""
    if type(optimizer) is not torch.optim.Adam or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    # A scheduler of torch puts a step of its own there, which counts.
    is_watched = "step" in vars(optimizer) or any(hooks)
    is_plain = group["fused"] and not group["amsgrad"] and isinstance(group["lr"], float)
    return is_plain and not is_watched and all(parameter in optimizer.state for parameter in parameters)


@torch.no_grad()
def follow(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Step along the gradients; the state stays where torch keeps it and holds what torch's own step would leave."""
    group = optimizer.param_groups[0]
    states = [optimizer.state[parameter] for parameter in parameters]
    steps, means, squares = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
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
    )
