"""The action distribution of a policy."""

import math
from typing import Any

from torch import Tensor
from torch.distributions import Normal

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class DiagonalGaussian(Normal):
    """A `Normal` with means `(..., A)` and standard deviations `(A,)` that all samples share.

    What depends on the standard deviation alone is computed once, where `Normal` computes it for every sample.
    """

    def __init__(self, mean: Tensor, std: Tensor):
        super().__init__(mean, std.expand_as(mean), validate_args=False)
        self._shared_std = std

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of every action, `(..., A)`."""
        std = self._shared_std
        return (value - self.loc).square() * (-0.5 / std.square()) - (std.log() + HALF_LOG_TWO_PI)

    def entropy(self) -> Tensor:
        """Entropy of every action, `(..., A)`."""
        return (self._shared_std.log() + (HALF_LOG_TWO_PI + 0.5)).expand_as(self.loc)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Normal:
        """A plain `Normal` of a larger shape."""
        return Normal(self.loc, self.scale, validate_args=False).expand(batch_shape, _instance)
