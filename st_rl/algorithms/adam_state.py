"""What of torch's Adam another way to make its step needs: whether it may, and the state in torch's own place."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def unwatched_adam(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> dict[str, Any] | None:
    """The settings of an Adam whose first step has made its state and whose steps nobody watches; else None."""
    if type(optimizer) is not torch.optim.Adam or len(optimizer.param_groups) != 1:
        return None
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    # A scheduler of torch puts a step of its own there, which counts.
    is_watched = "step" in vars(optimizer) or any(hooks)
    has_state = all(parameter in optimizer.state for parameter in parameters)
    return optimizer.param_groups[0] if has_state and not is_watched else None


def moments(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
    """Counts of steps, 0-d each, and running means of the gradients and of their squares, for each parameter."""
    states = [optimizer.state[parameter] for parameter in parameters]
    return tuple([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
