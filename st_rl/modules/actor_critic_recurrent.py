"""The recurrent actor-critic."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.networks.memory import ActorCriticHiddenState, LstmHiddenState, Memory
from st_rl.modules.policy import HiddenState

__all__ = ["ActorCriticHiddenState", "ActorCriticRecurrent", "LstmHiddenState", "Memory"]


class ActorCriticRecurrent(ActorCritic):
    """An actor-critic with a recurrent network before each of its two heads; the critic's may have other sizes."""

    is_recurrent = True

    def __init__(
        self,
        num_actor_obs: int,
        num_critic_obs: int,
        num_actions: int,
        actor_hidden_dims: Sequence[int] = [256, 256, 256],
        critic_hidden_dims: Sequence[int] = [256, 256, 256],
        activation: str = "elu",
        rnn_type: str = "lstm",
        rnn_hidden_size: int = 256,
        rnn_num_layers: int = 1,
        init_noise_std: float = 1.0,
        critic_rnn_type: str | None = None,
        critic_rnn_hidden_size: int | None = None,
        critic_rnn_num_layers: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(
            rnn_hidden_size,
            critic_rnn_hidden_size or rnn_hidden_size,
            num_actions,
            actor_hidden_dims=actor_hidden_dims,
            critic_hidden_dims=critic_hidden_dims,
            activation=activation,
            init_noise_std=init_noise_std,
            rnn_type=rnn_type,
            **kwargs,
        )
        self.num_actor_obs, self.num_critic_obs = int(num_actor_obs), int(num_critic_obs)
        self.memory_a = Memory(num_actor_obs, rnn_type, rnn_num_layers, rnn_hidden_size)
        self.memory_c = Memory(
            num_critic_obs,
            critic_rnn_type or rnn_type,
            critic_rnn_num_layers or rnn_num_layers,
            critic_rnn_hidden_size or rnn_hidden_size,
        )

    def actor_input(
        self, observations: Tensor, *, masks: Tensor | None = None, hidden_states: HiddenState = None, **kwargs: Any
    ) -> Tensor:
        """Return the output of the actor's memory, `(N, O) -> (N, H)` or `(T, K, O) -> (T, B, H)`."""
        return self.memory_a(super().actor_input(observations, **kwargs), masks, hidden_states)

    def critic_input(
        self, critic_observations: Tensor, *, masks: Tensor | None = None, hidden_states: HiddenState = None
    ) -> Tensor:
        """Return the output of the critic's memory, `(N, Oc) -> (N, H)` or `(T, K, Oc) -> (T, B, H)`."""
        return self.memory_c(super().critic_input(critic_observations), masks, hidden_states)

    def get_hidden_states(self) -> Any:
        """Return `ActorCriticHiddenState(actor, critic)` before the next step; its parts are None before the first."""
        return ActorCriticHiddenState(self.memory_a.hidden_states, self.memory_c.hidden_states)
