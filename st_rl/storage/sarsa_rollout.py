"""`SarsaRolloutStorage`: a rollout with the next observation of every step."""

from typing import Any

import torch

from st_rl.storage.compact_buffer import CompactBuffer
from st_rl.storage.fields import BufferField, Shape, StepTransition, fit_row
from st_rl.storage.rollout_base import RolloutStorage
from st_rl.utils.log import logger

_NEXT_BUFFERS = {
    "next_observations": "observations",
    "next_privileged_observations": "privileged_observations",
}
"""Buffer of next observations -> buffer of observations, one row behind."""


class SarsaRolloutStorage(RolloutStorage):
    """Stores `T + 1` observations, so that the next observation of a step is the value row.

    At a done step the next observation belongs to the next episode.
    """

    fields = (
        *RolloutStorage.fields,
        BufferField("next_observations", "obs", source="next_observations", batch="next_obs", padded=True),
        BufferField(
            "next_privileged_observations",
            "privileged_obs",
            source="next_critic_observations",
            batch="next_critic_obs",
            padded=True,
            optional=True,
            fallback="next_obs",
        ),
    )

    class Transition(StepTransition):
        """The data of one step and the observations after it."""

        next_observations: torch.Tensor | None = None
        next_critic_observations: torch.Tensor | None = None

        @property
        def next_privileged_observations(self) -> torch.Tensor | None:
            """Alias of `next_critic_observations`."""
            return self.next_critic_observations

        @next_privileged_observations.setter
        def next_privileged_observations(self, value: torch.Tensor | None) -> None:
            self.next_critic_observations = value

    all_observations: torch.Tensor
    all_privileged_observations: torch.Tensor | None
    next_observations: torch.Tensor
    next_privileged_observations: torch.Tensor | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("obs_dtypes"):
            raise ValueError("SarsaRolloutStorage stores observations in float32 only; remove obs_dtypes")
        super().__init__(*args, **kwargs)
        self._next_inputs = [(field, source) for field, source in self._inputs if field.name in _NEXT_BUFFERS]
        self._inputs = [(field, source) for field, source in self._inputs if field.name not in _NEXT_BUFFERS]
        self._has_warned_repeated = False

    def _new_buffer(self, field: BufferField, shape: Shape) -> torch.Tensor | CompactBuffer | None:
        """Make observations and next observations two views, one row apart, of the same `T + 1` rows."""
        if field.name in _NEXT_BUFFERS:
            rows = getattr(self, f"all_{_NEXT_BUFFERS[field.name]}")
            return None if rows is None else rows[1:]
        buffer = super()._new_buffer(field, shape)
        if field.name not in _NEXT_BUFFERS.values():
            return buffer
        rows = torch.cat([buffer, buffer[:1]]) if isinstance(buffer, torch.Tensor) else None
        setattr(self, f"all_{field.name}", rows)
        return None if rows is None else rows[:-1]

    @property
    def next_critic_observations(self) -> torch.Tensor | None:
        """Next critic observations `(T, N, *Oc)`; None when the critic reads the actor observations."""
        return self.next_privileged_observations

    @torch.no_grad()
    def add_transitions(self, transition: StepTransition) -> None:
        """Copy one step into row `step`; at the last step of a rollout, its next observations too."""
        super().add_transitions(transition)
        if self.step < self.num_transitions_per_env:
            return
        buffers = self._buffers()
        for field, source in self._next_inputs:
            row, value = buffers[field.name][-1], getattr(transition, source)
            if value is None:
                value = buffers[_NEXT_BUFFERS[field.name]][-1]
                if not self._has_warned_repeated:
                    logger.warning(
                        "transition.%s is None at the end of the rollout: the last observation is used as the next "
                        "one; pass next_obs and next_critic_obs to process_env_step",
                        source,
                    )
                self._has_warned_repeated = True
            row.copy_(fit_row(value, source, row))
