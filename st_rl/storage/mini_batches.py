"""The type of a mini-batch, and how a rollout is split into mini-batches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

_Batch = TypeVar("_Batch", bound="MiniBatch")
_Chunk = TypeVar("_Chunk")


class MiniBatch(Protocol):
    """The type of a mini-batch: a named tuple with these fields, then those that a storage adds to `RolloutStorage`.

    Feed-forward: `(M, ...)`. Recurrent: `(T, B, ...)`, but padded trajectories `(T, K, ...)` for observations.
    """

    obs: Tensor
    critic_obs: Tensor
    actions: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    old_actions_log_prob: Tensor
    old_mu: Tensor
    old_sigma: Tensor
    hidden_states: Any
    """Recurrent: the policy's hidden states at the first step of every trajectory, leaves `(L, K, H)`; else None."""
    masks: Tensor | None
    """Recurrent: bool `(T, K)`, True on real steps, or int64 positions `(T, B)` (`trajectory_capacity`); else None."""
    rnd_state: Tensor | None

    def __getattr__(self, name: str) -> Any:
        """Fields that a storage adds, such as `action_labels`."""
        ...

    def _replace(self: _Batch, **fields: Any) -> _Batch:
        """Return a copy with other values in some fields."""
        ...


def chunk_size(count: int, num_mini_batches: int, what: str) -> int:
    """Return the size of each of `num_mini_batches` equal chunks of `count` items, at least 1."""
    if count < 1:
        raise ValueError(f"the storage holds no {what}; add transitions before asking for mini-batches")
    if not 1 <= num_mini_batches <= count:
        raise ValueError(
            f"{count} {what} cannot be split into num_mini_batches={num_mini_batches} chunks; choose 1 to {count}"
        )
    return count // num_mini_batches


def repeat_epochs(
    gather: Callable[[_Chunk], MiniBatch], chunks: Sequence[_Chunk], num_epochs: int, cache: bool = True
) -> Iterator[MiniBatch]:
    """Yield the mini-batch of every chunk in every epoch; each is gathered once, lazily.

    Without `cache`, for rollouts of which all mini-batches do not fit into memory, each is gathered in every epoch.
    """
    batches: list[MiniBatch] = []
    for epoch in range(num_epochs):
        if epoch and cache:
            yield from batches
            continue
        for chunk in chunks:
            batch = gather(chunk)
            if cache and num_epochs > 1:
                batches.append(batch)
            yield batch
