"""The contract of a vectorized environment."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from typing_extensions import Self


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

    def __new__(cls, *args: Any, **kwargs: Any) -> "Self":
        """TypeError with what to do instead for a class with abstract methods, such as `VecEnv` itself."""
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise TypeError(
                f"{cls.__name__} is an interface and cannot be built: write a subclass that defines "
                f"{', '.join(missing)}, or use make_gymnasium(...), make_mjlab(...) or ManagerBasedVecEnv(env) of "
                "st_rl.env, or a built-in task (st-rl tasks lists them)"
            )
        new = super().__new__
        if new is object.__new__ and cls.__init__ is not object.__init__:
            return new(cls)
        return new(cls, *args, **kwargs)

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
