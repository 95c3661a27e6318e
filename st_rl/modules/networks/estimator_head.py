"""What an estimator and an adaptor share: the components a head reads, those it estimates, and their substitution."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.modules.mlp import MlpModel
from st_rl.modules.networks.encoders import as_names, find_components
from st_rl.modules.networks.memory import Memory
from st_rl.modules.utils import check_settings
from st_rl.utils.segments import (
    Segments,
    get_subobs_by_components,
    get_subobs_size,
    segment_slices,
    segment_width,
    substitute_estimated_state,
)


class EstimatedComponents:
    """Reads some components of the actor's observation, and puts estimates of components of the critic's into it.

    Components are always in the order of the segments, never in that of the names. Without names it reads all but its
    targets and what is `unseen`. `kwargs` are the settings of its head.
    """

    def __init__(
        self,
        role: str,
        obs_segments: Segments | None,
        critic_obs_segments: Segments | None,
        obs_components: Sequence[str] | None,
        target_components: Sequence[str] | None,
        replace_prob: float,
        kwargs: Mapping[str, Any],
        unseen: Sequence[str] = (),
    ):
        targets = as_names(target_components)
        if not targets:
            known = "" if critic_obs_segments is None else f"; the critic observes {list(critic_obs_segments)}"
            raise ValueError(f"{role}_target_components must name what the {role} estimates{known}")
        find_components(critic_obs_segments, targets, f"{role}_target_components (of the critic)")
        # What is to be estimated would be an answer, not a question.
        asked = [name for name in obs_segments or () if name not in targets and name not in unseen]
        names = asked if obs_components is None else as_names(obs_components)
        if not names:
            raise ValueError(f"{role}_obs_components must name what the {role} sees; got {obs_components!r}")
        find_components(obs_segments, names, f"{role}_obs_components")
        self.segments: Segments = obs_segments or {}
        self.critic_segments: Segments = critic_obs_segments or {}
        self.obs_components, self.target_components = names, targets
        check_settings(f"{role}_kwargs", kwargs, MlpModel, decided=["input_size", "output_size"])
        self.input_size = get_subobs_size(self.segments, names)
        self.output_size = get_subobs_size(self.critic_segments, targets)
        self._role = role
        self.replace_prob = replace_prob

    @property
    def replace_prob(self) -> float:
        """Share of the samples in which the estimate takes the place of the truth."""
        return self._replace_prob

    @replace_prob.setter
    def replace_prob(self, share: float) -> None:
        if share > 1:
            raise ValueError(f"the {self._role} replaces the truth in a share of the samples, from 0 to 1; got {share}")
        if share > 0:
            self._check_substitution(self._role)
        self._replace_prob = float(share)
        # What a share `share` of normally distributed numbers is below.
        self._threshold = NormalDist().inv_cdf(self._replace_prob) if 0.0 < share < 1.0 else math.inf

    def _check_substitution(self, role: str) -> None:
        """ValueError unless the actor observes every target in the critic's shape."""
        find_components(self.segments, self.target_components, f"{role}_target_components, to be replaced,")
        for name in self.target_components:
            seen, true = segment_width(self.segments[name]), segment_width(self.critic_segments[name])
            if seen != true:
                raise ValueError(
                    f"'{name}' is {seen} wide for the actor and {true} for the critic: it cannot be replaced"
                )

    def estimate(
        self, observations: Tensor, memory: Memory | None, head: nn.Module, hidden_states: Any
    ) -> tuple[Tensor, Any]:
        """The estimate `(..., E)` for observations `(..., O)`, and what of the hidden states is left for the parent.

        The estimate of padded trajectories stays padded, as the observations are.
        """
        seen = get_subobs_by_components(observations, self.obs_components, self.segments)
        if memory is None:
            return head(seen), hidden_states
        own_state, others = (None, None) if hidden_states is None else tuple(hidden_states)
        return head(memory(seen, None, own_state)), others

    def substitute(self, observations: Tensor, estimate: Tensor, inference: bool, lots: Tensor | None = None) -> Tensor:
        """Observations `(..., O)` with the estimate `(..., E)` in place of the truth in a random share of the rows.

        `lots (...)`, normally distributed, choose the rows; without them they are drawn here.

        For inference in all rows: a robot that needs an estimator has no truth to mix in. Without a share, in none.
        """
        if self.replace_prob <= 0:
            return observations
        # The loss of the policy must not train the estimate.
        estimate = self._in_actor_order(estimate.detach())
        replaced = substitute_estimated_state(observations.clone(), self.target_components, estimate, self.segments)
        if inference:
            return replaced
        lots = torch.randn(observations.shape[:-1], device=observations.device) if lots is None else lots
        chosen = lots < self._threshold
        return torch.where(chosen.unsqueeze(-1), replaced, observations)

    def _in_actor_order(self, estimate: Tensor) -> Tensor:
        """The blocks of `(..., E)`, which come in the order of the critic's segments, in that of the actor's."""
        wanted = set(self.target_components)
        widths = {name: shape for name, shape in self.critic_segments.items() if name in wanted}
        blocks = segment_slices(widths)
        order = [name for name in self.segments if name in wanted]
        return estimate if order == list(blocks) else torch.cat([estimate[..., blocks[name]] for name in order], dim=-1)


def own_memory(input_size: int, policy_kwargs: dict[str, Any]) -> Memory:
    """A memory like those of the policy with these arguments."""
    return Memory(
        input_size,
        type=policy_kwargs.get("rnn_type", "lstm"),
        num_layers=policy_kwargs.get("rnn_num_layers", 1),
        hidden_size=policy_kwargs.get("rnn_hidden_size", 256),
    )
