"""Encoders of observation components: building them, and replacing components by their latents."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from st_rl.modules.conv2d import Conv2dHeadModel
from st_rl.modules.mlp import MlpModel
from st_rl.modules.networks.cnn import CnnModel
from st_rl.modules.utils import check_settings
from st_rl.utils.config import drop_none, is_class_path, resolve_class
from st_rl.utils.log import logger
from st_rl.utils.tensors.segments import Segments, expand_images, get_obs_slice, segment_width

Setting = TypeVar("Setting")
Shape = int | Sequence[int]
ComponentSlice = tuple[slice, Shape]
"""Position of a component along the observation axis, and its shape in the segments."""

ENCODERS: dict[str, type[nn.Module]] = {
    "MlpModel": MlpModel,
    "Conv2dHeadModel": Conv2dHeadModel,
    "CnnModel": CnnModel,
}
DEFAULT_HIDDEN_SIZES = (256, 128)
DEFAULT_CONVOLUTIONS: dict[str, Any] = {"channels": [64, 64], "kernel_sizes": [3, 3], "strides": [1, 1]}


def as_names(names: str | Iterable[str] | None) -> list[str]:
    """Return a list of component names, given as one name, several or None; ValueError for a name given twice."""
    found = [names] if isinstance(names, str) else list(names or ())
    if len(set(found)) != len(found):
        raise ValueError(f"a component is named twice in {found}")
    return found


def resolve_names(names: str | Iterable[str] | None, segments: Segments | None, setting: str) -> list[str]:
    """Return component names, `"images"` replaced by all images; ValueError, naming the setting, if there are none."""
    given = as_names(names)
    resolved = given if segments is None else expand_images(given, segments)
    if given and not resolved:
        raise ValueError(f"{setting}={given}: no component has the shape (C, H, W) of an image: {dict(segments or {})}")
    return resolved


def find_components(segments: Segments | None, names: Sequence[str], setting: str) -> list[ComponentSlice]:
    """Return slices and shapes of named components; ValueError, naming the setting, for an unknown one."""
    if not names:
        return []
    if segments is None:
        raise ValueError(
            f"{setting}={list(names)} needs obs_segments to find them, from the environment or the configuration"
        )
    missing = [name for name in names if name not in segments]
    if missing:
        raise ValueError(f"{setting} names {missing}, which the observation does not have; it has {list(segments)}")
    return [get_obs_slice(segments, name) for name in names]


def one_for_each(names: Sequence[str], value: Setting | Sequence[Setting], setting: str) -> list[Setting]:
    """Return a setting per name, given once for all or in a list of the same length."""
    if not isinstance(value, list | tuple):
        return [value] * len(names)  # pyright: ignore[reportReturnType]
    if len(value) != len(names):
        raise ValueError(f"{setting} has {len(value)} entries for the {len(names)} components {list(names)}")
    return list(value)


def same_by_name(
    names: Sequence[str], value: Setting | Sequence[Setting], given_names: Sequence[str]
) -> Setting | Sequence[Setting]:
    """Return the entries for `names` of a setting that was given for `given_names`, if those contain them."""
    if not isinstance(value, list | tuple) or len(value) != len(given_names) or not set(names) <= set(given_names):
        return value
    return [value[given_names.index(name)] for name in names]


def image_shape(name: str, shape: Shape) -> tuple[int, int, int]:
    """Return the shape of an image component; ValueError unless it is `(C, H, W)`."""
    if not isinstance(shape, Iterable) or len(tuple(shape)) != 3:
        raise ValueError(f"'{name}' has shape {shape}, a convolution needs an image: (channels, height, width)")
    channels, height, width = (int(size) for size in shape)
    return channels, height, width


def build_encoder(
    name: str, class_name: str, shape: Shape, output_size: int, kwargs: Mapping[str, Any] | None
) -> nn.Module:
    """Build the encoder of one component of this shape; its latent comes after the nonlinearity.

    `class_name` is one of `ENCODERS` or a path `package.module:Class`. The latent of a `CnnModel` is as wide as its
    convolutions make it, all others have width `output_size`. A class that is not registered is called as
    `Class(shape, output_size=..., **kwargs)` and maps `(B, *shape) -> (B, output_size)`.
    """
    encoder_class = _encoder_class(name, class_name)
    where = f"encoder_kwargs of '{name}'"
    if issubclass(encoder_class, CnnModel):
        check_settings(where, drop_none(kwargs or {}), encoder_class, decided=["image_shape"])
        return encoder_class(image_shape(name, shape), **drop_none(kwargs or {}))
    if not issubclass(encoder_class, MlpModel | Conv2dHeadModel):
        return encoder_class(shape, output_size=output_size, **(kwargs or {}))
    settings = drop_none(kwargs or {})
    if settings.pop("output_size", None) is not None:
        logger.warning(f"encoder_kwargs.output_size of '{name}' has no effect: encoder_output_size sets the width")
    hidden_sizes = settings.pop("hidden_sizes", DEFAULT_HIDDEN_SIZES)
    hidden_sizes = [hidden_sizes] if isinstance(hidden_sizes, int) else list(hidden_sizes)
    settings |= {"hidden_sizes": [*hidden_sizes, output_size], "output_size": None}
    if issubclass(encoder_class, MlpModel):
        check_settings(where, settings, encoder_class, decided=["input_size"])
        return encoder_class(segment_width(shape), **settings)
    check_settings(where, settings, encoder_class, decided=["image_shape"])
    return encoder_class(image_shape(name, shape), **{**DEFAULT_CONVOLUTIONS, **settings})


def latent_size(name: str, class_name: str, shape: Shape, output_size: int, kwargs: Mapping[str, Any] | None) -> int:
    """Return the width of the latent of `build_encoder`: `output_size`, or that of the convolutions of a `CnnModel`."""
    if not issubclass(_encoder_class(name, class_name), CnnModel):
        return output_size
    # On the meta device no weights are allocated and no random numbers sampled.
    with torch.device("meta"):
        return build_encoder(name, class_name, shape, output_size, kwargs).output_size  # pyright: ignore[reportReturnType]


def _encoder_class(name: str, class_name: str) -> type[nn.Module]:
    """Return the class of the encoder of one component."""
    if not is_class_path(class_name) and class_name not in ENCODERS:
        raise NotImplementedError(
            f"unknown encoder class '{class_name}' for '{name}'; use MlpModel, Conv2dHeadModel or CnnModel for images, "
            "or your own class as package.module:Class"
        )
    return resolve_class(class_name, ENCODERS, "encoder class", nn.Module)


def apply_encoder(encoder: nn.Module, component: Tensor, shape: Shape) -> Tensor:
    """Return the latent of a flat component, `(..., D) -> (..., L)`."""
    if isinstance(encoder, MlpModel):
        return encoder(component)
    sizes = shape if isinstance(shape, Iterable) else (shape,)
    return encoder(component.reshape(-1, *(int(size) for size in sizes))).reshape(*component.shape[:-1], -1)


def embed_latents(observations: Tensor, latents: Iterable[tuple[slice, Tensor]]) -> Tensor:
    """Replace slices by latents, given in the order of the slices: `(..., O) -> (..., O')`."""
    parts: list[Tensor] = []
    end = 0
    for where, latent in latents:
        parts += [observations[..., end : where.start], latent] if where.start > end else [latent]
        end = where.stop
    if not parts:
        return observations
    if end < observations.shape[-1]:
        parts.append(observations[..., end:])
    return torch.cat(parts, dim=-1)


def embedded_width(width: int, obs_slices: Iterable[ComponentSlice], latent_sizes: Iterable[int]) -> int:
    """Return the width of an observation with slices replaced by latents of these sizes.

    ValueError for a slice beyond the end: the segments do not belong to this observation.
    """
    obs_slices = list(obs_slices)
    end = max((where.stop for where, _ in obs_slices), default=0)
    if end > int(width):
        raise ValueError(
            f"the observation is {int(width)} wide, but by its segments a component ends at {end}: correct them"
        )
    return int(width) + sum(latent_sizes) - sum(where.stop - where.start for where, _ in obs_slices)
