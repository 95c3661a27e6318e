"""Finding NaN and Inf where they are born, without waiting for the device."""

import math

import torch
from torch import Tensor


class NumberGuard:
    """Keeps numbers that are not finite away from what follows, and remembers where they came from.

    `clean` never waits for a GPU and costs it two kernels; `report` reads everything at once and starts anew.
    """

    def __init__(self, device: torch.device | str, num_steps: int):
        self.device = torch.device(device)
        self.num_steps = num_steps
        # Name -> sums of every row of every step, (num_steps, N): a sum is finite exactly if its row is.
        self._sums: dict[str, Tensor] = {}

    def clean(self, name: str, values: Tensor, step: int) -> Tensor:
        """Return `values (N, ...)` with bad numbers set to zero; remember the rows that held one at this step."""
        if not values.is_floating_point():
            return values
        if self.device.type == "cpu" and math.isfinite(float(values.sum())):
            return values
        if name not in self._sums:
            with torch.inference_mode(False):
                self._sums[name] = torch.zeros(self.num_steps, values.shape[0], device=self.device)
        rows = values.reshape(values.shape[0], -1)
        torch.sum(rows, dim=1, out=self._sums[name][step])
        return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)

    def report(self) -> dict[str, tuple[int, int]]:
        """The names with bad numbers since the last report: how many rows, and the first step; waits for the device."""
        if not self._sums:
            return {}
        bad = [~torch.isfinite(sums) for sums in self._sums.values()]
        steps = [rows.any(dim=1) for rows in bad]
        # argmax of a mask is the first True.
        table = torch.stack([torch.stack([rows.sum(), step.int().argmax()]) for rows, step in zip(bad, steps)]).tolist()
        for sums in self._sums.values():
            sums.zero_()
        found = {name: (count, first) for name, (count, first) in zip(self._sums, table) if count > 0}
        return dict(sorted(found.items(), key=lambda item: item[1][1]))
