"""Collectives over all ranks; every function is a no-op on one rank."""

from collections.abc import Sequence
from typing import overload

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of ranks; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process; 0 without torch.distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this is rank 0, which writes logs and checkpoints."""
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
    """Mean, population variance and size of the batches of all ranks, from those of this rank.

    `mean (...)` and `var (...)` have one shape. `count` is an int if it is equal on all ranks, else a 0-d tensor; a
    rank without samples passes 0 and finite moments. Numerically stable for a mean that is large compared to the
    deviation; no host sync.
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
    """Copy the parameters and buffers of rank 0 to every rank, in place."""
    if world_size() == 1:
        return
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def average_in_place(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all ranks, with one all-reduce; shapes are the same on every rank."""
    if world_size() == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view_as(tensor))
