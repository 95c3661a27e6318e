"""Detects NaN and Inf in a training: replaced where the environment delivers them, reported once an iteration."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from st_rl.env.utils import tensor_error
from st_rl.utils.distributed import find_rank, world_size
from st_rl.utils.log import logger


class NonFiniteGuard:
    """Replaces NaN and Inf in the tensors of a rollout with 0 and counts the affected rows.

    `clean` does not wait for the device and costs a GPU two kernels; `report` waits once.
    """

    def __init__(self, device: torch.device | str, num_steps: int):
        self.device = torch.device(device)
        self.num_steps = num_steps
        # The step of the rollout to which `clean` attributes what it finds.
        self.step = 0
        # Name -> sum of each row at each step, (num_steps, N). A sum is finite exactly if its row is.
        self._sums: dict[str, Tensor] = {}

    def clean(self, name: str, values: Tensor) -> Tensor:
        """Return `values (N, ...)` on the guard's device with non-finite values replaced by 0."""
        if not isinstance(values, Tensor):
            raise tensor_error(name, values)
        values = values.to(self.device)
        if not values.is_floating_point():
            return values
        if self.device.type == "cpu" and math.isfinite(float(values.sum())):
            return values
        if name not in self._sums:
            with torch.inference_mode(False):
                self._sums[name] = torch.zeros(self.num_steps, values.shape[0], device=self.device)
        torch.sum(values.reshape(values.shape[0], -1), dim=1, out=self._sums[name][self.step])
        return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)

    def report(self) -> dict[str, tuple[int, int]]:
        """Return name -> (number of non-finite rows, first step) since the last report, ordered by first step."""
        if not self._sums:
            return {}
        masks = [~torch.isfinite(sums) for sums in self._sums.values()]
        # argmax of a mask is the first True.
        rows = [torch.stack([mask.sum(), mask.any(dim=1).int().argmax()]) for mask in masks]
        table = torch.stack(rows).tolist()
        for sums in self._sums.values():
            sums.zero_()
        found = {name: (count, first) for name, (count, first) in zip(self._sums, table) if count > 0}
        return dict(sorted(found.items(), key=lambda item: item[1][1]))


def report_non_finite(
    iteration: int,
    from_env: Mapping[str, tuple[int, int]],
    in_update: Mapping[str, int],
    num_rows: int,
    device: torch.device | str = "cpu",
) -> None:
    """Log the non-finite values of one iteration; RuntimeError if a tensor of the environment was never finite.

    With several ranks it raises on all of them if it does on one.

    Args:
        iteration: number of the iteration.
        from_env: name -> (number of non-finite rows, first step of the rollout), see `NonFiniteGuard.report`.
        in_update: name -> number of mini-batches in which it was non-finite, in the order of computation.
        num_rows: rows of one rollout.
        device: device of this rank.
    """
    if from_env:
        found = "; ".join(
            f"{count} of {num_rows} rows of {name} (first at step {step} of the rollout)"
            for name, (count, step) in from_env.items()
        )
        logger.warning(
            f"iteration {iteration}: the environment delivered NaN or Inf in {found}; replaced with 0 before the "
            "update. Check that the simulation is stable"
        )
    if in_update:
        first, *others = in_update
        also = f" (followed by {', '.join(others)})" if others else ""
        logger.warning(
            f"iteration {iteration}: {first}{also} was NaN or Inf in {max(in_update.values())} mini-batches; their "
            "steps were skipped. Lower the learning rate or check the rewards"
        )
    never_finite = [name for name, (count, _) in from_env.items() if count >= num_rows]
    failed_rank = find_rank(bool(never_finite), device)
    if failed_rank is None:
        return
    where = f" of rank {failed_rank}" if world_size() > 1 else ""
    names = " and ".join(never_finite) or "tensors"
    raise RuntimeError(
        f"iteration {iteration}: {names} of the environment{where} were NaN or Inf in every environment at every step "
        "of the rollout; training stopped. Check the simulation; earlier checkpoints are intact"
    )
