"""Policies that estimate a part of the state which they cannot observe."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.modules.networks.estimator_head import EstimatorHead
from st_rl.modules.networks.memory import Memory
from st_rl.modules.policy import HiddenState
from st_rl.utils.collections import namedarraytuple
from st_rl.utils.log import logger

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object

EstimatorActorHiddenState = namedarraytuple("EstimatorActorHiddenState", ["estimator", "actor"])


class EstimatorMixin(_Policy):
    """Estimates components of the critic's observation from components of the actor's.

    With probability `replace_state_prob` a sample acts on the estimate instead of the true component; in inference
    every sample does, unless it is 0. Only the estimator's own loss trains it (`st_rl.algorithms.EstimatorPPO`).
    """

    infers_through_act = True

    def __init__(
        self,
        *args: Any,
        estimator_obs_components: Sequence[str] | None = None,
        estimator_target_components: Sequence[str] | None = None,
        estimator_kwargs: Mapping[str, Any] | None = {},
        use_actor_rnn: bool = False,
        replace_state_prob: float = 0.0,
        **kwargs: Any,
    ):
        if replace_state_prob > 0 and use_actor_rnn:
            raise AssertionError(
                f"replace_state_prob={replace_state_prob} needs an estimate before the actor's memory, "
                "use_actor_rnn=True makes it after: use one of them"
            )
        super().__init__(*args, **kwargs)
        names = estimator_obs_components, estimator_target_components
        self.estimation = EstimatorHead("estimator", self, *names, estimator_kwargs)
        self.estimator_kwargs = self.estimation.kwargs
        self.estimator_obs_components = self.estimation.obs_components
        self.estimator_target_components = self.estimation.target_components
        self.use_actor_rnn = bool(use_actor_rnn) and self.is_recurrent
        if use_actor_rnn and not self.is_recurrent:
            logger.warning(f"use_actor_rnn has no effect: {type(self).__name__} has no memory")
        elif use_actor_rnn and estimator_obs_components is not None:
            logger.warning("estimator_obs_components has no effect with use_actor_rnn: the actor's memory sees all")
        self.replace_state_prob = replace_state_prob
        self.memory_s: Memory | None = None
        self.build_estimator(**kwargs)

    @property
    def replace_state_prob(self) -> float:
        """Probability that a sample acts on the estimate; may change during training."""
        return self.estimation.replace_prob

    @replace_state_prob.setter
    def replace_state_prob(self, probability: float) -> None:
        self.estimation.set_replace_prob(probability, self)

    @property
    def acting_settings(self) -> tuple[tuple[str, Any], ...]:
        """The settings of the parent, and `replace_state_prob`."""
        return (*super().acting_settings, ("replace_state_prob", self.replace_state_prob))

    def build_estimator(self, **kwargs: Any) -> None:
        """Build the estimator's network, and its memory in a recurrent policy; `kwargs` are arguments of the policy."""
        if self.use_actor_rnn:
            assert isinstance(self, ActorCriticRecurrent)
            self.state_estimator = self.estimation.build_network(self.memory_a.rnn.hidden_size)
        else:
            self.memory_s, self.state_estimator = self.estimation.build(kwargs, self.is_recurrent)

    def actor_input(
        self, observations: Tensor, *, hidden_states: HiddenState = None, inference: bool = False, **kwargs: Any
    ) -> Tensor:
        """Return the parent's input for observations with the estimate in place; stores the estimate."""
        if not self.use_actor_rnn:
            observations, hidden_states = self.estimation.estimate(
                self, observations, self.memory_s, self.state_estimator, hidden_states, inference
            )
        features = super().actor_input(observations, hidden_states=hidden_states, inference=inference, **kwargs)
        if self.use_actor_rnn:
            self.estimation.output = self.state_estimator(features)
        return features

    @property
    def estimated_state_(self) -> Tensor | None:
        """The estimate of the last act; None before the first one."""
        return self.estimation.output

    def get_estimated_state(self) -> Tensor | None:
        """Return the estimate of the last act: `(N, E)`, or `(T, K, E)` padded; `(T, B, E)` with `use_actor_rnn`."""
        return self.estimated_state_

    def get_hidden_states(self) -> Any:
        """Return the parent's hidden states, with those of the estimator's own memory next to the actor's."""
        states = super().get_hidden_states()
        if self.memory_s is None:
            return states
        return states._replace(actor=EstimatorActorHiddenState(self.memory_s.hidden_states, states.actor))


class StateAc(EstimatorMixin, ActorCritic):
    """A feed-forward policy with an estimator."""


class StateAcRecurrent(EstimatorMixin, ActorCriticRecurrent):
    """A recurrent policy with an estimator, which has its own memory or uses the actor's."""
