"""Compares single values with the contract of `VecEnv` and says in words what is wrong.

Every function yields the breaches of one value. A breach has a `kind`, so that the same one, met again on every step,
is reported once.
"""

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch


class Breach(NamedTuple):
    """One breach of the contract; two of the same `kind` are the same breach met twice."""

    kind: str
    text: str


def size_breaches(name: str, value: Any, remedy: str, minimum: int = 1) -> Iterator[Breach]:
    """Yield the breaches of a size such as `num_envs`: a Python int of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        yield Breach(name, f"{name} is {_show(value)}; {remedy}")
    elif value < minimum:
        yield Breach(name, f"{name} is {value}, less than {minimum}; {remedy}")


def tensor_breaches(
    name: str, value: Any, shape: tuple[int | None, ...], device: torch.device | None, rows: torch.Tensor | None = None
) -> Iterator[Breach]:
    """Yield the breaches of a float tensor: type, shape (`None` fits any size), dtype, device, finite numbers.

    Only the rows `rows (N,)` need to be finite where the mask is given.
    """
    if not isinstance(value, torch.Tensor):
        yield Breach(f"{name}.type", f"{name} is {_show(value)}, not a tensor of shape {_shape_text(shape)}")
        return
    if not _fits(value, shape):
        yield Breach(f"{name}.shape", f"{name} has shape {tuple(value.shape)}, expected {_shape_text(shape)}")
        return
    if value.dtype != torch.float32:
        yield Breach(f"{name}.dtype", f"{name} has dtype {value.dtype}, expected torch.float32; call .float() on it")
    elsewhere = list(device_breaches(name, value, device))
    yield from elsewhere
    if value.is_floating_point() and not elsewhere:
        yield from _finite_breaches(name, value, rows)


def flag_breaches(name: str, value: Any, num_envs: int, device: torch.device | None) -> Iterator[Breach]:
    """Yield the breaches of flags such as `dones`: `(N,)` of any dtype, holding 0 and 1 only."""
    if not isinstance(value, torch.Tensor):
        yield Breach(f"{name}.type", f"{name} is {_show(value)}, not a tensor of shape ({num_envs},)")
        return
    if tuple(value.shape) != (num_envs,):
        yield Breach(f"{name}.shape", f"{name} has shape {tuple(value.shape)}, expected ({num_envs},)")
        return
    yield from device_breaches(name, value, device)
    others = value[(value != 0) & (value != 1)]
    if others.numel() > 0:
        yield Breach(f"{name}.values", f"{name} holds {others[0].item()}; only 0 and 1 (or False and True) may occur")


def device_breaches(name: str, value: torch.Tensor, device: torch.device | None) -> Iterator[Breach]:
    """Yield a breach when a tensor does not live on the environment's device; "cuda" fits any index."""
    if device is None:
        return
    same_index = None in (device.index, value.device.index) or device.index == value.device.index
    if value.device.type != device.type or not same_index:
        yield Breach(f"{name}.device", f"{name} is on {value.device}, but env.device is {device}")


def segment_breaches(name: str, segments: Any, width: int | None) -> Iterator[Breach]:
    """Yield the breaches of an ordered mapping component -> shape whose widths add up to the observation's."""
    if not isinstance(segments, Mapping):
        yield Breach(f"{name}.type", f"{name} is {_show(segments)}, not a mapping of component name to shape")
        return
    total = 0
    for component, shape in segments.items():
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        if not isinstance(component, str):
            yield Breach(f"{name}.name", f"{name} has the component name {component!r}, which is not a string")
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes):
            text = f"{name}[{component!r}] is {shape!r}; a shape is a Python int or a tuple of them"
            yield Breach(f"{name}.{component}", text)
            return
        total += math.prod(sizes)
    if width is not None and total != width:
        text = f"the widths of {name} add up to {total}, but the observation has {width} numbers"
        yield Breach(f"{name}.width", text)


def log_breaches(name: str, log: Any) -> Iterator[Breach]:
    """Yield the breaches of a dict of episode statistics: name -> number, 0-d or 1-d tensor."""
    if not isinstance(log, Mapping):
        yield Breach(f"{name}.type", f"{name} is {_show(log)}, not a dict of name to number")
        return
    for key, value in log.items():
        is_tensor = isinstance(value, torch.Tensor)
        if not isinstance(key, str):
            yield Breach(f"{name}.key", f"{name} has the key {key!r}, which is not a string")
        elif is_tensor and value.ndim > 1:
            yield Breach(f"{name}.{key}", f"{name}[{key!r}] has shape {tuple(value.shape)}; give a 0-d or 1-d tensor")
        elif not is_tensor and not isinstance(value, numbers.Number):
            yield Breach(f"{name}.{key}", f"{name}[{key!r}] is {_show(value)}; give a number, a 0-d or a 1-d tensor")


def same_numbers(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Tell whether two tensors hold exactly the same numbers, NaN equal to NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    both_nan = (left != left) & (right != right)
    return bool(((left == right) | both_nan).all())


def _finite_breaches(name: str, value: torch.Tensor, rows: torch.Tensor | None) -> Iterator[Breach]:
    """Yield a breach when a tensor `(N, ...)` holds NaN or Inf, naming the first environment concerned."""
    flat = value.reshape(value.shape[0], -1)
    bad = ~torch.isfinite(flat)
    if rows is not None:
        bad = bad & rows.to(bad.device)[:, None]
    if bad.any():
        num_nan = int((bad & flat.isnan()).sum())
        first = int(bad.any(dim=1).int().argmax())
        counts = f"{num_nan} NaN and {int(bad.sum()) - num_nan} Inf numbers"
        yield Breach(f"{name}.finite", f"{name} holds {counts}, the first in environment {first}")


def _fits(value: torch.Tensor, shape: tuple[int | None, ...]) -> bool:
    """Tell whether a tensor has a shape in which `None` fits any size."""
    return value.ndim == len(shape) and all(want in (None, have) for have, want in zip(value.shape, shape))


def _shape_text(shape: tuple[int | None, ...]) -> str:
    """Write a shape with `*` where any size fits."""
    sizes = ["*" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _show(value: Any) -> str:
    """Write a value that has the wrong type: itself where it is short, with its type."""
    if value is None:
        return "None"
    text = repr(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{text} ({kind})" if len(text) <= 40 and "\n" not in text else f"a {kind}"
