"""`Conv2dModel` and `Conv2dHeadModel`."""

import pytest
import torch
from torch import nn

from st_rl.modules.conv2d import Conv2dHeadModel, Conv2dModel


def test_predicted_sizes_equal_forward_pass():
    generator = torch.Generator().manual_seed(0)

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    for trial in range(60):
        num_layers = draw(1, 4)
        model = Conv2dModel(
            in_channels=draw(1, 4),
            channels=[draw(1, 6) for _ in range(num_layers)],
            kernel_sizes=[(draw(1, 4), draw(1, 4)) if trial % 3 == 0 else draw(1, 4) for _ in range(num_layers)],
            strides=[(draw(1, 3), draw(1, 3)) if trial % 5 == 0 else draw(1, 3) for _ in range(num_layers)],
            paddings=None if trial % 2 else [draw(0, 2) for _ in range(num_layers)],
            use_maxpool=bool(draw(0, 2)),
            normlayer="BatchNorm2d" if trial % 4 == 0 else None,
        )
        height, width = draw(24, 40), draw(24, 40)
        output = model(torch.zeros(2, model.in_channels, height, width))
        assert model.conv_out_resolution(height, width) == tuple(output.shape[-2:])
        assert model.conv_out_size(height, width) == output[0].numel()
        assert model.conv_out_size(height, width, c=model.in_channels) == output[0].numel()


def test_layer_order():
    model = Conv2dModel(1, [4, 5], [3, 3], [2, 1], nonlinearity="ELU", use_maxpool=True, normlayer=nn.BatchNorm2d)
    kinds = [type(layer) for layer in model.conv]
    assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.ELU, nn.MaxPool2d, nn.Conv2d, nn.BatchNorm2d, nn.ELU]
    assert model.conv[0].stride == (1, 1)
    assert [type(layer) for layer in Conv2dModel(1, [4], [3], [2]).conv] == [nn.Conv2d, nn.ReLU]
    assert set(Conv2dModel(1, [4], [3], [2]).state_dict()) == {"conv.0.weight", "conv.0.bias"}


def test_rejects_different_lengths():
    with pytest.raises(AssertionError, match="2, 1, 2 and 2"):
        Conv2dModel(1, [4, 5], [3], [1, 1])
    with pytest.raises(AssertionError, match="2, 2, 2 and 1"):
        Conv2dModel(1, [4, 5], [3, 3], [1, 1], paddings=[0])


@pytest.mark.parametrize(
    ("hidden_sizes", "output_size", "width"), [([16], 3, 3), ([16, 9], None, 9), (None, 6, 6), (None, None, 4 * 4 * 5)]
)
def test_head_model(hidden_sizes, output_size, width):
    torch.manual_seed(0)
    model = Conv2dHeadModel((2, 12, 14), [3, 4], [3, 3], [2, 1], hidden_sizes, output_size, paddings=[1, 0])
    output = model(torch.randn(7, 2, 12, 14))
    assert model.output_size == width
    assert output.shape == (7, width)
    assert isinstance(model.head, nn.Identity) is (hidden_sizes is None and output_size is None)
    # ReLU output without an output layer, linear with one
    assert bool((output >= 0).all()) is (output_size is None)


def test_head_model_equals_convolutions_then_head():
    torch.manual_seed(0)
    model = Conv2dHeadModel([1, 8, 8], [2], [3], [1], hidden_sizes=[5], output_size=3, normlayer="BatchNorm2d").eval()
    state = model.state_dict()
    assert {"conv.conv.0.weight", "conv.conv.1.running_mean", "head.model.0.weight", "head.model.2.bias"} <= set(state)
    image = torch.randn(4, 1, 8, 8)
    features = nn.functional.conv2d(image, state["conv.conv.0.weight"], state["conv.conv.0.bias"])
    features = torch.relu(features / (1 + 1e-5) ** 0.5).reshape(4, -1)
    hidden = torch.relu(features @ state["head.model.0.weight"].T + state["head.model.0.bias"])
    expected = hidden @ state["head.model.2.weight"].T + state["head.model.2.bias"]
    torch.testing.assert_close(model(image), expected)
    torch.testing.assert_close(torch.jit.script(model)(image), expected)


def test_accepts_non_contiguous_images():
    model = Conv2dHeadModel((3, 6, 6), [4], [3], [1], output_size=2)
    image = torch.randn(5, 6, 6, 3).permute(0, 3, 1, 2)
    torch.testing.assert_close(model(image), model(image.contiguous()))


def test_rejects_invalid_input():
    with pytest.raises(ValueError, match="image of 4 x 20 is too small"):
        Conv2dHeadModel((1, 4, 20), [2, 2], [3, 3], [1, 1])
    with pytest.raises(ValueError, match=r"\(channels, height, width\)"):
        Conv2dHeadModel((4, 20), [2], [3], [1])
    with pytest.raises(ValueError, match="nonlinearity='swoosh'"):
        Conv2dModel(1, [2], [3], [1], nonlinearity="swoosh")
    with pytest.raises(ValueError, match="normlayer='Norm'"):
        Conv2dModel(1, [2], [3], [1], normlayer="Norm")
