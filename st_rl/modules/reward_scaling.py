"""Scaling of rewards by the running spread of discounted returns."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.modules.normalizer import EmpiricalNormalization

NORMALIZE_UNTIL = 1.0e8


class DiscountedRewardScaling(nn.Module):
    """Divides rewards by the running standard deviation of their discounted sum per environment.

    `clip` limits the scaled rewards to plus and minus this number. Rewards keep their sign and zero stays zero: the
    mean is not subtracted, which would change the task. Writes are in place and without host sync.
    """

    discounted_sum: Tensor

    def __init__(self, discount: float = 0.99, clip: float | None = None):
        super().__init__()
        self.discount = discount
        self.clip = clip
        self.statistics = EmpiricalNormalization((), until=NORMALIZE_UNTIL)
        # The number of environments is known with the first rewards.
        self.register_buffer("discounted_sum", torch.zeros(0))

    def forward(self, reward: Tensor, dones: Tensor | None = None) -> Tensor:
        """`(N,) -> (N,)`; unchanged while the standard deviation is zero. The sum starts again where `dones (N,)`."""
        if self.training:
            self._allocate(reward.shape[0])
            self.discounted_sum.mul_(self.discount).add_(reward)
            # An infinite sum would stay infinite.
            torch.nan_to_num_(self.discounted_sum, nan=0.0, posinf=0.0, neginf=0.0)
            self.statistics.update(self.discounted_sum)
            # A huge sum would be an outlier for hundreds of steps.
            self.discounted_sum.copy_(self.statistics.clip_outliers(self.discounted_sum))
            if dones is not None:
                self.discounted_sum.masked_fill_(dones > 0, 0.0)
        std = self.statistics.std
        scaled = reward / torch.where(std > 0.0, std, 1.0)
        return scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)

    def _allocate(self, num_envs: int) -> None:
        if self.discounted_sum.shape[0] != num_envs:
            with torch.inference_mode(False):
                self.discounted_sum = torch.zeros(num_envs, device=self.discounted_sum.device)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "discounted_sum")
        if saved is not None:
            self._allocate(saved.shape[0])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
