"""A trained policy as a function of raw observations."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class InferencePolicy:
    """Normalises an observation and returns the mean action; `reset` forgets the memory of finished episodes."""

    def __init__(self, actor_critic: Any, obs_normalizer: nn.Module):
        self.actor_critic = actor_critic
        self.obs_normalizer = obs_normalizer

    def __call__(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Actions `(N, A)` for raw observations `(N, O)`, or for observation groups of which `policy` is read."""
        if isinstance(obs, Mapping):
            obs = obs["policy"]
        return self.actor_critic.act_inference(self.obs_normalizer(obs))

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memory of finished robots, or of all."""
        self.actor_critic.reset(dones)
