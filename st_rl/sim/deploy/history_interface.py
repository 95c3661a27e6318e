"""The interface of a walking task of which the observation has a history."""

from typing import Any, cast

import torch
from torch import Tensor

from st_rl.env import ObservationHistory
from st_rl.env.signals import Signal
from st_rl.sim.deploy.measured_state import Tensors
from st_rl.sim.deploy.robot_interface import RobotInterface
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.utils.tensors.segments import get_subobs_by_components


class HistoryInterface(RobotInterface):
    """A `RobotInterface` that appends past observations, as `ObservationHistory` does."""

    def __init__(self, env: ObservationHistory) -> None:
        """Read the interface from an `ObservationHistory` of a walking task."""
        task = cast(LeggedWalk, env.env)
        super().__init__(task)
        self._length, self._width = env.obs_segments["history"]
        self._components, self._segments = env.components, task.obs_segments
        self.states |= {
            "history": Signal((self._length, self._width), "scaled", "past observations, oldest first"),
            "has_history": Signal((1,), "1", "0 before the first step of an episode, then 1"),
        }

    def observe(self, inputs: Tensors, state: Tensors) -> Tensor:
        """`(N, O + length * D)` actor observation and its history; the first one of an episode is repeated."""
        obs = super().observe(inputs, state)
        newest = get_subobs_by_components(obs, self._components, self._segments)[:, None]
        shifted = torch.cat([state["history"][:, 1:], newest], dim=1)
        history = torch.where(state["has_history"][:, :, None] > 0.5, shifted, newest.expand_as(shifted))
        return torch.cat([obs, history.flatten(1)], dim=1)

    def next_state(self, inputs: Tensors, state: Tensors, obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """The states after a step with observation `(N, O + length * D)` and clipped actions `(N, J)`."""
        history = obs[:, -self._length * self._width :].unflatten(1, (self._length, self._width))
        added = {"history": history, "has_history": torch.ones_like(state["has_history"])}
        return {**super().next_state(inputs, state, obs, actions), **added}

    def describe(self) -> dict[str, Any]:
        """Add the history to the terms of the observation."""
        description = super().describe()
        terms = description["observation"]
        start, width = terms[-1]["start"] + terms[-1]["width"], self._length * self._width
        words = f"{', '.join(self._components)} of the last {self._length} observations, oldest first"
        history = {"name": "history", "start": start, "width": width, "scale": 1.0, "description": words}
        return {**description, "observation": [*terms, history]}
