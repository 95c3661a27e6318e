"""Splits rollouts into padded trajectories and back, by index arithmetic with static shapes.

A trajectory is a maximal run of steps of one environment that ends at a done (inclusive) or at the end of the buffer.
Trajectories are ordered environment-major: all of environment 0 in time order, then those of environment 1.
Shapes: `T` steps, `N` environments, `K` trajectories.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class TrajectoryIndex(NamedTuple):
    """Maps the steps of a `(T, N)` rollout to its padded `(T, K)` batch and back."""

    padded_source: Tensor
    """`(T, K)` int64: flat index `t * N + n` of the step in each padded cell, 0 in padding."""
    masks: Tensor
    """`(T, K)` bool: True on real steps."""
    position: Tensor
    """`(T, N)` int64: flat index `tau * K + k` of each step in the padded batch."""
    first_step: Tensor
    """`(K,)` int64: time of each trajectory's first step, 0 for those that are only padding."""
    env: Tensor
    """`(K,)` int64: environment of each trajectory, 0 for those that are only padding."""


def _starts(dones: Tensor) -> Tensor:
    """Mark the first step of every trajectory: `dones (T, N)` or `(T, N, 1)` of any dtype -> bool `(T, N)`."""
    if dones.dim() == 3 and dones.shape[-1] == 1:
        dones = dones.squeeze(-1)
    if dones.dim() != 2:
        raise ValueError(f"dones must have shape (T, N) or (T, N, 1), got {tuple(dones.shape)}")
    return torch.cat([torch.ones_like(dones[:1], dtype=torch.bool), dones[:-1] > 0])


def index_trajectories(dones: Tensor, num_trajectories: int | None = None) -> TrajectoryIndex:
    """Index the trajectories of `dones (T, N)` or `(T, N, 1)`.

    Without `num_trajectories`, K is counted in the data (one host sync). With it K is that number, at least the true
    one; surplus trajectories are only padding, and there is no host sync.
    """
    starts = _starts(dones)
    num_steps, num_envs = starts.shape
    device = starts.device
    if num_trajectories is None:
        num_trajectories = int(starts.sum())
    elif device.type == "cpu" and num_trajectories < int(starts.sum()):
        raise ValueError(
            f"num_trajectories={num_trajectories} is less than the {int(starts.sum())} trajectories in dones"
        )

    by_env = starts.t()
    time = torch.arange(num_steps, device=device).expand(num_envs, num_steps)
    env = torch.arange(num_envs, device=device).unsqueeze(-1).expand(num_envs, num_steps)
    piece = by_env.reshape(-1).cumsum(0).reshape(num_envs, num_steps) - 1
    first = torch.where(by_env, time, 0).cummax(dim=1).values if num_steps else time
    position = (time - first) * num_trajectories + piece

    cells = position.reshape(-1)
    padded_source = torch.zeros(num_steps * num_trajectories, dtype=torch.int64, device=device)
    padded_source.scatter_(0, cells, (time * num_envs + env).reshape(-1))
    masks = torch.zeros(num_steps * num_trajectories, dtype=torch.bool, device=device)
    masks.scatter_(0, cells, torch.ones_like(cells, dtype=torch.bool))
    # Every step of a trajectory writes the same value, so the order of the writes does not matter.
    first_step = torch.zeros(num_trajectories, dtype=torch.int64, device=device)
    first_step.scatter_(0, piece.reshape(-1), first.reshape(-1))
    first_env = torch.zeros(num_trajectories, dtype=torch.int64, device=device)
    first_env.scatter_(0, piece.reshape(-1), env.reshape(-1))
    return TrajectoryIndex(
        padded_source=padded_source.view(num_steps, num_trajectories),
        masks=masks.view(num_steps, num_trajectories),
        position=position.t().contiguous(),
        first_step=first_step,
        env=first_env,
    )


def pad(tensor: Tensor, index: TrajectoryIndex) -> Tensor:
    """Gather the trajectories of `tensor (T, N, ...)` as `(T, K, ...)`, padded with zeros."""
    num_steps, num_trajectories = index.masks.shape
    features = tensor.shape[2:]
    cells = tensor.reshape(-1, *features).index_select(0, index.padded_source.reshape(-1))
    cells = cells.view(num_steps, num_trajectories, *features)
    masks = index.masks.view(num_steps, num_trajectories, *[1] * len(features))
    return torch.where(masks, cells, cells.new_zeros(()))


def split_and_pad_trajectories(tensor: Tensor, dones: Tensor) -> tuple[Tensor, Tensor]:
    """Split `tensor (T, N, ...)` at `dones (T, N)` or `(T, N, 1)` into padded `(T, K, ...)` and bool masks `(T, K)`."""
    if tensor.shape[:2] != dones.shape[:2]:
        raise ValueError(f"tensor {tuple(tensor.shape)} and dones {tuple(dones.shape)} differ in their first two axes")
    index = index_trajectories(dones)
    return pad(tensor, index), index.masks


def unpad_trajectories(trajectories: Tensor, masks: Tensor) -> Tensor:
    """Put padded `trajectories (T, K, ...)` back into `(T, B, ...)`.

    `masks` is the bool mask `(T, K)` of `split_and_pad_trajectories`, or the int64 `position (T, B)` of a
    `TrajectoryIndex`: then there is no host sync.
    """
    features = trajectories.shape[2:]
    position = masks if masks.dtype == torch.int64 else _positions(masks.bool(), trajectories)
    # One gather of whole rows: several times faster than indexing with the mask, and contiguous.
    cells = trajectories.reshape(-1, *features).index_select(0, position.reshape(-1))
    return cells.view(*position.shape, *features)


def _positions(masks: Tensor, trajectories: Tensor) -> Tensor:
    """The int64 position `(T, B)` of every step of complete environments in padded `trajectories (T, K, ...)`."""
    num_steps, num_trajectories = trajectories.shape[:2]
    if masks.shape != trajectories.shape[:2]:
        raise ValueError(f"masks {tuple(masks.shape)} do not fit trajectories {tuple(trajectories.shape)}")
    piece, time = masks.t().nonzero(as_tuple=True)
    if num_steps == 0 or piece.shape[0] % num_steps:
        raise ValueError(
            f"masks select {piece.shape[0]} steps, which are not complete environments of {num_steps} steps each; "
            "pass all pieces of every environment"
        )
    return (time * num_trajectories + piece).view(-1, num_steps).t()
