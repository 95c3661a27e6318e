"""Convolution blocks for image-like observations."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from st_rl.modules.mlp import MlpModel
from st_rl.modules.utils import ModuleMaker, conv2d_output_shape, int_pair, resolve_module

Size = int | tuple[int, int]


class Conv2dModel(nn.Module):
    """A stack of convolutions, each with an optional normalization layer, a nonlinearity and optional pooling.

    With `use_maxpool` the strides are those of the pooling layers, and the convolutions have stride 1.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        kernel_sizes: Sequence[Size],
        strides: Sequence[Size],
        paddings: Sequence[Size] | None = None,
        nonlinearity: str | ModuleMaker = nn.ReLU,
        use_maxpool: bool = False,
        head_sizes: object = None,
        normlayer: str | ModuleMaker | None = None,
    ):
        del head_sizes  # part of the public signature; not used
        super().__init__()
        paddings = [0] * len(channels) if paddings is None else paddings
        if not len(channels) == len(kernel_sizes) == len(strides) == len(paddings):
            raise AssertionError(
                "channels, kernel_sizes, strides and paddings need one entry per layer; their lengths are "
                f"{len(channels)}, {len(kernel_sizes)}, {len(strides)} and {len(paddings)}"
            )
        make_nonlinearity = resolve_module(nonlinearity, "nonlinearity")
        make_norm = None if normlayer is None else resolve_module(normlayer, "normlayer")
        self.in_channels = int(in_channels)
        self.out_channels = int(channels[-1]) if channels else self.in_channels
        layers: list[nn.Module] = []
        size_in = self.in_channels
        for size_out, kernel, stride, padding in zip(map(int, channels), kernel_sizes, strides, paddings):
            conv_stride = (1, 1) if use_maxpool else int_pair(stride)
            layers.append(nn.Conv2d(size_in, size_out, int_pair(kernel), conv_stride, int_pair(padding)))
            if make_norm is not None:
                layers.append(make_norm(size_out))
            layers.append(make_nonlinearity())
            if use_maxpool and max(int_pair(stride)) > 1:
                layers.append(nn.MaxPool2d(int_pair(stride)))
            size_in = size_out
        self.conv = nn.Sequential(*layers)

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W) -> (B, C', H', W')`."""
        return self.conv(input)

    @torch.jit.unused
    def conv_out_resolution(self, h: int, w: int) -> tuple[int, int]:
        """Height and width of the output for an `(h, w)` image, without running the network."""
        for layer in self.conv:
            if isinstance(layer, (nn.Conv2d, nn.MaxPool2d)):
                h, w = conv2d_output_shape(h, w, layer.kernel_size, layer.stride, layer.padding)  # pyright: ignore[reportArgumentType]
        return h, w

    @torch.jit.unused
    def conv_out_size(self, h: int, w: int, c: int | None = None) -> int:
        """Number of features of the flattened output for an `(h, w)` image; `c` counts only without any layer."""
        height, width = self.conv_out_resolution(h, w)
        return height * width * (int(c) if c is not None and len(self.conv) == 0 else self.out_channels)


class Conv2dHeadModel(nn.Module):
    """A convolution stack, followed by a perceptron on its flattened output."""

    def __init__(
        self,
        image_shape: Sequence[int],
        channels: Sequence[int],
        kernel_sizes: Sequence[Size],
        strides: Sequence[Size],
        hidden_sizes: int | Sequence[int] | None = None,
        output_size: int | None = None,
        paddings: Sequence[Size] | None = None,
        nonlinearity: str | ModuleMaker = nn.ReLU,
        use_maxpool: bool = False,
        normlayer: str | ModuleMaker | None = None,
    ):
        super().__init__()
        if len(image_shape) != 3:
            raise ValueError(f"image_shape must be (channels, height, width), got {tuple(image_shape)}")
        image_channels, height, width = (int(size) for size in image_shape)
        self.conv = Conv2dModel(
            image_channels, channels, kernel_sizes, strides, paddings, nonlinearity, use_maxpool, normlayer=normlayer
        )
        resolution = self.conv.conv_out_resolution(height, width)
        if min(resolution) < 1:
            raise ValueError(
                f"an image of {height} x {width} is too small for these layers (they leave {resolution[0]} x "
                f"{resolution[1]}); use fewer layers, smaller kernels and strides, or padding"
            )
        head = MlpModel(self.conv.conv_out_size(height, width), hidden_sizes, output_size, nonlinearity)
        self._output_size = head.output_size
        self.head = head if len(head.model) > 0 else nn.Identity()

    @property
    def output_size(self) -> int:
        """Width of the output."""
        return self._output_size

    def forward(self, input: Tensor) -> Tensor:
        """`(B, C, H, W) -> (B, output_size)`."""
        return self.head(torch.flatten(self.conv(input), start_dim=1))
