"""Normalizers: running statistics on the device, of rewards too, running statistics in NumPy, unit length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from st_rl.utils.capability import CapabilityMeta
from st_rl.utils.distributed import combine_moments, has_exchanges
from st_rl.utils.log import logger

NORMALIZE_UNTIL = 1.0e8
"""Samples after which the statistics of observations and rewards stay."""
_BATCH_SIZE = 4096
# Samples further than this from the mean, in standard deviations, are clipped before they enter the statistics.
OUTLIER_DEVIATIONS = 50.0
# The smallest standard deviation that counts for this: a component that was constant so far may start to move.
SMALLEST_DEVIATION = 0.1
# Batches that the statistics must hold first.
OUTLIER_WARM_UP = 32


class EmpiricalNormalization(nn.Module):
    """Normalizes observations by the running mean and standard deviation of those passed in training mode.

    Elements that are True in `unchanged`, of `shape`, keep statistics with which they pass unchanged.

    All writes are in place and without host sync, so it may run in inference mode and in a captured graph. With several
    ranks (batches of equal size) the statistics are over all ranks and, after the first rollout, change only in
    `merge_updates`, once per rollout. One huge value does not ruin them: after 32 batches values more than 50 standard
    deviations (of at least 0.1) from the mean are clipped before they enter.
    """

    _mean: Tensor
    _var: Tensor
    _std: Tensor
    count: Tensor
    _pending_mean: Tensor
    _pending_var: Tensor
    _pending_count: Tensor
    num_clipped: Tensor
    """Values clipped so far, of `shape`, on this rank; not part of the state."""
    _unchanged: Tensor | None

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-2,
        until: float | None = None,
        unchanged: Tensor | None = None,
    ):
        super().__init__()
        self.shape = tuple(int(size) for size in shape) if isinstance(shape, Iterable) else (int(shape),)
        self.eps = float(eps)
        self.until = until
        self.register_buffer("_mean", torch.zeros(1, *self.shape))
        self.register_buffer("_var", torch.ones(1, *self.shape))
        self.register_buffer("_std", torch.ones(1, *self.shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_clipped", torch.zeros(self.shape, dtype=torch.int64), persistent=False)
        # Not in the state dict: in evaluation the statistics alone decide.
        self.register_buffer("_unchanged", None if unchanged is None else unchanged.reshape(1, *self.shape), False)
        if unchanged is not None:
            self._var.masked_fill_(unchanged, (1.0 - self.eps) ** 2)
            torch.sqrt(self._var, out=self._std)
        self.defers_updates = False
        """Whether samples after the first rollout wait for `merge_updates`, as they do with several ranks."""
        # The first batch alone, of robots in their initial pose, has far too small deviations to normalize a rollout.
        self._has_first_rollout = False
        # Moments of the samples of this rank since the last merge.
        self.register_buffer("_pending_mean", torch.zeros(1, *self.shape), persistent=False)
        self.register_buffer("_pending_var", torch.zeros(1, *self.shape), persistent=False)
        self.register_buffer("_pending_count", torch.zeros((), dtype=torch.int64), persistent=False)

    @property
    def mean(self) -> Tensor:
        """A copy of the mean, of `shape`."""
        return self._mean.squeeze(0).clone()

    @property
    def std(self) -> Tensor:
        """A copy of the standard deviation, of `shape`."""
        return self._std.squeeze(0).clone()

    def forward(self, x: Tensor) -> Tensor:
        """Update the statistics in training mode, then normalize `x (..., *shape)`."""
        if self.training:
            self.update(x)
        return self.normalize(x)

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize `x (..., *shape)` without updating the statistics."""
        # In place on the fresh difference: a second large allocation costs more than the arithmetic.
        return (x - self._mean).div_(self._std + self.eps)

    @torch.jit.unused
    def inverse(self, y: Tensor) -> Tensor:
        """Invert `normalize` for `y (..., *shape)`."""
        return y * (self._std + self.eps) + self._mean

    @torch.jit.unused
    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Add the samples `x (..., *shape)` to the statistics.

        Nothing happens in evaluation mode, from `until` samples on, or when `x` holds a NaN or Inf.
        """
        if not self.training:
            return
        if tuple(x.shape[x.dim() - len(self.shape) :]) != self.shape or x.numel() == 0:
            raise ValueError(f"expected observations of shape (..., {self.shape}), got {tuple(x.shape)}")
        given = x.reshape(-1, *self.shape).to(self._mean.dtype)
        x = self.clip_outliers(given)
        excess = given - x
        # NaN in columns with a NaN or Inf, else 0.
        non_finite = 0.0 * excess.sum(dim=0)
        # Signs, because sums of a comparison are slow on a CPU.
        num_clipped = excess.sign_().abs_().sum(dim=0)
        if x.is_cuda:
            batch_var, batch_mean = torch.var_mean(x, dim=0, correction=0, keepdim=True)
        else:
            # Two passes: torch.var_mean is up to ten times slower along the first axis on a CPU.
            batch_mean = x.mean(dim=0, keepdim=True)
            batch_var = x.sub_(batch_mean).square_().mean(dim=0, keepdim=True)
        # All ranks skip a batch with a NaN or Inf; adding zero changes no bit.
        batch_var = batch_var + non_finite
        if self._has_first_rollout and (self.defers_updates or has_exchanges()):
            pending = self._pending_mean, self._pending_var, self._pending_count
            active = batch_var.sum() < torch.inf
            _add_moments(*pending, batch_mean, batch_var, x.shape[0], active)
        else:
            active = self._add_batch(*combine_moments(batch_mean, batch_var, x.shape[0]))
        changes = active if self._unchanged is None else active & ~self._unchanged
        self.num_clipped.add_(torch.where(changes, num_clipped, 0.0).long().reshape(self.shape))

    @torch.no_grad()
    def merge_updates(self) -> None:
        """Add the samples that all ranks have collected since the last call to the statistics of every rank."""
        if not (self.training and (self.defers_updates or has_exchanges())):
            return
        if not self._has_first_rollout:  # its batches have entered the statistics one by one
            self._has_first_rollout = True
            return
        pending = self._pending_mean, self._pending_var, self._pending_count
        self._add_batch(*combine_moments(*pending))
        for moment in pending:
            moment.zero_()

    def _add_batch(self, mean: Tensor, var: Tensor, count: Tensor | int) -> Tensor:
        """Add a batch by its moments unless one is NaN or Inf or there are enough samples; returns whether, 0-d."""
        active = var.sum() < torch.inf
        if self.until is not None:
            active = active & (self.count < self.until)
        if self._unchanged is not None:
            mean = torch.where(self._unchanged, self._mean, mean)
            var = torch.where(self._unchanged, self._var, var)
        _add_moments(self._mean, self._var, self.count, mean, var, count, active)
        torch.sqrt(self._var, out=self._std)
        return active

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._has_first_rollout = bool(self.count > 0)

    @torch.jit.unused
    def clip_outliers(self, x: Tensor) -> Tensor:
        """Clip samples `(B, *shape)` to the range around the mean that may enter the statistics."""
        limit = OUTLIER_DEVIATIONS * self._std.clamp(min=SMALLEST_DEVIATION)
        limit = torch.where(self.count >= OUTLIER_WARM_UP * x.shape[0], limit, torch.inf)
        return x.clamp(self._mean - limit, self._mean + limit)


def _add_moments(
    mean: Tensor, var: Tensor, count: Tensor, batch_mean: Tensor, batch_var: Tensor, size: Tensor | int, active: Tensor
) -> None:
    """Add a batch of `size` samples to `mean`, `var` and `count`, in place, if `active` (0-d bool)."""
    # A batch with the current moments leaves the statistics unchanged, bit for bit.
    batch_mean = torch.where(active, batch_mean, mean)
    batch_var = torch.where(active, batch_var, var)
    rate = size / (count + size).clamp(min=1)
    count.add_(active * size)
    delta = batch_mean - mean
    mean.lerp_(batch_mean, rate)
    var.lerp_(torch.addcmul(batch_var, delta, batch_mean - mean), rate)


class DiscountedRewardScaling(nn.Module):
    """Divides rewards by the running standard deviation of their discounted sum per environment.

    `clip` limits the scaled rewards to plus and minus this number. Rewards keep their sign and zero stays zero: the
    mean is not subtracted, which would change the task. Writes are in place and without host sync.
    """

    discounted_sum: Tensor

    def __init__(self, discount: float = 0.99, clip: float | None = None):
        super().__init__()
        self.discount = discount
        self.clip = clip
        self.statistics = EmpiricalNormalization((), until=NORMALIZE_UNTIL)
        # The number of environments is known with the first rewards.
        self.register_buffer("discounted_sum", torch.zeros(0))

    def forward(self, reward: Tensor, dones: Tensor | None = None) -> Tensor:
        """`(N,) -> (N,)`; unchanged while the standard deviation is zero. The sum starts again where `dones (N,)`."""
        if self.training:
            self._allocate(reward.shape[0])
            self.discounted_sum.mul_(self.discount).add_(reward)
            # An infinite sum would stay infinite.
            torch.nan_to_num_(self.discounted_sum, nan=0.0, posinf=0.0, neginf=0.0)
            self.statistics.update(self.discounted_sum)
            # A huge sum would be an outlier for hundreds of steps.
            self.discounted_sum.copy_(self.statistics.clip_outliers(self.discounted_sum))
            if dones is not None:
                self.discounted_sum.masked_fill_(dones > 0, 0.0)
        std = self.statistics.std
        scaled = reward / torch.where(std > 0.0, std, 1.0)
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)

    def _allocate(self, num_envs: int) -> None:
        if self.discounted_sum.shape[0] != num_envs:
            with torch.inference_mode(False):
                self.discounted_sum = torch.zeros(num_envs, device=self.discounted_sum.device)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "discounted_sum")
        if saved is not None:
            self._allocate(saved.shape[0])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def normalize_without_update(normalizer: nn.Module, x: Tensor) -> Tensor:
    """Normalize observations `(..., *shape)` without updating the statistics, also in training mode."""
    return normalizer.normalize(x) if isinstance(normalizer, EmpiricalNormalization) else normalizer(x)


def outlier_message(name: str, num_clipped: Sequence[int]) -> str:
    """Say how many values of `name` were clipped, by column, from the number of each column."""
    found = [f"{number} in column {column}" for column, number in enumerate(num_clipped) if number]
    shown = ", ".join(found[:8]) + (f" and {len(found) - 8} more columns" if len(found) > 8 else "")
    return (
        f"outliers in {name}: {shown}; values beyond {OUTLIER_DEVIATIONS:g} standard deviations are clipped in the "
        "statistics of the normalizer. Check that the simulation is stable"
    )


class Normalize(nn.Module):
    """Scales vectors to unit length."""

    def forward(self, x: Tensor) -> Tensor:
        """`x (..., D)` divided by its length."""
        return F.normalize(x, dim=-1)


class RunningMeanStd:
    """Running mean and variance in double-precision NumPy."""

    def __init__(self, epsilon: float = 1e-4, shape: int | Sequence[int] = ()):
        self.shape = tuple(shape) if isinstance(shape, Iterable) else (int(shape),)
        self.mean = np.zeros(self.shape, dtype=np.float64)
        self.var = np.ones(self.shape, dtype=np.float64)
        self.count = epsilon

    def update(self, arr: np.ndarray) -> None:
        """Add the samples `arr (n, *shape)`."""
        arr = np.asarray(arr, dtype=np.float64).reshape(-1, *self.shape)
        if arr.shape[0] > 0:
            self.update_from_moments(arr.mean(axis=0), arr.var(axis=0), arr.shape[0])

    def update_from_moments(self, batch_mean: np.ndarray, batch_var: np.ndarray, batch_count: float) -> None:
        """Add a batch known by its mean, biased variance and number of samples."""
        delta = batch_mean - self.mean
        total = self.count + batch_count
        self.mean = self.mean + delta * batch_count / total
        spread = self.var * self.count + batch_var * batch_count
        self.var = (spread + delta**2 * self.count * batch_count / total) / total
        self.count = total


class Normalizer(RunningMeanStd):
    """Scales by running statistics and clips.

    Outliers are clipped before they enter the statistics, like those of `EmpiricalNormalization`.
    """

    def __init__(self, input_dim: int | Sequence[int], epsilon: float = 1e-4, clip_obs: float = 10.0):
        super().__init__(shape=input_dim)
        self.epsilon = epsilon
        self.clip_obs = clip_obs
        self.num_clipped = np.zeros(self.shape, dtype=np.int64)
        """Values clipped so far, of `input_dim`."""

    def update(self, arr: np.ndarray) -> None:
        """Add the samples `arr (n, *input_dim)`; logs how many values were clipped."""
        arr = np.asarray(arr, dtype=np.float64).reshape(-1, *self.shape)
        if self.count >= OUTLIER_WARM_UP * len(arr):
            limit = OUTLIER_DEVIATIONS * np.maximum(np.sqrt(self.var), SMALLEST_DEVIATION)
            clipped = np.clip(arr, self.mean - limit, self.mean + limit)
            num_clipped = (clipped != arr).sum(axis=0)
            self.num_clipped += num_clipped
            if num_clipped.any():
                logger.warning(outlier_message(type(self).__name__, num_clipped.ravel().tolist()))
            arr = clipped
        super().update(arr)

    def normalize(self, input: np.ndarray) -> np.ndarray:
        """`input (..., *input_dim)`, scaled and clipped to +-`clip_obs`."""
        return np.clip((input - self.mean) / np.sqrt(self.var + self.epsilon), -self.clip_obs, self.clip_obs)

    def normalize_torch(self, input: Tensor, device: torch.device | str, update: bool = True) -> Tensor:
        """Add `input (..., *input_dim)` to the statistics if `update`, then scale and clip it on `device`."""
        if update:
            self.update(input.detach().cpu().numpy())
        mean = torch.tensor(self.mean, dtype=torch.float32, device=device)
        std = torch.tensor(np.sqrt(self.var + self.epsilon), dtype=torch.float32, device=device)
        scaled = (input.to(device=device, dtype=torch.float32) - mean) / std
        return scaled.clamp(-self.clip_obs, self.clip_obs)

    def update_normalizer(self, rollouts: object, expert_loader: object) -> None:
        """Add pairs of policy and expert batches, until either source ends.

        A source that offers only `feed_forward_generator` gives as many batches as `rollouts` has samples for; an
        `expert_loader` without a `batch_size`, such as `AMPLoader`, gives them in batches of at most 4096. A sample is
        one or several states side by side, such as a state and the next state, each of the normalizer's shape.
        """
        num_samples = int(getattr(rollouts, "num_samples", 0))
        batch_size = int(getattr(expert_loader, "batch_size", None) or min(num_samples or _BATCH_SIZE, _BATCH_SIZE))
        num_batches = max(1, num_samples // batch_size)
        if isinstance(rollouts, _AmpSource):
            policy_batches = rollouts.feed_forward_generator_amp(None, mini_batch_size=batch_size)
        else:
            policy_batches = cast(_Source, rollouts).feed_forward_generator(num_batches, batch_size)
        dataset = getattr(expert_loader, "dataset", expert_loader)
        if isinstance(dataset, _AmpSource):
            expert_batches = dataset.feed_forward_generator_amp(batch_size)
        else:
            source = dataset if isinstance(dataset, _Source) else cast(_Source, expert_loader)
            expert_batches = source.feed_forward_generator(num_batches, batch_size)
        for policy_batch, expert_batch in zip(policy_batches, expert_batches):
            self.update(np.vstack([self._as_rows(policy_batch), self._as_rows(expert_batch)]))

    def _as_rows(self, batch: Tensor | Sequence[Tensor]) -> np.ndarray:
        """Join the tensors `(n, ...)` of a batch and split them into rows `(k * n, *input_dim)`."""
        tensors = [batch] if isinstance(batch, Tensor) else batch
        joined = np.concatenate([t.detach().cpu().numpy().reshape(len(t), -1) for t in tensors], axis=1)
        if joined.shape[1] % self.mean.size:
            raise ValueError(
                f"a sample has {joined.shape[1]} values, which is no multiple of the {self.mean.size} of this "
                "normalizer; set input_dim to the width of one state, or of the state pair"
            )
        return joined.reshape(-1, *self.shape)


@runtime_checkable
class _AmpSource(Protocol, metaclass=CapabilityMeta):
    def feed_forward_generator_amp(self, *args: Any, **kwargs: Any) -> Iterator[Sequence[Tensor]]: ...


@runtime_checkable
class _Source(Protocol, metaclass=CapabilityMeta):
    def feed_forward_generator(self, num_mini_batch: int, mini_batch_size: int) -> Iterator[Sequence[Tensor]]: ...
