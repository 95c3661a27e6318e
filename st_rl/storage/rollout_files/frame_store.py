"""The file that each environment is reading, side by side on one device."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


class FrameStore:
    """Keeps one file of frames for each of N environments, so that one gather reads a frame of every one.

    A field is one tensor `(N, capacity, ...)`, as long as the longest file so far.
    """

    def __init__(self, num_envs: int, device: torch.device | str):
        self.num_envs = num_envs
        self.device = device
        self.capacity = 0
        self.fields: dict[str, Tensor] = {}

    def put(self, env: int, frames: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Replace an environment's frames, arrays `(n, ...)`; returns them as views on the device."""
        num_frames = len(next(iter(frames.values())))
        if num_frames > self.capacity:
            self._grow(num_frames)
        views = {}
        for name, array in frames.items():
            source = torch.from_numpy(array)
            if name not in self.fields:
                self.fields[name] = self._zeros(source)
            views[name] = self.fields[name][env, :num_frames]
            views[name].copy_(source)
        return views

    def rows(self, envs: np.ndarray, frames: np.ndarray) -> Tensor:
        """Where a frame of each of some environments lies, int64 `(n,)`: what `gather` takes."""
        return torch.from_numpy(envs * self.capacity + frames).to(self.device)

    def gather(self, name: str, rows: Tensor) -> Tensor:
        """One frame of every environment, `(n, ...)`, a copy."""
        return self.fields[name].flatten(0, 1).index_select(0, rows)

    def _grow(self, capacity: int) -> None:
        """Make room for longer files and keep what is there."""
        for name, field in self.fields.items():
            grown = self._zeros(field[0], capacity)
            grown[:, : self.capacity] = field
            self.fields[name] = grown
        self.capacity = capacity

    def _zeros(self, frames: Tensor, capacity: int | None = None) -> Tensor:
        """An empty field for frames `(n, ...)`; an ordinary tensor even when a rollout runs in inference mode."""
        shape = (self.num_envs, self.capacity if capacity is None else capacity, *frames.shape[1:])
        with torch.inference_mode(False):
            return torch.zeros(shape, dtype=frames.dtype, device=self.device)
