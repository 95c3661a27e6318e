"""What an algorithm does while the robots move: act, store what happens, and compute the returns."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.engine import Engine
from st_rl.env.utils import split_final_observations
from st_rl.modules.memory import preserve_hidden_states
from st_rl.modules.normalizer import normalize_without_update
from st_rl.modules.rnd import RandomNetworkDistillation


class ActingAlgorithm:
    """Lets the policy act and fills the rollout storage."""

    actor_critic: Any
    storage: Any
    transition: Any
    obs_normalizer: nn.Module
    critic_obs_normalizer: nn.Module
    rnd: RandomNetworkDistillation | None
    intrinsic_rewards: Tensor | None
    engine: Engine
    device: torch.device | str
    gamma: float
    lam: float

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Draw actions `(N, A)` for normalised observations and remember what the update needs."""
        return self._record_transition(self._policy_step, obs, critic_obs)

    def _record_transition(
        self, decide: Callable[..., dict[str, Tensor]], obs: Tensor, critic_obs: Tensor, *more: Any
    ) -> Tensor:
        """Keep what `decide` says of normalised observations for the storage; returns the actions `(N, A)`."""
        policy, transition = self.actor_critic, self.transition
        if policy.is_recurrent:
            transition.hidden_states = policy.get_hidden_states()
        if self._draws_once and not self._acts_from_memory:
            decide = self.engine.compiled(decide)
        for name, value in decide(obs, critic_obs, *more).items():
            setattr(transition, name, value)
        transition.observations = obs
        transition.critic_observations = critic_obs
        return transition.actions

    @property
    def _acts_from_memory(self) -> bool:
        """Whether a network that takes part in acting is recurrent, which the compiler leaves alone."""
        return self.actor_critic.is_recurrent

    @property
    def _draws_once(self) -> bool:
        """Whether acting draws random numbers only once, so that the compiler cannot change the order of draws."""
        return True

    def _policy_step(self, obs: Tensor, critic_obs: Tensor) -> dict[str, Tensor]:
        """What the policy does and thinks of normalised observations, by the names of a transition."""
        policy = self.actor_critic
        actions = policy.act(obs).detach()
        return {
            "actions": actions,
            "values": policy.evaluate(critic_obs).detach(),
            "actions_log_prob": policy.get_actions_log_prob(actions).detach(),
            "action_mean": policy.action_mean.detach(),
            "action_sigma": policy.action_std.detach(),
        }

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        infos: Mapping[str, Any],
        next_obs: Tensor | None = None,
        next_critic_obs: Tensor | None = None,
    ) -> None:
        """Store the step that follows `act`: rewards and dones `(N,)`, with bonus and time-out correction."""
        transition = self.transition
        # A copy: a storage of somebody's own may write into it.
        transition.rewards = rewards.clone()
        transition.dones = dones
        if self.rnd is not None:
            rnd_state = (infos.get("observations") or {}).get("rnd_state")
            if rnd_state is None:
                raise KeyError(
                    "infos['observations']['rnd_state'] is missing: the environment must deliver the states whose "
                    "novelty is rewarded in every step"
                )
            transition.rnd_state = rnd_state.to(self.device)
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(transition.rnd_state)
            transition.rewards = transition.rewards + self.intrinsic_rewards
        correction = self._time_out_correction(infos)
        if correction is not None:
            transition.rewards = transition.rewards + correction
        for field, value in (("next_observations", next_obs), ("next_critic_observations", next_critic_obs)):
            if hasattr(transition, field):
                setattr(transition, field, value)
        self.storage.add_transitions(transition)
        transition.clear()
        self.actor_critic.reset(dones)

    def _time_out_correction(self, infos: Mapping[str, Any]) -> Tensor | None:
        """What a robot would still have earned had its episode not run out of time, `(N,)`; zero for the others.

        None where there is nothing to correct.
        """
        if infos.get("time_outs") is None:
            return None
        time_outs = infos["time_outs"].to(self.device)
        if time_outs.device.type == "cpu" and not bool(time_outs.any()):
            return None
        time_outs = time_outs.reshape(-1) > 0
        final, policy = self._final_critic_observation(infos), self.actor_critic
        bootstrap = self._bootstrap if policy.is_recurrent else self.engine.fused(self._bootstrap)
        with preserve_hidden_states(policy):
            return bootstrap(time_outs, self.transition.values, final)

    def _bootstrap(self, time_outs: Tensor, values: Tensor, final: Tensor | None) -> Tensor:
        """Discounted values of the last observations `final (N, Oc)`, or else `values (N, 1)`, where time ran out."""
        if final is not None:
            final_values = self.actor_critic.evaluate(final).detach()
            # A last observation that holds NaN or Inf gives no value; the state before it still does.
            values = torch.where(torch.isfinite(final_values), final_values, values)
        # `where`, not a product: rows of robots that go on may hold anything.
        return torch.where(time_outs, self.gamma * values.squeeze(-1), 0.0)

    def _final_critic_observation(self, infos: Mapping[str, Any]) -> Tensor | None:
        """The last observation `(N, Oc)` of finished episodes, normalised; None where none fits the critic."""
        final = split_final_observations(infos)
        if final is None or final.shape[-1] != self.transition.critic_observations.shape[-1]:
            return None
        groups = infos["final_observations"]
        if (
            self.storage.critic_observations is not None
            and isinstance(groups, Mapping)
            and groups.get("critic") is None
        ):
            # The actor's last observation says nothing to a critic that sees another one, even of the same width.
            return None
        return normalize_without_update(self._critic_stream_normalizer, final.to(self.device))

    @property
    def _critic_stream_normalizer(self) -> nn.Module:
        """What normalised the critic's observations; without its own, it sees the actor's as the actor does."""
        sees_actors = self.storage is not None and self.storage.critic_observations is None
        return self.obs_normalizer if sees_actors else self.critic_obs_normalizer

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Bootstrap with the value of the last state and compute returns and advantages in the storage."""
        with preserve_hidden_states(self.actor_critic):
            last_values = self.actor_critic.evaluate(last_critic_obs).detach()
        self.storage.compute_returns(last_values, self.gamma, self.lam)

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any]) -> None:
        """Learn from recorded transitions; PPO itself cannot."""
        raise NotImplementedError(f"{type(self).__name__} cannot learn from a dataset; TPPO can")
