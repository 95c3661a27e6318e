"""Where modules live."""

import torch
from torch import nn


def move_to(module: nn.Module, device: torch.device | str) -> bool:
    """Move a module to a device; returns whether it was elsewhere.

    A module that is there already stays untouched. `Module.to` would give the weights of a recurrent network a new
    place in the memory of a GPU, while a captured graph goes on with the old one.
    """
    target = torch.device(device)
    tensors = [*module.parameters(), *module.buffers()]
    if all(tensor.device.type == target.type and target.index in (None, tensor.device.index) for tensor in tensors):
        return False
    module.to(target)
    return True
