"""Policies that adapt to privileged properties, such as friction or motor strength, which they estimate."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.modules.networks.estimator_head import EstimatorHead
from st_rl.modules.policy import HiddenState
from st_rl.modules.state_estimator import EstimatorMixin
from st_rl.utils.collections import namedarraytuple

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object

AdaptorActorHiddenState = namedarraytuple("AdaptorActorHiddenState", ["adaptor", "actor"])


class PrivilegeEstimatorMixin(_Policy):
    """Estimates privileged components of the critic's observation, before an estimator reads the observation.

    Works as `EstimatorMixin` does, with a memory and a network of its own.
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
        # The adaptor runs before the estimator: components that the estimator replaces still hold the truth.
        excluded: Sequence[str] = ()
        if isinstance(self, EstimatorMixin) and self.replace_state_prob > 0:
            excluded = self.estimator_target_components
        names = adaptor_obs_components, adaptor_target_components
        self.adaptation = EstimatorHead("adaptor", self, *names, adaptor_kwargs, excluded)
        self.adaptor_kwargs = self.adaptation.kwargs
        self.adaptor_obs_components = self.adaptation.obs_components
        self.adaptor_target_components = self.adaptation.target_components
        self.privilege_replace_state_prob = privilege_replace_state_prob
        self.memory_p = None
        self.build_adaptor(**kwargs)

    @property
    def privilege_replace_state_prob(self) -> float:
        """Probability that a sample acts on the adaptor's output; may change during training."""
        return self.adaptation.replace_prob

    @privilege_replace_state_prob.setter
    def privilege_replace_state_prob(self, probability: float) -> None:
        self.adaptation.set_replace_prob(probability, self)

    @property
    def acting_settings(self) -> tuple[tuple[str, Any], ...]:
        """The settings of the parent, and `privilege_replace_state_prob`."""
        return (*super().acting_settings, ("privilege_replace_state_prob", self.privilege_replace_state_prob))

    def build_adaptor(self, **kwargs: Any) -> None:
        """Build the adaptor's network, and its memory in a recurrent policy; `kwargs` are arguments of the policy."""
        self.memory_p, self.state_adaptor = self.adaptation.build(kwargs, self.is_recurrent)

    def actor_input(
        self, observations: Tensor, *, hidden_states: HiddenState = None, inference: bool = False, **kwargs: Any
    ) -> Tensor:
        """Return the parent's input for observations with the adaptor's output in place; stores that output."""
        observations, hidden_states = self.adaptation.estimate(
            self, observations, self.memory_p, self.state_adaptor, hidden_states, inference
        )
        return super().actor_input(observations, hidden_states=hidden_states, inference=inference, **kwargs)

    @property
    def adapted_state_(self) -> Tensor | None:
        """The adaptor's output of the last act; None before the first one."""
        return self.adaptation.output

    def get_adapted_state(self) -> Tensor | None:
        """Return the adaptor's output of the last act: `(N, E)`, or `(T, K, E)` padded."""
        return self.adapted_state_

    def get_estimated_state(self) -> Tensor | None:
        """Return the estimator's output of the last act; the adaptor's if there is no estimator."""
        if not isinstance(self, EstimatorMixin):
            return self.adapted_state_
        return super().get_estimated_state()  # pyright: ignore[reportAttributeAccessIssue]

    def get_hidden_states(self) -> Any:
        """Return the parent's hidden states, with those of the adaptor next to the actor's."""
        states = super().get_hidden_states()
        if self.memory_p is None:
            return states
        return states._replace(actor=AdaptorActorHiddenState(self.memory_p.hidden_states, states.actor))


class PrivilegeStateAc(PrivilegeEstimatorMixin, EstimatorMixin, ActorCritic):
    """A feed-forward policy with an adaptor and an estimator."""


class PrivilegeStateAcRecurrent(PrivilegeEstimatorMixin, EstimatorMixin, ActorCriticRecurrent):
    """A recurrent policy with an adaptor and an estimator."""
