"""Functions on nested containers of arrays, leaf by leaf.

A buffer is an array (torch or numpy), or a named array tuple, named tuple, tuple, list or mapping of buffers. None is a
missing leaf and passes through.
"""

import ctypes
import math
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from st_rl.utils.tensors.tree import tree_leaves, tree_map

Array = torch.Tensor | np.ndarray
Buffer = TypeVar("Buffer")


def build_array(example: object, leading_dims: int | Sequence[int], share_memory: bool = False) -> Any:
    """Allocate zeros of shape `leading_dims + example.shape` and the example's dtype.

    A tensor gives a tensor on the same device; a numpy array, number or nested list gives a numpy array.
    """
    leading = (leading_dims,) if isinstance(leading_dims, int) else tuple(int(size) for size in leading_dims)
    if isinstance(example, torch.Tensor):
        zeros = torch.zeros(leading + tuple(example.shape), dtype=example.dtype, device=example.device)
        return zeros.share_memory_() if share_memory else zeros
    array = np.asarray(example)
    if array.dtype == object:
        raise TypeError(f"cannot build an array from a {type(example).__name__}: {example!r} is not numeric")
    shape = leading + array.shape
    if not share_memory:
        return np.zeros(shape, dtype=array.dtype)
    size = math.prod(shape)
    shared = multiprocessing.RawArray(ctypes.c_char, max(1, size * array.dtype.itemsize))
    return np.frombuffer(memoryview(shared), dtype=array.dtype, count=size).reshape(shape)


def buffer_from_example(example: object, leading_dims: int | Sequence[int], share_memory: bool = False) -> Any:
    """Allocate a zero buffer in the containers of `example`, leaves of shape `leading_dims + leaf.shape`."""
    return tree_map(lambda leaf: build_array(leaf, leading_dims, share_memory), example)


def buffer_expand(buffer: Buffer, expand_size: int, dim: int = 0, contiguous: bool = False) -> Buffer:
    """Copy the buffer with `expand_size` zero rows appended along `dim`."""
    if expand_size < 0:
        raise ValueError(f"expand_size must not be negative, got {expand_size}")

    def expand(leaf: Array) -> Array:
        shape = list(leaf.shape)
        shape[dim] = expand_size
        if isinstance(leaf, torch.Tensor):
            longer = torch.cat([leaf, leaf.new_zeros(shape)], dim=dim)
        else:
            longer = np.concatenate([leaf, np.zeros(shape, dtype=leaf.dtype)], axis=dim)
        return _contiguous(longer) if contiguous else longer

    return tree_map(expand, buffer)


def buffer_swap(buffer: Buffer, cursor: int, dim: int = 0, contiguous: bool = False) -> Buffer:
    """The buffer with the rows from `cursor` on first and those before it last; along dim 0 only."""
    if dim != 0:
        raise ValueError(f"buffer_swap works along dim 0 only, got dim={dim}")

    def swap(leaf: Array) -> Array:
        if not 0 <= cursor <= leaf.shape[0]:
            raise ValueError(f"cursor {cursor} is outside a buffer of {leaf.shape[0]} rows")
        if cursor in (0, leaf.shape[0]):
            swapped = leaf
        elif isinstance(leaf, torch.Tensor):
            swapped = torch.cat([leaf[cursor:], leaf[:cursor]])
        else:
            swapped = np.concatenate([leaf[cursor:], leaf[:cursor]])
        return _contiguous(swapped) if contiguous else swapped

    return tree_map(swap, buffer)


def _contiguous(array: Array) -> Array:
    return array.contiguous() if isinstance(array, torch.Tensor) else np.ascontiguousarray(array)


def torchify_buffer(buffer: object) -> Any:
    """The buffer with tensors in place of numpy arrays, sharing their memory."""

    def torchify(leaf: object) -> object:
        if isinstance(leaf, np.ndarray):
            return torch.from_numpy(leaf)
        return torch.as_tensor(leaf) if isinstance(leaf, np.generic) else leaf

    return tree_map(torchify, buffer)


def numpify_buffer(buffer: object) -> Any:
    """The buffer with numpy arrays in place of tensors, sharing the memory of those on the CPU."""
    return tree_map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf, buffer)


def buffer_to(buffer: Buffer, device: torch.device | str | None = None) -> Buffer:
    """The buffer with every tensor on `device`; TypeError for numpy arrays."""

    def move(leaf: object) -> object:
        if isinstance(leaf, np.ndarray):
            raise TypeError("a numpy array cannot move to a device; call torchify_buffer first")
        return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(move, buffer)


def buffer_method(buffer: object, method_name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of every leaf: `buffer_method(state, "detach")`."""
    return tree_map(lambda leaf: getattr(leaf, method_name)(*args, **kwargs), buffer)


def buffer_func(buffer: object, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `func(leaf, *args, **kwargs)` on every leaf."""
    return tree_map(lambda leaf: func(leaf, *args, **kwargs), buffer)


def get_leading_dims(buffer: object, n_dim: int = 1) -> tuple[int, ...] | None:
    """The first `n_dim` sizes, which all leaves must share; None when there is no leaf."""
    leaves = [leaf for leaf in tree_leaves(buffer) if leaf is not None]
    found = {tuple(int(size) for size in leaf.shape[:n_dim]) for leaf in leaves}
    if len(found) > 1:
        raise ValueError(f"leaves have different leading dimensions: {sorted(found)}")
    return found.pop() if found else None
