"""The last seconds of some quantities, for plots."""

import numpy as np


class Traces:
    """A ring of the last rows of `width` quantities over time."""

    def __init__(self, width: int, capacity: int):
        self._rows = np.zeros((capacity, width + 1))
        self._count = 0

    def add(self, time: float, values: np.ndarray) -> None:
        """Append a row `(width,)`; the oldest is dropped when the ring is full."""
        row = self._rows[self._count % len(self._rows)]
        row[0], row[1:] = time, values
        self._count += 1

    def clear(self) -> None:
        """Drop all rows."""
        self._count = 0

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return times `(n,)` and values `(width, n)`, the oldest first; at least two rows, zeros if there are none."""
        size = len(self._rows)
        if self._count < 2:
            return np.array([0.0, 1e-3]), np.zeros((self._rows.shape[1] - 1, 2))
        first = self._count % size if self._count > size else 0
        rows = np.roll(self._rows, -first, axis=0)[: min(self._count, size)]
        return rows[:, 0].copy(), rows[:, 1:].T.copy()
