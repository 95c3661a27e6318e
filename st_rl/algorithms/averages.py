"""Averages of named values, accumulated on the device."""

import torch
from torch import Tensor


class RunningAverages:
    """Means of named 0-d tensors over many calls; non-finite values are counted, not added."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._rows: list[Tensor] = []

    def add(self, values: dict[str, Tensor]) -> None:
        """Add one value for each name; a name that is missing in a call counts as 0."""
        if list(values) != self._names:
            values = self._completed(values)
        self._rows.append(torch.stack([value.detach().float() for value in values.values()]))

    def _completed(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values of all names so far, in a fixed order."""
        new = [name for name in values if name not in self._names]
        self._names += new
        self._rows = [torch.nn.functional.pad(row, (0, len(new))) for row in self._rows]
        zero = torch.zeros_like(next(iter(values.values())), dtype=torch.float32)
        return {name: values.get(name, zero) for name in self._names}

    def means(self) -> dict[str, Tensor]:
        """Name -> 0-d mean of its finite values (NaN without any)."""
        if not self._rows:
            return {}
        table = torch.stack(self._rows)
        finite = torch.isfinite(table)
        means = torch.where(finite, table, 0.0).sum(dim=0) / finite.sum(dim=0)
        return dict(zip(self._names, means.unbind()))

    def non_finite_counts(self) -> dict[str, int]:
        """Name -> number of non-finite values, for names that have any; a host sync."""
        if not self._rows:
            return {}
        bad = torch.isfinite(torch.stack(self._rows)).logical_not_().sum(dim=0)
        return {name: count for name, count in zip(self._names, bad.tolist()) if count}
