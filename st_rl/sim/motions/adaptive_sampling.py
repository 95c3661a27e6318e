"""Adaptive sampling: start where robots fail often."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Failure rate that is added to every bin, so that the rates of a perfect policy have a sum.
_MIN_RATE = 1e-3


class AdaptiveSampler:
    """Samples frames of clips, of which the frames are rows of one table, by the failure rate of bins of frames.

    A bin has the probability `uniform_fraction * weight + (1 - uniform_fraction) * rate`, both normalized over all
    bins; the rate is failures over visits with an exponential decay of `memory_s`. Nothing waits for the device.
    """

    def __init__(
        self,
        num_frames: Sequence[int],
        weights: Sequence[float],
        step_dt: float,
        register_buffer: Callable[[str, Tensor], Tensor],
        device: torch.device | str = "cpu",
        bin_s: float = 1.0,
        uniform_fraction: float = 0.1,
        memory_s: float = 20.0,
    ) -> None:
        """Divide clips of `num_frames` frames, two or more, into bins of about `bin_s` seconds.

        `weights` are the relative weights of the clips. The last frame of a clip is never sampled: none follows it.
        """
        if not 0.0 < uniform_fraction <= 1.0 or not bin_s > 0 or not memory_s > step_dt:
            raise ValueError(
                f"sampling has uniform_fraction {uniform_fraction}, bin_s {bin_s} and memory_s {memory_s}: give a "
                f"fraction above 0 and at most 1, a positive time, and a time above {step_dt}"
            )
        starts: list[int] = []
        lengths: list[int] = []
        shares: list[float] = []
        bin_of_row: list[int] = []
        first = 0
        for count, weight in zip(num_frames, weights):
            usable = count - 1
            num_bins = max(1, round(usable * step_dt / bin_s))
            edges = [first + usable * number // num_bins for number in range(num_bins + 1)]
            for start, end in itertools.pairwise(edges):
                bin_of_row += [len(starts)] * (end - start)
                starts.append(start)
                lengths.append(end - start)
                shares.append(weight * (end - start))
            bin_of_row.append(len(starts) - 1)
            first += count
        self.bin_of_row = torch.tensor(bin_of_row, device=device)
        """`(F,)` bin of each row."""
        self._starts = torch.tensor(starts, device=device)
        self._lengths = torch.tensor(lengths, device=device)
        uniform = torch.tensor(shares, dtype=torch.float64, device=device)
        self._uniform = uniform / uniform.sum()
        self._uniform_fraction, self._decay = uniform_fraction, 1.0 - step_dt / memory_s
        self._visits_per_step = step_dt / bin_s
        self.failures = register_buffer("sampling_failures", torch.zeros_like(self._uniform))
        """`(K,)` decayed number of failures in each bin."""
        self.visits = register_buffer("sampling_visits", torch.zeros_like(self._uniform))
        """`(K,)` decayed number of passes through each bin."""

    def update(self, rows: Tensor, failed: Tensor) -> None:
        """Count one step of robots at rows `(N,)`, of which `failed` `(N,)` bool failed there."""
        bins = self.bin_of_row[rows]
        steps = torch.full_like(bins, self._visits_per_step, dtype=self.visits.dtype)
        self.visits.mul_(self._decay).index_add_(0, bins, steps)
        self.failures.mul_(self._decay).index_add_(0, bins, failed.to(self.failures.dtype))

    def probabilities(self) -> Tensor:
        """`(K,)` probability of each bin."""
        # One visit without failure is added, so that a bin that was never visited has no rate.
        rate = (self.failures / (self.visits + 1.0) + _MIN_RATE) * (self._uniform > 0)
        return torch.lerp(rate / rate.sum(), self._uniform, self._uniform_fraction)

    def sample(self, uniform: Tensor) -> Tensor:
        """Rows `(N,)` from uniform numbers `(N, 2)` in [0, 1): of the bin, and of the frame within it."""
        cumulative = self.probabilities().cumsum(0)
        bins = torch.searchsorted(cumulative, uniform[:, 0].to(cumulative.dtype) * cumulative[-1], right=True)
        bins = bins.clamp_(max=len(self._starts) - 1)
        length = self._lengths[bins]
        frame = (uniform[:, 1] * length).long().minimum(length - 1)
        return self._starts[bins] + frame
