"""Moves modules between devices."""

import torch
from torch import nn


def move_to(module: nn.Module, device: torch.device | str) -> bool:
    """Move a module to a device unless it is there; returns whether it was moved.

    `Module.to` reallocates the weights of a recurrent network even on the same GPU, which breaks captured graphs.
    """
    target = torch.device(device)
    tensors = [*module.parameters(), *module.buffers()]
    if all(tensor.device.type == target.type and target.index in (None, tensor.device.index) for tensor in tensors):
        return False
    module.to(target)
    return True
