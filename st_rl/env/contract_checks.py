"""Checks of single values against the contract of `VecEnv`.

Every function yields the violations of one value: a kind, so that one that occurs at every step is reported once, and
a text.
"""

import math
import numbers
from collections.abc import Iterator, Mapping

import torch

Violations = Iterator[tuple[str, str]]


def check_size(name: str, value: object, remedy: str) -> Violations:
    """Check a size such as `num_envs`: a positive Python int."""
    if isinstance(value, bool) or not isinstance(value, int):
        yield name, f"{name} is {_show(value)}; {remedy}"
    elif value < 1:
        yield name, f"{name} is {value}, less than 1; {remedy}"


def check_tensor(
    name: str,
    value: object,
    shape: tuple[int | None, ...],
    device: torch.device | None,
    rows: torch.Tensor | None = None,
) -> Violations:
    """Check type, shape (`None` matches any size), dtype, device and finiteness of a float tensor.

    With the mask `rows (N,)` only those rows must be finite.
    """
    if not isinstance(value, torch.Tensor) or not _has_shape(value, shape):
        yield _shape_violation(name, value, shape)
        return
    if value.dtype != torch.float32:
        yield f"{name}.dtype", f"{name} has dtype {value.dtype}, expected torch.float32; call .float() on it"
    on_wrong_device = list(check_device(name, value, device))
    yield from on_wrong_device
    if on_wrong_device or not value.is_floating_point():
        return
    flat = value.reshape(value.shape[0], -1)
    bad = ~torch.isfinite(flat)
    if rows is not None:
        bad = bad & rows.to(bad.device)[:, None]
    if bad.any():
        num_nan = int((bad & flat.isnan()).sum())
        first = int(bad.any(dim=1).int().argmax())
        counts = f"{num_nan} NaN and {int(bad.sum()) - num_nan} Inf numbers"
        yield f"{name}.finite", f"{name} holds {counts}, the first in environment {first}"


def check_flags(name: str, value: object, num_envs: int, device: torch.device | None) -> Violations:
    """Check flags such as `dones`: `(N,)` of any dtype with values 0 and 1."""
    if not isinstance(value, torch.Tensor) or not _has_shape(value, (num_envs,)):
        yield _shape_violation(name, value, (num_envs,))
        return
    yield from check_device(name, value, device)
    others = value[(value != 0) & (value != 1)]
    if others.numel() > 0:
        yield f"{name}.values", f"{name} holds {others[0].item()}; only 0 and 1 (or False and True) may occur"


def check_device(name: str, value: torch.Tensor, device: torch.device | None) -> Violations:
    """Check that a tensor is on the environment's device; "cuda" matches any index."""
    if device is None:
        return
    same_index = None in (device.index, value.device.index) or device.index == value.device.index
    if value.device.type != device.type or not same_index:
        yield f"{name}.device", f"{name} is on {value.device}, but env.device is {device}"


def check_segments(name: str, segments: object, width: int | None) -> Violations:
    """Check an ordered mapping component -> shape; the widths must add up to the width of the observation."""
    if not isinstance(segments, Mapping):
        yield f"{name}.type", f"{name} is {_show(segments)}, not a mapping of component name to shape"
        return
    total = 0
    for component, shape in segments.items():
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        if not isinstance(component, str):
            yield f"{name}.name", f"{name} has the component name {component!r}, which is not a string"
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes):
            text = f"{name}[{component!r}] is {shape!r}; a shape is a Python int or a tuple of them"
            yield f"{name}.{component}", text
            return
        total += math.prod(sizes)
    if width is not None and total != width:
        text = f"the widths of {name} add up to {total}, but the observation has {width} numbers"
        yield f"{name}.width", text


def check_log(name: str, log: object) -> Violations:
    """Check a dict of episode statistics: name -> number, 0-d or 1-d tensor."""
    if not isinstance(log, Mapping):
        yield f"{name}.type", f"{name} is {_show(log)}, not a dict of name to number"
        return
    for key, value in log.items():
        is_tensor = isinstance(value, torch.Tensor)
        if not isinstance(key, str):
            yield f"{name}.key", f"{name} has the key {key!r}, which is not a string"
        elif is_tensor and value.ndim > 1:
            yield f"{name}.{key}", f"{name}[{key!r}] has shape {tuple(value.shape)}; give a 0-d or 1-d tensor"
        elif not is_tensor and not isinstance(value, numbers.Number):
            yield f"{name}.{key}", f"{name}[{key!r}] is {_show(value)}; give a number, a 0-d or a 1-d tensor"


def equal_with_nan(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are equal in shape, dtype and values, with NaN equal to NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    both_nan = (left != left) & (right != right)
    return bool(((left == right) | both_nan).all())


def _has_shape(value: torch.Tensor, shape: tuple[int | None, ...]) -> bool:
    return value.ndim == len(shape) and all(want in (None, have) for have, want in zip(value.shape, shape))


def _shape_violation(name: str, value: object, shape: tuple[int | None, ...]) -> tuple[str, str]:
    """The violation of a value that is no tensor of a shape, in which `None` matches any size."""
    sizes = ["*" if size is None else str(size) for size in shape]
    expected = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    if not isinstance(value, torch.Tensor):
        return f"{name}.type", f"{name} is {_show(value)}, not a tensor of shape {expected}"
    return f"{name}.shape", f"{name} has shape {tuple(value.shape)}, expected {expected}"


def _show(value: object) -> str:
    """Format a value of the wrong type: with its repr if that is short, always with its type."""
    if value is None:
        return "None"
    text = repr(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{text} ({kind})" if len(text) <= 40 and "\n" not in text else f"a {kind}"
