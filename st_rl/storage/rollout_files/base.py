"""`RolloutFileBase`: rollouts from files, batch by batch."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset

from st_rl.utils.buffer import buffer_func, buffer_method


class RolloutFileBase(IterableDataset, abc.ABC):
    """Delivers recorded steps of `num_envs` environments side by side, as if they were stepped together.

    Files are first touched by the first `reset`, `get_batch` or iteration, not by the constructor.
    """

    def __init__(self, data_dir: Any, num_envs: int, device: torch.device | str = "cuda"):
        super().__init__()
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; a dataset delivers at least 1 environment")
        self.data_dir = data_dir
        self.num_envs = num_envs
        self.device = device
        self.all_env_ids = torch.arange(num_envs)
        self.__initialized = False

    def reset(self, env_ids: Sequence[int] | torch.Tensor | None = None) -> None:
        """Start all environments anew, or give some of them other trajectories."""
        if env_ids is None or len(env_ids) == self.num_envs:
            self.reset_all()
            self.__initialized = True
        else:
            self.refresh_handlers(env_ids)

    def get_batch(self, num_transitions_per_env: int | None = None) -> Any:
        """The next step of all environments, leaves `(N, ...)`, or the next `n` steps, leaves `(n, N, ...)`.

        The buffer may be reused by the next call: copy what you keep.
        """
        if not self.__initialized:
            self.reset()
        buffer = self.get_buffer(num_transitions_per_env)
        if num_transitions_per_env is None:
            self.fill_transition(buffer)
        else:
            for step in range(num_transitions_per_env):
                self.fill_transition(buffer_func(buffer, lambda leaf, t=step: leaf[t]))
        return buffer

    def get_transition_batch(self) -> tuple[Any, dict[str, Any]]:
        """The next step of all environments and the infos that an environment would give with it."""
        buffer = self.get_batch()
        timeout = buffer.get("timeout") if isinstance(buffer, dict) else getattr(buffer, "timeout", None)
        return buffer, {} if timeout is None else {"time_outs": timeout}

    def __iter__(self) -> Iterator[Any]:
        self.reset()
        return self

    def __next__(self) -> Any:
        return buffer_method(self.get_batch(), "clone")

    @abc.abstractmethod
    def reset_all(self) -> None:
        """Give every environment a trajectory."""

    @abc.abstractmethod
    def refresh_handlers(self, env_ids: Sequence[int] | torch.Tensor | None = None) -> None:
        """Give some environments, or all, another trajectory."""

    @abc.abstractmethod
    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        """A buffer with leaves `(N, ...)`, or `(n, N, ...)`: a named array tuple, a tensor or a dict of tensors."""

    @abc.abstractmethod
    def fill_transition(self, buffer: Any, env_ids: Sequence[int] | torch.Tensor | None = None) -> None:
        """Write the next step of some environments, or all, into a buffer with leaves `(N, ...)`."""
