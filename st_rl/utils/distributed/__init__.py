"""Several processes as one training: the process group of torchrun, and collectives that are no-ops on one rank."""

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

RANK_TIMEOUT_S = 600.0
EXCHANGE_ALONE = False
"""Whether the only rank of a process group exchanges, too; a benchmark sets it to measure exchanges on one GPU."""
captured_exchanges: "weakref.WeakSet[torch.cuda.CUDAGraph]" = weakref.WeakSet()
"""The CUDA graphs that may hold exchanges."""
# Takes the place of sums over ranks while CUDA graphs are captured that cannot hold them.
_defer_sum: "Callable[[Tensor], None] | None" = None
_SEED_STRIDE = 1_000_003

Value = TypeVar("Value")


def is_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def join_process_group(device: torch.device | str, timeout_s: float = RANK_TIMEOUT_S) -> torch.device | str:
    """Join the process group that torchrun started this process for; returns the device of this rank.

    Without torchrun, or in a process group already, only the device is chosen: `cuda` becomes the GPU of the local
    rank. Until `limit_exchanges` ranks wait for each other for at least `RANK_TIMEOUT_S`: some start later.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    kind = torch.device(device)
    if kind.type == "cuda" and "LOCAL_RANK" in os.environ:
        if kind.index is None:
            device = f"cuda:{local_rank % torch.cuda.device_count()}"
        # Exchanges of Python objects use the current device.
        torch.cuda.set_device(device)
    if dist.is_available() and not dist.is_initialized() and is_torchrun():
        # NCCL needs a GPU for each rank.
        has_own_gpu = kind.type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()
        backend, timeout = "nccl" if has_own_gpu else "gloo", timedelta(seconds=max(timeout_s, RANK_TIMEOUT_S))
        store, number, count = next(rendezvous("env://", timeout=timeout))
        if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]:
            # torchrun keeps its store over restarts: without a prefix, a restarted rank may wait for the address of a
            # killed one. Only the ranks of one machine count the same restarts.
            store = PrefixStore(f"attempt_{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        # With its device NCCL connects the ranks here, and not in the first exchange.
        own_gpu = torch.device(device) if has_own_gpu else None
        with _end_on_sigterm():
            dist.init_process_group(
                backend, timeout=timeout, store=store, rank=number, world_size=count, device_id=own_gpu
            )
        atexit.register(_leave_at_exit)
    return device


def limit_exchanges(timeout_s: float) -> None:
    """Let an exchange that a rank does not join within `timeout_s` raise RuntimeError on the others."""
    if dist.is_available() and dist.is_initialized():
        _set_pg_timeout(timedelta(seconds=timeout_s))


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process at once: Python's handlers do not run while it waits for a rank that has died."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _leave_at_exit() -> None:
    # After an uncaught exception the others may be gone, and leaving would wait for them.
    if "last_value" not in vars(sys):
        leave_process_group()


def leave_process_group() -> None:
    """Leave the process group, if there is one, and discard the CUDA graphs that hold exchanges."""
    if dist.is_initialized():
        # NCCL waits for all graphs that use its connections.
        for graph in list(captured_exchanges):
            graph.reset()
        dist.destroy_process_group()


def world_size() -> int:
    """Number of ranks; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process; 0 without torch.distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this is rank 0, which writes logs and checkpoints."""
    return rank() == 0


def has_exchanges() -> bool:
    """Whether ranks exchange anything: in a process group of several ranks."""
    return dist.is_available() and dist.is_initialized() and (dist.get_world_size() > 1 or EXCHANGE_ALONE)


def rank_seed(seed: int) -> int:
    """The seed of this rank: `seed` itself on rank 0, another one on every other rank."""
    return (seed + rank() * _SEED_STRIDE) % 2**63


def any_rank(flag: bool, device: torch.device | str = "cpu") -> bool:
    """Whether the flag is set on any rank; a host sync with several ranks."""
    if not has_exchanges():
        return flag
    total = torch.tensor(float(flag), device=device if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(total)
    return bool(total > 0)


def find_rank(flag: bool, device: torch.device | str = "cpu") -> int | None:
    """The lowest rank on which the flag is set, None if on none; a host sync with several ranks."""
    if not has_exchanges():
        return 0 if flag else None
    lowest = torch.tensor(rank() if flag else world_size(), device=device if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return int(lowest) if lowest < world_size() else None


def value_of_main(value: Value) -> Value:
    """The value of rank 0 on every rank: plain Python values and tensors on the host."""
    values: list[Any] = [value]
    if has_exchanges():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def gather_to_main(value: Value) -> list[Value]:
    """The values of all ranks by rank on rank 0, an empty list elsewhere: plain values and tensors on the host."""
    if not has_exchanges():
        return [value]
    values: list[Any] = [None] * world_size() if is_main() else []
    dist.gather_object(value, values if is_main() else None, dst=0)
    return values


def gather_to_all(value: Value) -> list[Value]:
    """The values of all ranks by rank, on every rank: plain values and tensors on the host."""
    values: list[Any] = [value] * world_size()
    if has_exchanges():
        dist.all_gather_object(values, value)
    return values


@contextmanager
def defer_sums(defer: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `defer` in this context with each tensor that is to be summed over all ranks, in place of the sum."""
    global _defer_sum
    before, _defer_sum = _defer_sum, defer
    try:
        yield
    finally:
        _defer_sum = before


def sum_over_ranks(tensor: Tensor) -> None:
    """Replace a tensor by its sum over all ranks."""
    if _defer_sum is not None:
        _defer_sum(tensor)
    elif tensor.is_cuda and dist.get_backend() == "gloo":
        # gloo's own copies run in a thread without inference mode.
        total = tensor.cpu()
        dist.all_reduce(total)
        tensor.copy_(total)
    else:
        dist.all_reduce(tensor)


def average(tensor: Tensor) -> Tensor:
    """Mean of `tensor` over all ranks, the same shape everywhere; the tensor itself on one rank."""
    if not has_exchanges():
        return tensor
    total = tensor.detach().clone() if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
    sum_over_ranks(total)
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
    if not has_exchanges():
        return mean, var, count
    if isinstance(count, int):
        joint_mean = average(mean)
        return joint_mean, average(var + (mean - joint_mean) ** 2), count * world_size()
    weight = count.to(mean.dtype)
    sums = torch.cat([(weight * mean).reshape(-1), weight.reshape(1)])
    sum_over_ranks(sums)
    total = sums[-1]
    divisor = torch.where(total > 0, total, torch.ones_like(total))
    joint_mean = (sums[:-1] / divisor).view_as(mean)
    spread = weight * (var + (mean - joint_mean) ** 2)
    sum_over_ranks(spread)
    return joint_mean, spread / divisor, total.to(count.dtype)


def broadcast_module(module: torch.nn.Module) -> None:
    """Copy the parameters and buffers of rank 0 to every rank, in place."""
    if not has_exchanges():
        return
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def average_in_place(tensors: Sequence[Tensor]) -> None:
    """Replace tensors of one dtype by their means over all ranks, with one all-reduce; their shapes must not differ."""
    if not has_exchanges() or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    sum_over_ranks(flat)
    flat /= world_size()
    parts = flat.split([tensor.numel() for tensor in tensors])
    # On a GPU one kernel instead of one for each tensor.
    torch._foreach_copy_(list(tensors), [part.view_as(tensor) for tensor, part in zip(tensors, parts)])  # pyright: ignore[reportPrivateImportUsage]
