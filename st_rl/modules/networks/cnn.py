"""A convolutional encoder with the settings of rsl_rl's `CNN`."""

from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from st_rl.modules.utils import conv2d_output_shape, resolve_module

Value = TypeVar("Value")
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
POOLING: dict[str, type[nn.Module]] = {"max": nn.AdaptiveMaxPool2d, "avg": nn.AdaptiveAvgPool2d}


class SpatialSoftmax(nn.Module):
    """Expected image coordinates of each channel, in [-1, 1], under a softmax over its pixels."""

    grid: Tensor

    def __init__(self, height: int, width: int, temperature: float = 1.0):
        super().__init__()
        self.temperature = float(temperature)
        rows, columns = torch.linspace(-1.0, 1.0, height), torch.linspace(-1.0, 1.0, width)
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).reshape(-1, 2)
        self.register_buffer("grid", grid, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W) -> (B, 2 C)`: row and column of each channel."""
        weights = torch.softmax(input.flatten(2) / self.temperature, dim=-1)
        return (weights @ self.grid).flatten(1)


class CnnModel(nn.Module):
    """Convolutions of an image, flattened; no linear layer follows.

    Settings per layer are given once for all layers, or in a list. Any `padding` but `"none"` pads so that a layer
    divides height and width by its stride.

    Args:
        image_shape: `(channels, height, width)`.
        output_channels: channels of each layer.
        kernel_size, stride, dilation: of each layer.
        padding: `none`, `zeros`, `reflect`, `replicate` or `circular`.
        norm: `none`, `batch` or `layer`, of each layer, before the activation.
        activation: after each layer.
        max_pool: whether to halve the image after each layer.
        global_pool: `none`, or `max` or `avg` over all pixels at the end.
        flatten: must be True; a key of rsl_rl.
        spatial_softmax: return two coordinates for each channel instead of all pixels; replaces `global_pool`.
        spatial_softmax_temperature: divides the activations before that softmax.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        output_channels: Sequence[int],
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: PaddingMode | Literal["none"] = "none",
        norm: str | Sequence[str] = "none",
        activation: str = "elu",
        max_pool: bool | Sequence[bool] = False,
        global_pool: str = "none",
        flatten: bool = True,
        spatial_softmax: bool = False,
        spatial_softmax_temperature: float = 1.0,
    ):
        super().__init__()
        _check_choices(padding, global_pool, flatten)
        channels, height, width = (int(size) for size in image_shape)
        layers: list[nn.Module] = []
        for index, size_out in enumerate(map(int, output_channels)):
            kernel, step, spread = (int(_at(value, index)) for value in (kernel_size, stride, dilation))
            pads = (0, 0)
            if padding != "none":
                pads = (_padding(height, kernel, step, spread), _padding(width, kernel, step, spread))
            mode = "zeros" if padding == "none" else padding
            layers.append(nn.Conv2d(channels, size_out, kernel, step, pads, spread, padding_mode=mode))
            height, width = conv2d_output_shape(height, width, kernel, step, pads, spread)
            layers += _norm_layers(_at(norm, index), size_out, height, width)
            layers.append(resolve_module(activation, "activation")())
            if _at(max_pool, index):
                layers.append(nn.MaxPool2d(3, stride=2, padding=1))
                height, width = conv2d_output_shape(height, width, 3, 2, 1)
            channels = size_out
            if min(height, width) < 1:
                raise ValueError(
                    f"an image of {tuple(image_shape)} is too small for these layers; use fewer layers, smaller "
                    "kernels and strides, or padding='zeros'"
                )
        if spatial_softmax:
            layers.append(SpatialSoftmax(height, width, spatial_softmax_temperature))
            self.output_size = 2 * channels
        else:
            if global_pool != "none":
                layers.append(POOLING[global_pool]((1, 1)))
                height = width = 1
            layers.append(nn.Flatten(start_dim=1))
            self.output_size = channels * height * width
        self.layers = nn.Sequential(*layers)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W) -> (B, output_size)`."""
        return self.layers(input)


def _check_choices(padding: str, global_pool: str, flatten: bool) -> None:
    if padding not in ("none", *get_args(PaddingMode)):
        raise ValueError(f"padding='{padding}'; use one of: none, {', '.join(get_args(PaddingMode))}")
    if global_pool not in ("none", *POOLING):
        raise ValueError(f"global_pool='{global_pool}'; use one of: none, {', '.join(POOLING)}")
    if not flatten:
        raise ValueError("flatten=False: the heads of a policy take flat latents; leave it out")


def _at(value: Value | Sequence[Value], index: int) -> Value:
    """Return the setting of one layer."""
    return value[index] if isinstance(value, list | tuple) else value  # pyright: ignore[reportReturnType]


def _padding(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the padding of both sides with which a layer returns `size // stride` pixels along an axis."""
    missing = stride * (size // stride - 1) + dilation * (kernel - 1) + 1 - size
    return max(0, -(-missing // 2))


def _norm_layers(norm: str, channels: int, height: int, width: int) -> list[nn.Module]:
    if norm == "none":
        return []
    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if norm == "layer":
        return [nn.LayerNorm([channels, height, width])]
    raise ValueError(f"norm='{norm}'; use one of: none, batch, layer")
