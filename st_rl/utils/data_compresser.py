"""Compression of observation components on disk.

A kind of compression is a pair of functions in this module, `compress_{kind}` and `decompress_{kind}`; a new kind is
added by defining both.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

Array = TypeVar("Array", np.ndarray, torch.Tensor)


def compress_normalized_image(data: Array) -> Array:
    """Values of `data (...)` clipped to [0, 1], times 255, truncated to uint8; NaN becomes 0. Numpy or torch."""
    if isinstance(data, torch.Tensor):
        return (data.nan_to_num(nan=0.0).clamp(0.0, 1.0) * 255).to(torch.uint8)
    return (np.clip(np.nan_to_num(data, nan=0.0), 0.0, 1.0) * 255).astype(np.uint8)


def decompress_normalized_image(data: Array) -> Array:
    """`data (...)` of uint8 as float32 in [0, 1]. Numpy or torch."""
    if isinstance(data, torch.Tensor):
        return data.to(torch.float32) / 255
    return data.astype(np.float32) / np.float32(255)


def get_compressor(kind: str) -> Callable[[Any], Any]:
    """The function `compress_{kind}`."""
    return _find("compress", kind)


def get_decompressor(kind: str) -> Callable[[Any], Any]:
    """The function `decompress_{kind}`."""
    return _find("decompress", kind)


def _find(direction: str, kind: str) -> Callable[[Any], Any]:
    """The function of this module for one direction and kind."""
    function = globals().get(f"{direction}_{kind}")
    if not callable(function):
        kinds = sorted(name[len(direction) + 1 :] for name in globals() if name.startswith(f"{direction}_"))
        raise ValueError(f"unknown kind of compression '{kind}'; known: {', '.join(kinds)}")
    return function
