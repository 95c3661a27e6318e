"""Declares the per-step buffers of a storage and derives `Transition` and `MiniBatch` from the declaration."""

import operator
from collections import namedtuple
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

_Batch = TypeVar("_Batch", bound="MiniBatch")

Shape = int | Sequence[int] | Sequence[None] | None
"""Shape of one row as clients write it; None, `[None]`, 0 and `[0]` mean that there is no such data."""


@dataclass(frozen=True)
class BufferField:
    """One tensor stored for every step: its source in the transition, its buffer and its mini-batch field."""

    name: str
    """Attribute of the storage that holds the buffer `(T, N, *shape)`."""
    shape: str
    """Shape kind: `"scalar"`, or `k` for the constructor argument `k_shape`."""
    source: str | None = None
    """Attribute of the transition that is copied at every step; None when the storage computes the buffer."""
    batch: str | None = None
    """Field of the mini-batch that receives the selected rows; None: not part of mini-batches."""
    dtype: torch.dtype | None = None
    """Element type of the buffer; None for torch's default, float32 unless `torch.set_default_dtype` changed it."""
    flag: bool = False
    """Whether the source is a flag of any dtype, stored as 0 or 1."""
    padded: bool = False
    """Whether a recurrent mini-batch holds it as padded trajectories `(T, K, *shape)` instead of `(T, B, *shape)`."""
    optional: bool = False
    """Whether there is no buffer (None) when its shape is None, `[None]`, 0 or `[0]`."""
    fallback: str | None = None
    """Earlier mini-batch field to use when there is no buffer."""


class StepTransition:
    """The data of one step of all environments; every field is None until it is set."""

    observations: torch.Tensor | None = None
    critic_observations: torch.Tensor | None = None
    actions: torch.Tensor | None = None
    rewards: torch.Tensor | None = None
    dones: torch.Tensor | None = None
    values: torch.Tensor | None = None
    actions_log_prob: torch.Tensor | None = None
    action_mean: torch.Tensor | None = None
    action_sigma: torch.Tensor | None = None
    hidden_states: Any = None
    rnd_state: torch.Tensor | None = None

    if TYPE_CHECKING:
        # Fields that a storage adds, such as `action_labels`.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def clear(self) -> None:
        """Reset every field to None."""
        self.__dict__.clear()
        # A subclass may set further fields in its constructor instead of declaring them.
        self.__init__()


class MiniBatch(Protocol):
    """The type of a mini-batch: a named tuple with these fields, then those that a storage adds to `RolloutStorage`.

    Feed-forward: `(M, ...)`. Recurrent: `(T, B, ...)`, but padded trajectories `(T, K, ...)` for observations.
    """

    obs: torch.Tensor
    critic_obs: torch.Tensor
    actions: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    old_actions_log_prob: torch.Tensor
    old_mu: torch.Tensor
    old_sigma: torch.Tensor
    hidden_states: Any
    """Recurrent: the policy's hidden states at the first step of every trajectory, leaves `(L, K, H)`; else None."""
    masks: torch.Tensor | None
    """Recurrent: bool `(T, K)`, True on real steps, or int64 positions `(T, B)` (`trajectory_capacity`); else None."""
    rnd_state: torch.Tensor | None

    def __getattr__(self, name: str) -> Any:
        """Fields that a storage adds, such as `action_labels`."""
        ...

    def _replace(self: _Batch, **fields: Any) -> _Batch:
        """Return a copy with other values in some fields."""
        ...


def resolve_shape(shape: Shape) -> tuple[int, ...] | None:
    """Return a shape given as int, tuple or list as a tuple; None for None, `[None]`, 0 and `[0]`."""
    if shape is None:
        return None
    sizes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if sizes in ((), (None,), (0,)):
        return None
    return tuple(operator.index(size) for size in sizes)


def fit_row(value: torch.Tensor | None, source: str, row: torch.Tensor) -> torch.Tensor:
    """Return a transition's value in the shape of its buffer row `(N, ...)`; ValueError if the sizes differ."""
    if value is None:
        raise ValueError(f"transition.{source} is None; set it before add_transitions")
    if value.shape == row.shape:
        return value
    # Rewards and log-probs come as (N,) or (N, 1), images flat or not; broadcasting would hide a wrong size.
    if value.shape[:1] != row.shape[:1] or value.numel() != row.numel():
        expected, given = tuple(row.shape), tuple(value.shape)
        raise ValueError(f"transition.{source} has shape {given}; the storage expects {expected} per step")
    return value.reshape(row.shape)


def copy_rows(rows: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy every value into its row; on a GPU, rows of equal layout and dtype in one kernel."""
    matching: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for row, value in zip(rows, values):
        if row.is_cuda and (row.dtype, row.stride()) == (value.dtype, value.stride()):
            matching[0].append(row)
            matching[1].append(value)
        else:
            row.copy_(value)
    if matching[0]:
        torch._foreach_copy_(*matching)  # pyright: ignore[reportPrivateImportUsage]


def extend_transition(parent: type, fields: Iterable[BufferField], owner: type) -> type:
    """Return `parent` with an attribute, None by default, for every source that it lacks."""
    missing = {field.source: None for field in fields if field.source and field.source not in dir(parent)}
    if not missing:
        return parent
    namespace = {"__doc__": parent.__doc__, **_location(owner, "Transition"), **missing}
    return type("Transition", (parent,), namespace)


def extend_mini_batch(parent: Any, fields: Iterable[BufferField], owner: type) -> Any:
    """Return the named tuple `parent` with a trailing field, None by default, for every batch name it lacks."""
    missing = [field.batch for field in fields if field.batch and field.batch not in parent._fields]
    if not missing:
        return parent
    defaults = [*parent._field_defaults.values(), *[None] * len(missing)]
    mini_batch = namedtuple("MiniBatch", [*parent._fields, *missing], defaults=defaults)
    for name, value in _location(owner, "MiniBatch").items():
        setattr(mini_batch, name, value)
    return mini_batch


def _location(owner: type, name: str) -> dict[str, str]:
    """Module and qualified name under which pickle finds a class that is an attribute of `owner`."""
    return {"__module__": owner.__module__, "__qualname__": f"{owner.__qualname__}.{name}"}
