"""Random network distillation: an intrinsic reward for novel states."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from st_rl.modules.mlp import MlpModel
from st_rl.modules.normalizer import NORMALIZE_UNTIL, DiscountedRewardScaling, EmpiricalNormalization
from st_rl.utils.config import drop_none

SCHEDULE_MODES = ("constant", "step", "linear")


class RandomNetworkDistillation(nn.Module):
    """Rewards states by the prediction error of a trained network on a frozen random network.

    The weight of the reward is scheduled over the calls of `get_intrinsic_reward` in training mode. The counter is a
    buffer on the device, so a replayed CUDA graph follows the schedule.
    """

    call_count: Tensor

    def __init__(
        self,
        num_states: int,
        num_outputs: int,
        predictor_hidden_dims: Sequence[int],
        target_hidden_dims: Sequence[int],
        activation: str = "elu",
        weight: float = 0.0,
        state_normalization: bool = False,
        reward_normalization: bool = False,
        device: torch.device | str = "cpu",
        weight_schedule: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.num_states = int(num_states)
        self.num_outputs = int(num_outputs)
        self.initial_weight = float(weight)
        self.weight_schedule = _checked_schedule(weight_schedule)
        self.state_normalizer = (
            EmpiricalNormalization(self.num_states, until=NORMALIZE_UNTIL) if state_normalization else None
        )
        self.reward_normalizer = DiscountedRewardScaling() if reward_normalization else None
        self.register_buffer("call_count", torch.zeros((), dtype=torch.int64))
        self.predictor = self._build_network(predictor_hidden_dims, activation)
        self.target = self._build_network(target_hidden_dims, activation).requires_grad_(False)
        self.to(device)
        self.train()

    def _build_network(self, hidden_dims: Sequence[int], activation: str) -> MlpModel:
        sizes = [self.num_states if size == -1 else size for size in hidden_dims]
        return MlpModel(self.num_states, sizes, self.num_outputs, activation)

    def train(self, mode: bool = True) -> "RandomNetworkDistillation":
        """Switch the mode of everything but the target, which never trains."""
        super().train(mode)
        self.target.eval()
        return self

    @property
    def weight(self) -> Tensor:
        """Current weight of the reward, 0-d, on the device."""
        start = self.initial_weight
        schedule = self.weight_schedule
        if schedule["mode"] == "constant":
            return torch.full_like(self.call_count, start, dtype=torch.get_default_dtype())
        change = schedule["final_value"] - start
        if schedule["mode"] == "step":
            return start + change * (self.call_count >= schedule["final_step"]).float()
        duration = schedule["final_step"] - schedule["initial_step"]
        progress = ((self.call_count - schedule["initial_step"]) / duration).clamp(0.0, 1.0)
        return start + change * progress

    @torch.no_grad()
    def get_intrinsic_reward(self, rnd_state: Tensor) -> Tensor:
        """Return the reward `(N,)` of raw states `(N, num_states)`; training mode updates the statistics."""
        if self.training:
            self.call_count.add_(1)
        states = rnd_state if self.state_normalizer is None else self.state_normalizer(rnd_state)
        reward = torch.linalg.vector_norm(self.target(states) - self.predictor(states), dim=-1)
        # The error of a huge state may overflow; an infinite reward would discard the whole rollout.
        reward = torch.nan_to_num(reward, nan=0.0, posinf=0.0)
        if self.reward_normalizer is not None:
            reward = self.reward_normalizer(reward)
        return self.weight * reward

    def predictor_loss(self, rnd_state: Tensor) -> Tensor:
        """Return the mean squared error, 0-d, of the predictor on raw states `(..., num_states)`."""
        with torch.no_grad():
            states = rnd_state if self.state_normalizer is None else self.state_normalizer.normalize(rnd_state)
            target = self.target(states)
        return F.mse_loss(self.predictor(states), target)


def _checked_schedule(weight_schedule: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the schedule with the settings that its mode needs; `initial_step` defaults to 0."""
    given = drop_none(weight_schedule or {})
    schedule = {"mode": "constant", "initial_step": 0, **given}
    mode = schedule["mode"]
    if mode not in SCHEDULE_MODES:
        raise ValueError(f"weight_schedule mode '{mode}' is unknown; use one of: {', '.join(SCHEDULE_MODES)}")
    needed = [] if mode == "constant" else ["initial_step", "final_step", "final_value"]
    missing = [key for key in needed if key not in schedule]
    if missing:
        raise ValueError(f"weight_schedule of mode '{mode}' needs {', '.join(missing)}; got {given}")
    if mode == "linear" and schedule["final_step"] <= schedule["initial_step"]:
        raise ValueError(
            f"weight_schedule of mode 'linear' needs final_step > initial_step, "
            f"got {schedule['final_step']} and {schedule['initial_step']}"
        )
    return {"mode": mode, **{key: schedule[key] for key in needed}}
