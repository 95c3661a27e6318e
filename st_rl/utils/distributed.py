"""The seam for several processes: every function is a no-op on one rank."""

from collections.abc import Iterable
from typing import overload

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether this process is one of several that talk to each other."""
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Number of processes that train together; 1 without torch.distributed."""
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    """Number of this process among them, from 0; 0 without torch.distributed."""
    return dist.get_rank() if is_distributed() else 0


def is_main() -> bool:
    """Whether this is the process that writes logs and checkpoints."""
    return rank() == 0


def average(tensor: Tensor) -> Tensor:
    """Mean of `tensor` over all ranks, the same shape everywhere; the tensor itself on one rank."""
    if world_size() == 1:
        return tensor
    total = tensor.detach().clone() if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    dist.all_reduce(total)
    return total / world_size()


@overload
def combine_moments(mean: Tensor, var: Tensor, count: int) -> tuple[Tensor, Tensor, int]: ...
@overload
def combine_moments(mean: Tensor, var: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...
def combine_moments(mean: Tensor, var: Tensor, count: Tensor | int) -> tuple[Tensor, Tensor, Tensor | int]:
    """Mean, population variance and size of all ranks' batches together, from those of this rank's batch.

    `mean (...)` and `var (...)` have one shape. `count` is an int when every rank has as many samples, or a 0-d tensor
    when they may differ; a rank without samples passes 0 and finite moments. Exact, also when the mean is large against
    the spread, and without a host sync.
    """
    num_ranks = world_size()
    if num_ranks == 1:
        return mean, var, count
    if isinstance(count, int):
        joint_mean = average(mean)
        return joint_mean, average(var + (mean - joint_mean) ** 2), count * num_ranks
    weight = count.to(mean.dtype)
    sums = torch.cat([(weight * mean).reshape(-1), weight.reshape(1)])
    dist.all_reduce(sums)
    total = sums[-1]
    divisor = torch.where(total > 0, total, torch.ones_like(total))
    joint_mean = (sums[:-1] / divisor).view_as(mean)
    spread = weight * (var + (mean - joint_mean) ** 2)
    dist.all_reduce(spread)
    return joint_mean, spread / divisor, total.to(count.dtype)


def broadcast_module(module: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, in place."""
    if world_size() == 1:
        return
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace the gradients of `parameters` by their mean over all ranks, with one exchange.

    Parameters without a gradient are left alone; every rank must have gradients on the same ones.
    """
    if world_size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size()
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts):
        gradient.copy_(part.view_as(gradient))
