"""`QueueRolloutStorage`: a ring buffer over several rollouts."""

from collections.abc import Mapping
from typing import Any

import torch

from st_rl.storage.fields import StepTransition
from st_rl.storage.rollout_base import RolloutStorage
from st_rl.utils.buffer import buffer_expand, buffer_from_example, buffer_swap, buffer_to
from st_rl.utils.tensors.tree import tree_leaves


class QueueRolloutStorage(RolloutStorage):
    """Stores the newest `int(buffer_dilation_ratio * T)` steps; grows by one rollout at a time, then overwrites."""

    def __init__(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        *args: Any,
        buffer_dilation_ratio: float = 1.0,
        **kwargs: Any,
    ) -> None:
        if buffer_dilation_ratio != 1.0 and kwargs.get("obs_dtypes"):
            raise ValueError(
                f"obs_dtypes is not supported with buffer_dilation_ratio={buffer_dilation_ratio}; remove one"
            )
        super().__init__(num_envs, num_transitions_per_env, *args, **kwargs)
        self.num_timesteps_each_rollout = num_transitions_per_env
        self.buffer_dilation_ratio = buffer_dilation_ratio
        self.buffer_full = False

    @property
    def max_num_steps(self) -> int:
        """Number of steps of the full buffer."""
        return int(self.buffer_dilation_ratio * self.num_timesteps_each_rollout)

    @property
    def num_valid_steps(self) -> int:
        """Number of leading rows that hold data: all once the ring is full, before that those below the cursor."""
        return self.num_transitions_per_env if self.buffer_full else self.step

    def add_transitions(self, transition: StepTransition) -> None:
        """Copy one step of all environments into row `step`; wraps to row 0 at the full length."""
        super().add_transitions(transition)
        if self.step >= self.num_transitions_per_env:
            self.buffer_full = self.num_transitions_per_env >= self.max_num_steps
            if self.buffer_full:
                self.step = 0

    def clear(self) -> None:
        """Make room for the next rollout; stored steps are kept."""
        if self.step >= self.num_transitions_per_env and not self.buffer_full:
            self.expand_buffer_once()

    def expand_buffer_once(self) -> int:
        """Append zero rows for one more rollout, at most up to the full length; return their number."""
        num_rows = max(0, min(self.max_num_steps - self.num_transitions_per_env, self.num_timesteps_each_rollout))
        if num_rows == 0:
            return 0
        with torch.inference_mode(False):
            for name, buffer in self._buffers().items():
                setattr(self, name, buffer_expand(buffer, num_rows))
            self.saved_hidden_states = buffer_expand(self.saved_hidden_states, num_rows)
        self.num_transitions_per_env += num_rows
        return num_rows

    def swap_from_cursor(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the rows from the cursor on, then those before it; the buffer itself if the cursor is at an end."""
        if self.step in (0, self.num_transitions_per_env):
            return buffer
        return buffer_swap(buffer, self.step)

    def untie_buffer_loop(self) -> None:
        """Rotate every buffer in place so that row 0 is the oldest step, which is overwritten next."""
        for buffer in (*self._buffers().values(), *tree_leaves(self.saved_hidden_states)):
            if buffer is not None and self.step not in (0, self.num_transitions_per_env):
                # In place: others hold references to the buffers.
                buffer.copy_(self.swap_from_cursor(buffer))
        self.step = 0

    def _order_in_time(self) -> None:
        """Rotate the full ring into time order; before it is full the rows are in time order."""
        if self.num_valid_steps == 0:
            raise ValueError("the storage holds no steps yet; add transitions first")
        if self.buffer_full:
            self.untie_buffer_loop()

    def _in_time_order(self, buffer: torch.Tensor) -> torch.Tensor:
        """The valid rows of a buffer, oldest first, without changing it."""
        return self.swap_from_cursor(buffer) if self.buffer_full else buffer[: self.step]

    # Saving -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all stored steps, for a checkpoint."""
        return {
            "step": self.step,
            "buffer_full": self.buffer_full,
            "num_steps": self.num_transitions_per_env,
            "buffers": {name: buffer for name, buffer in self._buffers().items() if buffer is not None},
            "hidden_states": [leaf for leaf in tree_leaves(self.saved_hidden_states) if leaf is not None],
        }

    def load_state_dict(self, state: Mapping[str, Any], hidden_states: Any = None) -> None:
        """Restore a `state_dict`; `hidden_states`, leaves `(L, N, H)`, is an example of their containers."""
        num_steps, step, is_full = int(state["num_steps"]), int(state["step"]), bool(state["buffer_full"])
        num_rollout, limit = self.num_timesteps_each_rollout, max(self.max_num_steps, self.num_timesteps_each_rollout)
        if num_steps not in ((limit,) if is_full else (step, min(step + num_rollout, limit))):
            raise ValueError(
                f"{num_steps} saved steps do not fit a buffer of {limit} for rollouts of {num_rollout}; "
                "continue with the buffer_dilation_ratio and num_steps_per_env of the saved training"
            )
        with torch.inference_mode(False):
            for name, rows in state["buffers"].items():
                setattr(self, name, rows.to(self.device, copy=True))
            container = buffer_from_example(hidden_states, (num_steps,)) if state["hidden_states"] else None
            self.saved_hidden_states = buffer_to(container, self.device)
            for saved, rows in zip(tree_leaves(self.saved_hidden_states), state["hidden_states"]):
                saved.copy_(rows)
        self.num_transitions_per_env, self.step, self.buffer_full = num_steps, step, is_full
