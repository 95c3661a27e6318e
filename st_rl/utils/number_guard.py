"""Finding NaN and Inf where they are born, without waiting for the device."""

import torch
from torch import Tensor


class NumberGuard:
    """Counts non-finite numbers per name on the device and keeps them away from what follows.

    `clean` and `watch` never wait for the device; `report` reads everything at once and starts anew.
    """

    def __init__(self, device: torch.device | str):
        self.device = torch.device(device)
        self._counts: dict[str, Tensor] = {}
        self._first_steps: dict[str, Tensor] = {}

    def clean(self, name: str, values: Tensor, step: int) -> Tensor:
        """Count the rows of `values (N, ...)` that hold a bad number; return them with bad numbers set to zero."""
        finite = torch.isfinite(values)
        if self.device.type == "cpu" and bool(finite.all()):
            return values
        self._count(name, (~finite.reshape(finite.shape[0], -1).all(dim=1)).sum(), step)
        return torch.where(finite, values, torch.zeros_like(values))

    def watch(self, name: str, value: Tensor, step: int) -> None:
        """Count a 0-d value that is not finite."""
        self._count(name, (~torch.isfinite(value)).sum(), step)

    def _count(self, name: str, count: Tensor, step: int) -> None:
        if name not in self._counts:
            with torch.inference_mode(False):
                self._counts[name] = torch.zeros((), dtype=torch.int64, device=self.device)
                self._first_steps[name] = torch.full((), -1, dtype=torch.int64, device=self.device)
        first = self._first_steps[name]
        first.copy_(torch.where((first < 0) & (count > 0), step, first))
        self._counts[name].add_(count)

    def report(self) -> dict[str, tuple[int, int]]:
        """The names with bad numbers since the last report: how many, and the first step; one wait for the device."""
        if not self._counts:
            return {}
        names = list(self._counts)
        table = torch.stack([*self._counts.values(), *self._first_steps.values()]).tolist()
        for name in names:
            self._counts[name].zero_()
            self._first_steps[name].fill_(-1)
        found = {name: (table[i], table[len(names) + i]) for i, name in enumerate(names) if table[i] > 0}
        return dict(sorted(found.items(), key=lambda item: item[1][1]))
