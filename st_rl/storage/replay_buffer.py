"""`ReplayBuffer`: a ring buffer of state pairs."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch


class ReplayBuffer:
    """Stores the newest `buffer_size` pairs of a state and the next state."""

    def __init__(self, obs_dim: int, buffer_size: int, device: torch.device | str) -> None:
        if buffer_size < 1:
            raise ValueError(f"buffer_size is {buffer_size}; a replay buffer needs at least 1 row")
        self.buffer_size = buffer_size
        self.device = device
        self.step = 0
        self.num_samples = 0
        # Not inference tensors, even when the buffer is built during an inference-mode rollout.
        with torch.inference_mode(False):
            self.states = torch.zeros(buffer_size, obs_dim, device=device)
            self.next_states = torch.zeros(buffer_size, obs_dim, device=device)

    @torch.no_grad()
    def insert(self, states: torch.Tensor, next_states: torch.Tensor) -> None:
        """Append pairs `(n, obs_dim)`, overwriting the oldest ones when the ring is full."""
        for name, rows in (("states", states), ("next_states", next_states)):
            if rows.shape != (len(states), self.states.shape[1]):
                expected = (len(states), self.states.shape[1])
                raise ValueError(f"{name} has shape {tuple(rows.shape)}; the replay buffer expects {expected}")
        count = len(states)
        skipped = max(0, count - self.buffer_size)
        self._write(self.states, states, skipped)
        self._write(self.next_states, next_states, skipped)
        self.num_samples = min(self.buffer_size, max(self.step + count, self.num_samples))
        self.step = (self.step + count) % self.buffer_size

    def _write(self, ring: torch.Tensor, rows: torch.Tensor, skipped: int) -> None:
        """Write all rows but the first `skipped` at the positions of sequential insertion, wrapping at most once."""
        rows = rows[skipped:]
        start = (self.step + skipped) % self.buffer_size
        before_wrap = min(len(rows), self.buffer_size - start)
        ring[start : start + before_wrap].copy_(rows[:before_wrap])
        ring[: len(rows) - before_wrap].copy_(rows[before_wrap:])

    def feed_forward_generator(
        self, num_mini_batch: int, mini_batch_size: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Iterate over `num_mini_batch` pairs `(states, next_states)`, each `(mini_batch_size, obs_dim)`."""
        if self.num_samples == 0:
            raise ValueError("the replay buffer is empty; insert states before sampling")
        return (self._sample(mini_batch_size) for _ in range(num_mini_batch))

    def _sample(self, mini_batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample pairs uniformly with replacement, with numpy's global generator."""
        indices = torch.from_numpy(np.random.choice(self.num_samples, size=mini_batch_size)).to(self.device)
        return self.states[indices], self.next_states[indices]

    def state_dict(self) -> dict[str, Any]:
        """Return the valid rows and the write index, for a checkpoint."""
        # Copies: a view would save the whole ring.
        states, next_states = (ring[: self.num_samples].clone() for ring in (self.states, self.next_states))
        return {"states": states, "next_states": next_states, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`; a ring of another size keeps the newest rows."""
        states, next_states = (state[name].to(self.device) for name in ("states", "next_states"))
        was_full = len(states) == self.buffer_size
        self.step, self.num_samples = (int(state["step"]) if was_full else 0), 0
        # Oldest first; a ring that is not full has its write index after its last row and is not rotated.
        self.insert(states.roll(-int(state["step"]), 0), next_states.roll(-int(state["step"]), 0))
