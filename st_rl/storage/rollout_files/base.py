"""`RolloutFileBase`: batches of transitions from files."""

import abc
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset

from st_rl.utils.buffer import buffer_func, buffer_method


class RolloutFileBase(IterableDataset, abc.ABC):
    """Plays recorded steps of `num_envs` environments, as if they were stepped together.

    Files are opened by the first `reset`, `get_batch` or iteration, not by the constructor.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        num_envs: int,
        device: torch.device | str = "cuda",
    ):
        super().__init__()
        if num_envs < 1:
            raise ValueError(f"num_envs is {num_envs}; a dataset needs at least 1 environment")
        self.data_dir = data_dir
        self.num_envs = num_envs
        self.device = device
        self.all_env_ids = torch.arange(num_envs)
        self.__initialized = False

    def reset(self, env_ids: Sequence[int] | torch.Tensor | None = None) -> None:
        """Restart all environments, or assign other trajectories to some of them."""
        if env_ids is None or len(env_ids) == self.num_envs:
            self.reset_all()
            self.__initialized = True
        else:
            self.refresh_handlers(env_ids)

    def get_batch(self, num_transitions_per_env: int | None = None) -> Any:
        """The next step of all environments, leaves `(N, ...)`, or the next `n` steps, leaves `(n, N, ...)`.

        The next call may reuse the buffer: copy what you need later.
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
        """The next step of all environments, and infos as an environment delivers them."""
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
        """Assign a trajectory to every environment."""

    @abc.abstractmethod
    def refresh_handlers(self, env_ids: Sequence[int] | torch.Tensor | None = None) -> None:
        """Assign another trajectory to some environments, or to all."""

    @abc.abstractmethod
    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        """Allocate a named array tuple, tensor or dict of tensors, leaves `(N, ...)` or `(n, N, ...)`."""

    @abc.abstractmethod
    def fill_transition(self, buffer: Any, env_ids: Sequence[int] | torch.Tensor | None = None) -> None:
        """Write the next step of some environments, or all, into a buffer with leaves `(N, ...)`."""
