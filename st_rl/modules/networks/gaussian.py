"""The action distribution of a policy."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

# Nodes and weights that integrate a function over the standard normal distribution.
_RULE = tuple(zip(*(array.tolist() for array in np.polynomial.hermite_e.hermegauss(12))))
# Largest fraction of its bound that `log_prob` inverts, so that atanh stays finite.
MAX_BOUND_FRACTION = 1.0 - 1e-6
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
Size = torch.Size | list[int] | tuple[int, ...]


def gaussian_kl(mean: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor, ratio_offset: float = 1.0e-5) -> Tensor:
    """KL divergence of the new from the old diagonal Gaussian, `(..., A) -> (...)`; exact without `ratio_offset`."""
    spread = torch.log(std / old_std + ratio_offset)
    return (spread + (old_std.square() + (old_mean - mean).square()) / (2.0 * std.square()) - 0.5).sum(dim=-1)


class DiagonalGaussian(Normal):
    """A `Normal` with means `(..., A)` and one standard deviation `(A,)` for all samples.

    Terms of the standard deviation alone are computed once, not for every sample.
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

    def expand(self, batch_shape: Size, _instance: Any = None) -> Normal:
        """A plain `Normal` of a larger shape."""
        return Normal(self.loc, self.scale, validate_args=False).expand(batch_shape, _instance)


class SquashedGaussian(DiagonalGaussian):
    """Actions `bound * tanh(u)` of a Gaussian `u` with `bound (A,)`; `mean` and `stddev` are those of `u`."""

    def __init__(self, mean: Tensor, std: Tensor, bound: Tensor):
        super().__init__(mean, std)
        self._bound = bound

    def sample(self, sample_shape: Size = ()) -> Tensor:
        """Bounded actions `(*sample_shape, ..., A)`."""
        return self._bound * torch.tanh(super().sample(sample_shape))

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        """Bounded actions `(*sample_shape, ..., A)`, through which gradients reach mean and standard deviation."""
        return self._bound * torch.tanh(super().rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of every bounded action, `(..., A)`."""
        before = torch.atanh((value / self._bound).clamp(-MAX_BOUND_FRACTION, MAX_BOUND_FRACTION))
        return super().log_prob(before) - self._log_slope(before)

    def entropy(self) -> Tensor:
        """Entropy of every bounded action, `(..., A)`: of `u`, and by quadrature the mean logarithm of the slope."""
        spread = math.sqrt(2.0 * math.pi)
        slopes = [weight / spread * self._log_slope(self.loc + node * self._shared_std) for node, weight in _RULE]
        return super().entropy() + torch.stack(slopes).sum(dim=0)

    def _log_slope(self, before: Tensor) -> Tensor:
        """Logarithm of the slope of `bound * tanh` at `before (..., A)`, exact where the slope itself would vanish."""
        return self._bound.log() + 2.0 * (math.log(2.0) - before - torch.nn.functional.softplus(-2.0 * before))
