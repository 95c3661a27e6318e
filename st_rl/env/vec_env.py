"""The contract of a vectorised environment."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch


class VecEnv(ABC):
    """Minimal interface that `N` environments stepped together offer to the runners.

    The class holds annotations and three abstract methods, nothing else, so that a client's wrapper may define any of
    the names as a property or as an instance attribute. Further attributes are read where an environment has them:
    `cfg`, `unwrapped`, `obs_segments`, `critic_obs_segments` (older name `privileged_obs_segments`), `mirror`,
    `tracking_error`, `CoT`, `lin_vel_rmsd`, and `state_dict()` / `load_state_dict(state)` for an exact resume.
    """

    num_envs: int
    num_obs: int
    num_privileged_obs: int | None
    num_actions: int
    max_episode_length: int
    privileged_obs_buf: torch.Tensor
    obs_buf: torch.Tensor
    rew_buf: torch.Tensor
    reset_buf: torch.Tensor
    episode_length_buf: torch.Tensor
    extras: dict
    device: torch.device | str

    @abstractmethod
    def get_observations(self) -> Any:
        """Return `(obs (N, O), extras)`; `extras["observations"]` is a dict of groups."""

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Reset every environment and return `(obs (N, O), extras)`."""

    @abstractmethod
    def step(self, actions: torch.Tensor) -> Any:
        """Apply actions `(N, A)` and return `(obs (N, O), rewards (N,), dones (N,), infos)`."""

    def get_privileged_observations(self) -> torch.Tensor | Mapping[str, torch.Tensor] | None:
        """Return the critic observation `(N, Oc)` in the older form of the interface, `None` without one."""
        return None
