"""The multi-layer perceptron block."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from st_rl.modules.utils import ModuleMaker, resolve_module


class MlpModel(nn.Module):
    """Linear layers, each followed by the nonlinearity except a final one of `output_size`.

    Without hidden sizes and output size it is the identity.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: int | Sequence[int] | None = None,
        output_size: int | None = None,
        nonlinearity: str | ModuleMaker = nn.ReLU,
    ):
        super().__init__()
        make_nonlinearity = resolve_module(nonlinearity, "nonlinearity")
        # Only Python ints: the recurrent layers behind this block refuse NumPy's.
        sizes = [int(input_size), *_as_sizes(hidden_sizes)]
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(sizes):
            layers += [nn.Linear(size_in, size_out), make_nonlinearity()]
        if output_size is not None:
            layers.append(nn.Linear(sizes[-1], int(output_size)))
        self.model = nn.Sequential(*layers)
        self._output_size = sizes[-1] if output_size is None else int(output_size)

    @property
    def output_size(self) -> int:
        """Width of the output."""
        return self._output_size

    def forward(self, input: Tensor) -> Tensor:
        """`(..., input_size) -> (..., output_size)`."""
        return self.model(input)


def _as_sizes(hidden_sizes: int | Sequence[int] | None) -> list[int]:
    if hidden_sizes is None:
        return []
    return [int(size) for size in hidden_sizes] if isinstance(hidden_sizes, Iterable) else [int(hidden_sizes)]
