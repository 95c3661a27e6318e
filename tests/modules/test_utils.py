"""`get_activation_Cls`, `resolve_module` and `conv2d_output_shape`."""

import logging

import pytest
import torch
from torch import nn

from st_rl.modules.utils import conv2d_output_shape, get_activation_Cls, resolve_module


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ELU", nn.ELU),
        ("GELU", nn.GELU),
        ("elu", nn.ELU),
        ("selu", nn.SELU),
        ("relu", nn.ReLU),
        ("crelu", nn.ReLU),
        ("softplus", nn.Softplus),
        ("gelu", nn.GELU),
        ("swish", nn.SiLU),
        ("mish", nn.Mish),
        ("lrelu", nn.LeakyReLU),
        ("tanh", nn.Tanh),
        ("sigmoid", nn.Sigmoid),
    ],
)
def test_activation_names(name, expected):
    assert get_activation_Cls(name) is expected


@pytest.mark.parametrize("name", ["swoosh", "functional", "Parameter", "Elu"])
def test_unknown_activation_warns_and_gives_none(name, caplog):
    # `functional` and `Parameter` are attributes of torch.nn, but not modules
    with caplog.at_level(logging.WARNING, logger="st_rl"):
        assert get_activation_Cls(name) is None
    assert name in caplog.text


def test_resolve_module_accepts_classes_and_rejects_unknown_names():
    assert resolve_module(nn.Tanh, "nonlinearity") is nn.Tanh
    assert resolve_module("BatchNorm2d", "normlayer") is nn.BatchNorm2d
    with pytest.raises(ValueError, match=r"normlayer='BatchNorm9d'.*torch\.nn"):
        resolve_module("BatchNorm9d", "normlayer")


def test_conv2d_output_shape_documented_example():
    assert conv2d_output_shape(64, 64, 3, 2, 1) == (32, 32)
    assert conv2d_output_shape(7, 9) == (7, 9)


def test_conv2d_output_shape_equals_real_layers():
    generator = torch.Generator().manual_seed(0)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    for _ in range(60):
        height, width = draw(12, 30), draw(12, 30)
        kernel, stride = (draw(1, 5), draw(1, 5)), (draw(1, 4), draw(1, 4))
        padding, dilation = (draw(0, 3), draw(0, 3)), (draw(1, 3), draw(1, 3))
        layer = nn.Conv2d(1, 1, kernel, stride, padding, dilation)
        expected = tuple(layer(torch.zeros(1, 1, height, width)).shape[-2:])
        assert conv2d_output_shape(height, width, kernel, stride, padding, dilation) == expected
