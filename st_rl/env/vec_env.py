"""The contract of a vectorized environment."""

from abc import ABC, abstractmethod
from typing import Any

import torch


class VecEnv(ABC):
    """Minimal interface of `N` environments that are stepped together.

    The class has annotations and three abstract methods only, so that a client's wrapper may define any of the names
    as a property or as an instance attribute. Optional attributes: `cfg`, `unwrapped`, `obs_segments`,
    `critic_obs_segments` (older name `privileged_obs_segments`), `tracking_error`, `CoT`, `lin_vel_rmsd`, and the
    capabilities in `st_rl.env.protocols`, such as `state_dict()` / `load_state_dict(state)` for an exact resume.
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

    def get_privileged_observations(self) -> torch.Tensor | None:
        """Older form of the interface: return the critic observation `(N, Oc)`, `None` if there is none."""
        return None
