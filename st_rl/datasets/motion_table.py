"""Frames of several clips in one table on a device, interpolated at any time."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from st_rl.utils.tensors.rotations import quat_slerp


class MotionTable:
    """Frames of `C` clips stacked to one table `(F, W)`.

    Reading it needs no host sync, so that it can be captured in a CUDA graph.
    """

    def __init__(
        self,
        clips: Sequence[Tensor],
        frame_durations: Sequence[float],
        weights: Sequence[float],
        device: torch.device | str,
        quaternions: Sequence[Sequence[int]] = (),
    ) -> None:
        """Copy clips `(F_i, W)` of two frames or more to a device.

        `frame_durations` are the seconds between frames of each clip, `weights` the relative sampling weights, not all
        zero. `quaternions` are the columns of each rotation, interpolated by slerp, the others linearly.
        """
        self.frames = torch.cat([clip.to(device, torch.float32) for clip in clips])
        """`(F, W)`"""
        counts = [len(clip) for clip in clips]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        self.first = torch.tensor(starts, device=device)
        """`(C,)` row of the first frame of each clip."""
        lengths = [(count - 1) * seconds for count, seconds in zip(counts, frame_durations)]
        self._last_frame = torch.tensor(counts, dtype=torch.float64, device=device) - 1.0
        self._frames_per_second = 1.0 / torch.tensor(list(frame_durations), dtype=torch.float64, device=device)
        self.lengths = torch.tensor(lengths, dtype=torch.float64, device=device)
        """`(C,)` seconds from the first frame of each clip to the last."""
        if not sum(weights) > 0:
            raise ValueError(
                f"clips are sampled by their weights, which are {list(weights)}: give at least one a positive weight"
            )
        weight = torch.tensor(list(weights), dtype=torch.float64, device=device)
        self._cumulative = (weight / weight.sum()).cumsum(0)[:-1].contiguous()
        self._quaternions = [torch.tensor(list(columns), device=device) for columns in quaternions]

    def sample_clips(self, uniform: Tensor) -> Tensor:
        """Clips `(n,)`, sampled by weight with uniform random numbers `(n,)` in [0, 1)."""
        if len(self._cumulative) == 0:
            return torch.zeros_like(uniform, dtype=torch.long)
        return torch.searchsorted(self._cumulative, uniform.to(self._cumulative.dtype), right=True)

    def at(self, clip: Tensor, time: Tensor) -> Tensor:
        """Frames `(n, W)` of clips `(n,)` at times `(n,)`, which are clamped to the length of the clip."""
        last = self._last_frame[clip]
        position = (time * self._frames_per_second[clip]).clamp_(min=0.0).minimum(last)
        low = position.floor()
        before = self.first[clip] + low.long()
        # After the last frame of a clip the weight of the next row is zero, so any row will do.
        rows = torch.stack([before, (before + 1).clamp_(max=len(self.frames) - 1)], dim=1)
        blend = (position - low).to(self.frames.dtype)
        blended = self._blend(rows, blend)
        for columns in self._quaternions:
            ends = self.frames.index_select(1, columns)[rows]
            blended.index_copy_(1, columns, quat_slerp(ends[:, 0], ends[:, 1], blend[:, None]))
        return blended

    def _blend(self, rows: Tensor, blend: Tensor) -> Tensor:
        """Linear interpolation `(n, W)` between two rows `(n, 2)` at `blend (n,)`."""
        if self.frames.is_cuda:
            return torch.lerp(self.frames[rows[:, 0]], self.frames[rows[:, 1]], blend[:, None])
        # On a CPU a weighted sum of table rows by embedding_bag takes a single pass over memory.
        weights = torch.stack([1.0 - blend, blend], dim=1)
        return embedding_bag(rows, self.frames, mode="sum", per_sample_weights=weights)
