"""`MlpModel`."""

import numpy as np
import pytest
import torch
from torch import nn

from st_rl.modules.mlp import MlpModel


def by_hand(model: MlpModel, x: np.ndarray, num_hidden: int, has_output: bool) -> np.ndarray:
    """A ReLU MLP in float64 NumPy, from the state dictionary."""
    state = {key: value.double().numpy() for key, value in model.state_dict().items()}
    for layer in range(num_hidden):
        x = np.maximum(x @ state[f"model.{2 * layer}.weight"].T + state[f"model.{2 * layer}.bias"], 0.0)
    if has_output:
        x = x @ state[f"model.{2 * num_hidden}.weight"].T + state[f"model.{2 * num_hidden}.bias"]
    return x


@pytest.mark.parametrize(
    ("hidden_sizes", "output_size", "num_hidden", "width"),
    [
        ([8, 6], 3, 2, 3),
        ((8, 6), None, 2, 6),
        (7, None, 1, 7),
        (7, 2, 1, 2),
        ([], 4, 0, 4),
        (None, 4, 0, 4),
        (None, None, 0, 5),
        (np.array([8, 6]), np.int64(3), 2, 3),
    ],
)
def test_forward_and_output_size(hidden_sizes, output_size, num_hidden, width):
    torch.manual_seed(0)
    model = MlpModel(5, hidden_sizes, output_size)
    x = torch.randn(2, 4, 5)
    expected = by_hand(model, x.double().numpy(), num_hidden, output_size is not None)
    assert model.output_size == width
    assert type(model.output_size) is int
    assert model(x).shape == (2, 4, width)
    np.testing.assert_allclose(model(x).detach().numpy(), expected, atol=1e-6)


def test_nonlinearity_by_class_and_by_name():
    assert isinstance(MlpModel(3, 4, nonlinearity=nn.ELU).model[1], nn.ELU)
    assert isinstance(MlpModel(3, 4, nonlinearity="Tanh").model[1], nn.Tanh)
    assert isinstance(MlpModel(3, 4, nonlinearity="lrelu").model[1], nn.LeakyReLU)
    with pytest.raises(ValueError, match="nonlinearity='swoosh'"):
        MlpModel(3, 4, nonlinearity="swoosh")


def test_hidden_sizes_argument_is_not_modified():
    hidden_sizes = [8, 6]
    MlpModel(5, hidden_sizes, 3)
    assert hidden_sizes == [8, 6]


@pytest.mark.parametrize("hidden_sizes", [[8], None])
def test_compiles_to_torchscript(hidden_sizes):
    model = MlpModel(5, hidden_sizes).eval()
    x = torch.randn(3, 5)
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))
