"""Averages of named numbers, kept on the device."""

import torch
from torch import Tensor


class RunningAverages:
    """Means over many calls of a fixed set of named 0-d tensors; values that are not finite are counted, not added."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sums = torch.zeros(0)
        self._bad = torch.zeros(0)
        self._count = 0

    def add(self, values: dict[str, Tensor]) -> None:
        """Add one value for each name; the names must be the same on every call."""
        vector = torch.stack([value.detach().float() for value in values.values()])
        finite = torch.isfinite(vector)
        if self._count == 0:
            self._names = list(values)
            self._sums, self._bad = torch.zeros_like(vector), torch.zeros_like(vector)
        elif list(values) != self._names:
            raise ValueError(f"the names changed between mini-batches: {self._names} became {list(values)}")
        self._sums.add_(torch.where(finite, vector, 0.0))
        self._bad.add_((~finite).float())
        self._count += 1

    def means(self) -> dict[str, Tensor]:
        """Name -> 0-d mean of its finite values (NaN where it had none)."""
        return dict(zip(self._names, (self._sums / (self._count - self._bad)).unbind()))

    def bad_counts(self) -> dict[str, int]:
        """Name -> how many of its values were not finite, only where there were any; waits for the device."""
        return {name: int(count) for name, count in zip(self._names, self._bad.tolist()) if count}
