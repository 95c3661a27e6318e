"""Policies that estimate a part of the state which they cannot observe."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent
from st_rl.modules.mlp import MlpModel
from st_rl.modules.networks.estimator_head import EstimatedComponents, own_memory
from st_rl.modules.networks.memory import Memory
from st_rl.utils.collections import namedarraytuple
from st_rl.utils.config import drop_none
from st_rl.utils.log import logger

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object

EstimatorActorHiddenState = namedarraytuple("EstimatorActorHiddenState", ["estimator", "actor"])


class EstimatorMixin(_Policy):
    """Estimates components of the critic's observation from components of the actor's.

    A share `replace_state_prob` of the samples acts on the estimate instead of the true component; it carries no
    gradient there, so that only its own loss trains it (`st_rl.algorithms.EstimatorPPO`). In inference every sample
    does, if any.
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
        self.estimator_kwargs = drop_none(estimator_kwargs or {})
        self.estimation = EstimatedComponents(
            "estimator",
            self.obs_segments,
            self.critic_obs_segments,
            estimator_obs_components,
            estimator_target_components,
            replace_state_prob,
            self.estimator_kwargs,
        )
        self.estimator_obs_components = self.estimation.obs_components
        self.estimator_target_components = self.estimation.target_components
        self.use_actor_rnn = bool(use_actor_rnn) and self.is_recurrent
        if use_actor_rnn and not self.is_recurrent:
            logger.warning(f"use_actor_rnn has no effect: {type(self).__name__} has no memory")
        elif use_actor_rnn and estimator_obs_components is not None:
            logger.warning("estimator_obs_components has no effect with use_actor_rnn: the actor's memory sees all")
        self._estimator_lot: int | None = None
        self.replace_state_prob = replace_state_prob
        # The estimate of the last act; there is none before the first one.
        self.estimated_state_: Tensor | None = None
        self.memory_s: Memory | None = None
        self.build_estimator(**kwargs)

    @property
    def replace_state_prob(self) -> float:
        """Share of the samples that act on the estimate; may be changed in a training."""
        return self.estimation.replace_prob

    @replace_state_prob.setter
    def replace_state_prob(self, share: float) -> None:
        self.estimation.replace_prob = share
        if share > 0 and self._estimator_lot is None:
            self._estimator_lot = self.reserve_noise_column()

    @property
    def acting_settings(self) -> tuple[tuple[str, Any], ...]:
        """The parent's, and the share that acts on the estimate."""
        return (*super().acting_settings, ("replace_state_prob", self.replace_state_prob))

    def build_estimator(self, **kwargs: Any) -> None:
        """Make the estimator's head, and its memory where the policy has memories; `kwargs` are the policy's."""
        input_size = self.estimation.input_size
        if self.use_actor_rnn:
            actor_memory: Any = self.memory_a
            input_size = actor_memory.rnn.hidden_size
        elif self.is_recurrent:
            self.memory_s = own_memory(input_size, kwargs)
            input_size = self.memory_s.rnn.hidden_size
        self.state_estimator = MlpModel(input_size, output_size=self.estimation.output_size, **self.estimator_kwargs)

    def actor_input(
        self, observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, inference: bool = False
    ) -> Tensor:
        """The parent's input for observations with the estimate in place; keeps the estimate."""
        if self.use_actor_rnn:
            remembered = super().actor_input(
                observations, masks=masks, hidden_states=hidden_states, inference=inference
            )
            self.estimated_state_ = self.state_estimator(remembered)
            return remembered
        self.estimated_state_, hidden_states = self.estimation.estimate(
            observations, self.memory_s, self.state_estimator, hidden_states
        )
        observations = self.estimation.substitute(
            observations, self.estimated_state_, inference, self.noise_column(self._estimator_lot)
        )
        return super().actor_input(observations, masks=masks, hidden_states=hidden_states, inference=inference)

    def get_estimated_state(self) -> Tensor | None:
        """The estimate of the last act: `(N, E)`, or `(T, K, E)` padded; `(T, B, E)` with `use_actor_rnn`."""
        return self.estimated_state_

    def get_hidden_states(self) -> Any:
        """The parent's, with the estimator's memory beside the actor's where it has one of its own."""
        states = super().get_hidden_states()
        if self.memory_s is None:
            return states
        return states._replace(actor=EstimatorActorHiddenState(self.memory_s.hidden_states, states.actor))

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memories of finished robots, or of all."""
        super().reset(dones)
        if self.memory_s is not None:
            self.memory_s.reset(dones)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy gets: all but the last estimate, which may hang on a graph that cannot be copied."""
        return {**super().__getstate__(), "estimated_state_": None}


class StateAc(EstimatorMixin, ActorCritic):
    """A feed-forward policy with an estimator."""


class StateAcRecurrent(EstimatorMixin, ActorCriticRecurrent):
    """A policy with memory and an estimator, which has its own memory or uses the actor's."""
