"""Helpers that cut a rollout into mini-batches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

Select: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Picks the rows of one mini-batch out of a buffer `(T, N, ...)`."""


def select_samples(steps: slice | torch.Tensor, envs: slice | torch.Tensor, num_envs: int) -> Select:
    """Return what picks rows of a buffer: `(M, ...)` for two index vectors `(M,)`, `(T, B, ...)` for two slices."""
    if isinstance(steps, torch.Tensor) and isinstance(envs, torch.Tensor) and steps.ndim == envs.ndim == 1:
        # One flat index copies whole rows, which is several times faster than indexing two axes.
        rows = steps * num_envs + envs
        return lambda buffer: buffer.flatten(0, 1).index_select(0, rows)
    return lambda buffer: buffer[steps, envs].contiguous()


def leaves(container: Any) -> Iterator[Any]:
    """Yield the tensors of nested tuples or lists, depth first; a missing one comes as None."""
    if isinstance(container, tuple | list):
        for item in container:
            yield from leaves(item)
    else:
        yield container


def chunk_size(count: int, num_mini_batches: int, what: str) -> int:
    """Return the size of each of `num_mini_batches` equal chunks of `count` things, at least 1."""
    if count < 1:
        raise ValueError(f"the storage holds no {what}; add transitions before asking for mini-batches")
    if not 1 <= num_mini_batches <= count:
        raise ValueError(
            f"{count} {what} cannot be cut into num_mini_batches={num_mini_batches} chunks; choose 1 to {count}"
        )
    return count // num_mini_batches


def every_epoch(
    build: Callable[[Any], Any], chunks: Sequence[Any], num_epochs: int, keep: bool = True
) -> Iterator[Any]:
    """Yield the mini-batch of every chunk in every epoch, building each when it is first needed and only then.

    Where they must not be kept, because all of them would not fit into memory, each is built in every epoch.
    """
    if num_epochs < 1:
        return
    if not keep:
        for _ in range(num_epochs):
            yield from map(build, chunks)
        return
    batches = []
    for chunk in chunks:
        batch = build(chunk)
        if num_epochs > 1:
            batches.append(batch)
        yield batch
    for _ in range(num_epochs - 1):
        yield from batches
