"""Learning-rate schedulers of `torch.optim` by name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import lr_scheduler

from st_rl.utils.config import unknown_name_message


def make_lr_scheduler(
    name: str, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any]
) -> lr_scheduler.LRScheduler:
    """A scheduler of `torch.optim.lr_scheduler`, to be stepped once per update."""
    known = {key: cls for key, cls in vars(lr_scheduler).items() if _is_usable(cls) and not key.startswith("_")}
    if name not in known:
        raise ValueError(unknown_name_message("lr_scheduler_class_name", name, known))
    return known[name](optimizer, **settings)


def _is_usable(cls: object) -> bool:
    """Whether a class is a scheduler with a step that takes no metric."""
    if not isinstance(cls, type) or not issubclass(cls, lr_scheduler.LRScheduler):
        return False
    return cls not in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)
