"""The head of estimators and adaptors: estimates part of the critic's observation from part of the actor's."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from st_rl.modules.mlp import MlpModel
from st_rl.modules.networks.encoders import as_names, find_components
from st_rl.modules.networks.memory import Memory
from st_rl.modules.policy import HiddenState
from st_rl.modules.utils import check_settings
from st_rl.utils.config import drop_none
from st_rl.utils.tensors.segments import (
    Segments,
    get_subobs_by_components,
    get_subobs_size,
    segment_slices,
    segment_width,
    substitute_estimated_state,
)

if TYPE_CHECKING:
    from st_rl.modules.actor_critic import ActorCritic


class EstimatorHead:
    """Reads components of the actor's observation and estimates components of the critic's.

    Components keep the order of the segments, whatever the order of the names. Network and memory belong to the
    policy, so that their parameters keep its names.

    Args:
        role: `estimator` or `adaptor`, the prefix of its settings.
        policy: gives segments, and noise to sample which rows are replaced.
        obs_components: what the head reads; None for all but its targets and those `excluded`.
        target_components: what it estimates.
        kwargs: settings of its `MlpModel`.
        excluded: components not to read by default.
    """

    def __init__(
        self,
        role: str,
        policy: "ActorCritic",
        obs_components: Sequence[str] | None,
        target_components: Sequence[str] | None,
        kwargs: Mapping[str, Any] | None,
        excluded: Sequence[str] = (),
    ):
        obs_segments, critic_segments = policy.obs_segments, policy.critic_obs_segments
        targets = as_names(target_components)
        if not targets:
            known = "" if critic_segments is None else f"; the critic observes {list(critic_segments)}"
            raise ValueError(f"{role}_target_components must name what the {role} estimates{known}")
        find_components(critic_segments, targets, f"{role}_target_components (of the critic)")
        others = [name for name in obs_segments or () if name not in targets and name not in excluded]
        names = others if obs_components is None else as_names(obs_components)
        if not names:
            raise ValueError(f"{role}_obs_components must name what the {role} sees; got {obs_components!r}")
        find_components(obs_segments, names, f"{role}_obs_components")
        self.role = role
        self.segments: Segments = obs_segments or {}
        self.critic_segments: Segments = critic_segments or {}
        self.obs_components, self.target_components = names, targets
        self.kwargs = drop_none(kwargs or {})
        check_settings(f"{role}_kwargs", self.kwargs, MlpModel, decided=["input_size", "output_size"])
        self.input_size = get_subobs_size(self.segments, names)
        self.output_size = get_subobs_size(self.critic_segments, targets)
        self.replace_prob = 0.0
        self._threshold = math.inf
        # Which column of the policy's noise selects the replaced rows; reserved when rows are first replaced.
        self._noise_column: int | None = None
        self.output: Tensor | None = None
        """The last estimate `(..., E)`; padded where the observations are. None before the first `act`."""

    def build(self, policy_kwargs: Mapping[str, Any], recurrent: bool) -> tuple[Memory | None, MlpModel]:
        """Build the network and, if `recurrent`, the memory; `policy_kwargs` are the arguments of the policy."""
        if not recurrent:
            return None, self.build_network(self.input_size)
        memory = Memory(
            self.input_size,
            type=policy_kwargs.get("rnn_type", "lstm"),
            num_layers=policy_kwargs.get("rnn_num_layers", 1),
            hidden_size=policy_kwargs.get("rnn_hidden_size", 256),
        )
        return memory, self.build_network(memory.rnn.hidden_size)

    def build_network(self, input_size: int) -> MlpModel:
        """Build the network for features of a size."""
        return MlpModel(input_size, output_size=self.output_size, **self.kwargs)

    def set_replace_prob(self, probability: float, policy: "ActorCritic") -> None:
        """Set the probability that a row of observations gets the estimate in place of the true components."""
        if probability > 1:
            raise ValueError(
                f"the {self.role} replaces true components with a probability from 0 to 1; got {probability}"
            )
        if probability > 0:
            self._check_targets()
            if self._noise_column is None:
                self._noise_column = policy.reserve_noise_column()
        self.replace_prob = float(probability)
        # Standard normal noise is below it with that probability.
        self._threshold = NormalDist().inv_cdf(self.replace_prob) if 0.0 < probability < 1.0 else math.inf

    def _check_targets(self) -> None:
        """ValueError unless the actor observes every target in the critic's width."""
        find_components(self.segments, self.target_components, f"{self.role}_target_components, to be replaced,")
        for name in self.target_components:
            width, critic_width = segment_width(self.segments[name]), segment_width(self.critic_segments[name])
            if width != critic_width:
                raise ValueError(
                    f"'{name}' is {width} wide for the actor and {critic_width} for the critic: it cannot be replaced"
                )

    def estimate(
        self,
        policy: "ActorCritic",
        observations: Tensor,
        memory: Memory | None,
        network: nn.Module,
        hidden_states: HiddenState,
        inference: bool,
    ) -> tuple[Tensor, HiddenState]:
        """Set `output`; return the observations `(..., O)` with estimates in place, and the parent's hidden states."""
        features = get_subobs_by_components(observations, self.obs_components, self.segments)
        if memory is not None:
            own_state, hidden_states = (None, None) if hidden_states is None else tuple(hidden_states)
            features = memory(features, None, own_state)
        self.output = estimate = network(features)
        return self._substitute(observations, estimate, policy, inference), hidden_states

    def _substitute(self, observations: Tensor, estimate: Tensor, policy: "ActorCritic", inference: bool) -> Tensor:
        """Replace the true components by the estimate in random rows, in inference in all (in none with probability 0).

        The estimate carries no gradient there: only its own loss trains it.
        """
        if self.replace_prob <= 0:
            return observations
        estimate = self._in_actor_order(estimate.detach())
        replaced = substitute_estimated_state(observations.clone(), self.target_components, estimate, self.segments)
        if inference:
            return replaced
        noise = policy.noise_column(self._noise_column)
        if noise is None:
            noise = torch.randn(observations.shape[:-1], device=observations.device)
        return torch.where((noise < self._threshold).unsqueeze(-1), replaced, observations)

    def _in_actor_order(self, estimate: Tensor) -> Tensor:
        """Reorder the components of `(..., E)` from the order of the critic's segments to the actor's."""
        wanted = set(self.target_components)
        blocks = segment_slices({name: shape for name, shape in self.critic_segments.items() if name in wanted})
        order = [name for name in self.segments if name in wanted]
        return estimate if order == list(blocks) else torch.cat([estimate[..., blocks[name]] for name in order], dim=-1)

    def __getstate__(self) -> dict[str, Any]:
        """Copies leave out the last output: its graph cannot be copied."""
        return {**self.__dict__, "output": None}
