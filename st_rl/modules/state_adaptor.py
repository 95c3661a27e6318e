"""Policies that adapt to privileged facts, such as friction or motor strength, which they infer on the way."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.modules.mlp import MlpModel
from st_rl.modules.networks.estimator_head import EstimatedComponents, own_memory
from st_rl.modules.networks.memory import Memory
from st_rl.modules.state_estimator import EstimatorMixin
from st_rl.utils.collections import namedarraytuple
from st_rl.utils.config import drop_none

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object

AdaptorActorHiddenState = namedarraytuple("AdaptorActorHiddenState", ["adaptor", "actor"])


class PrivilegeEstimatorMixin(_Policy):
    """Infers privileged components of the critic's observation, before any estimator sees the observation.

    It works as `EstimatorMixin` does, with a memory and a head of its own.
    """

    infers_through_act = True

    def __init__(
        self,
        *args: Any,
        adaptor_obs_components: Sequence[str] | None = None,
        adaptor_target_components: Sequence[str] | None = None,
        adaptor_kwargs: Mapping[str, Any] | None = {},
        privilege_replace_state_prob: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.adaptor_kwargs = drop_none(adaptor_kwargs or {})
        # It comes before the estimator: what that one puts in the place of a truth is not there yet.
        unseen: Any = ()
        if isinstance(self, EstimatorMixin) and self.replace_state_prob > 0:
            unseen = self.estimator_target_components
        self.adaptation = EstimatedComponents(
            "adaptor",
            self.obs_segments,
            self.critic_obs_segments,
            adaptor_obs_components,
            adaptor_target_components,
            privilege_replace_state_prob,
            self.adaptor_kwargs,
            unseen=unseen,
        )
        self.adaptor_obs_components = self.adaptation.obs_components
        self.adaptor_target_components = self.adaptation.target_components
        self._adaptor_lot: int | None = None
        self.privilege_replace_state_prob = privilege_replace_state_prob
        # The adaptor's output of the last act; there is none before the first one.
        self.adapted_state_: Tensor | None = None
        self.memory_p: Memory | None = None
        self.build_adaptor(**kwargs)

    @property
    def privilege_replace_state_prob(self) -> float:
        """Share of the samples that act on the adaptor's output; may be changed in a training."""
        return self.adaptation.replace_prob

    @privilege_replace_state_prob.setter
    def privilege_replace_state_prob(self, share: float) -> None:
        self.adaptation.replace_prob = share
        if share > 0 and self._adaptor_lot is None:
            self._adaptor_lot = self.reserve_noise_column()

    @property
    def acting_settings(self) -> tuple[tuple[str, Any], ...]:
        """The parent's, and the share that acts on the adaptor's output."""
        return (*super().acting_settings, ("privilege_replace_state_prob", self.privilege_replace_state_prob))

    def build_adaptor(self, **kwargs: Any) -> None:
        """Make the adaptor's head, and its memory where the policy has memories; `kwargs` are the policy's."""
        input_size = self.adaptation.input_size
        if self.is_recurrent:
            self.memory_p = own_memory(input_size, kwargs)
            input_size = self.memory_p.rnn.hidden_size
        self.state_adaptor = MlpModel(input_size, output_size=self.adaptation.output_size, **self.adaptor_kwargs)

    def actor_input(
        self, observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, inference: bool = False
    ) -> Tensor:
        """The parent's input for observations with the adaptor's output in place; keeps that output."""
        self.adapted_state_, hidden_states = self.adaptation.estimate(
            observations, self.memory_p, self.state_adaptor, hidden_states
        )
        observations = self.adaptation.substitute(
            observations, self.adapted_state_, inference, self.noise_column(self._adaptor_lot)
        )
        return super().actor_input(observations, masks=masks, hidden_states=hidden_states, inference=inference)

    def get_adapted_state(self) -> Tensor | None:
        """The adaptor's output of the last act: `(N, E)`, or `(T, K, E)` padded."""
        return self.adapted_state_

    def get_estimated_state(self) -> Tensor | None:
        """The estimator's output of the last act; the adaptor's where there is no estimator."""
        if not isinstance(self, EstimatorMixin):
            return self.adapted_state_
        return super().get_estimated_state()  # pyright: ignore[reportAttributeAccessIssue]

    def get_hidden_states(self) -> Any:
        """The parent's, with the adaptor's memory beside the actor's."""
        states = super().get_hidden_states()
        if self.memory_p is None:
            return states
        return states._replace(actor=AdaptorActorHiddenState(self.memory_p.hidden_states, states.actor))

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memories of finished robots, or of all."""
        super().reset(dones)
        if self.memory_p is not None:
            self.memory_p.reset(dones)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy gets: all but the last output, which may hang on a graph that cannot be copied."""
        return {**super().__getstate__(), "adapted_state_": None}


class PrivilegeStateAc(PrivilegeEstimatorMixin, EstimatorMixin, ActorCritic):
    """A feed-forward policy with an adaptor and an estimator."""


class PrivilegeStateAcRecurrent(PrivilegeEstimatorMixin, EstimatorMixin, ActorCriticRecurrent):
    """A policy with memory, an adaptor and an estimator."""
