"""Named components of flat observations.

`obs_segments` is an ordered mapping from component name to shape (an int or a sequence of ints). Components are
concatenated flat, in mapping order, along the last axis of the observation.

Losses call these functions; torch.compile traces lists, not generators.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Segments = Mapping[str, Any]
IMAGES = "images"
"""In place of component names: all components of shape `(C, H, W)`."""


def segment_width(shape: int | Sequence[int]) -> int:
    """Width of a component of this shape, as a Python int."""
    if isinstance(shape, Iterable):
        return math.prod([int(size) for size in shape])
    return int(shape)


def segment_slices(segments: Segments) -> dict[str, slice]:
    """Slice of every component along the observation axis, in mapping order, with Python int bounds."""
    slices = {}
    start = 0
    for name, shape in segments.items():
        stop = start + segment_width(shape)
        slices[name] = slice(start, stop)
        start = stop
    return slices


def expand_images(names: Iterable[str], segments: Segments) -> list[str]:
    """Return the names with `"images"` replaced by all components of shape `(C, H, W)` that are not named themselves.

    A component that is itself called `images` is one like any other.
    """
    names = list(names)
    if IMAGES not in names or IMAGES in segments:
        return names
    images = [name for name, shape in segments.items() if isinstance(shape, Iterable) and len(tuple(shape)) == 3]
    return [*(name for name in names if name != IMAGES), *(name for name in images if name not in names)]


def get_obs_slice(segments: Segments, component_name: str) -> tuple[slice, Any]:
    """Slice of one component along the observation axis, and its shape exactly as stored."""
    _check_known(segments, [component_name])
    return segment_slices(segments)[component_name], segments[component_name]


def get_subobs_size(obs_segments: Segments, component_names: Iterable[str]) -> int:
    """Total width of the named components."""
    wanted = _check_known(obs_segments, component_names)
    return sum([segment_width(shape) for name, shape in obs_segments.items() if name in wanted])


def get_subobs_by_components(observations: Tensor, component_names: Iterable[str], obs_segments: Segments) -> Tensor:
    """Concatenate the named components of `observations (..., O)` in segment order, whatever the order of the names."""
    wanted = _check_known(obs_segments, component_names)
    parts = [observations[..., where] for name, where in segment_slices(obs_segments).items() if name in wanted]
    return torch.cat(parts, dim=-1) if parts else observations[..., :0]


def substitute_estimated_state(
    observations: Tensor, target_components: Iterable[str], estimated_state: Tensor, obs_segments: Segments
) -> Tensor:
    """Overwrite the target components of `observations (..., O)` with `estimated_state (..., E)`, in segment order.

    Writes into `observations` and returns it: pass a copy.
    """
    wanted = _check_known(obs_segments, target_components)
    width = get_subobs_size(obs_segments, wanted)
    if estimated_state.shape[-1] != width:
        raise ValueError(
            f"estimated_state has width {estimated_state.shape[-1]}, but the components {sorted(wanted)} have {width}"
        )
    start = 0
    for name, where in segment_slices(obs_segments).items():
        if name in wanted:
            stop = start + where.stop - where.start
            observations[..., where] = estimated_state[..., start:stop]
            start = stop
    return observations


def _check_known(segments: Segments, component_names: Iterable[str]) -> set[str]:
    """The names as a set; AssertionError, which callers catch, when the segments lack one."""
    names = {component_names} if isinstance(component_names, str) else set(component_names)
    unknown = sorted([str(name) for name in names if name not in segments])
    if unknown:
        raise AssertionError(f"no observation component named {', '.join(unknown)}; there are {list(segments)}")
    return names
