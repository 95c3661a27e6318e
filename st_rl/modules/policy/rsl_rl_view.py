"""A policy as rsl_rl 2.3 to 4 arranges it, for scripts that export it themselves, such as Isaac Lab's `play.py`."""

from typing import Any

from torch import nn

from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.actor_critic_recurrent import ActorCriticRecurrent


class RslRlPolicy:
    """A policy and its normalizers; every other attribute is that of the policy.

    A script that reads `actor`, `memory_a` and `actor_obs_normalizer` rebuilds the policy from them. ValueError where
    that would be another policy: actions are bounded, or the observation is transformed before it enters the actor.
    """

    def __init__(self, actor_critic: ActorCritic, actor_obs_normalizer: nn.Module, critic_obs_normalizer: nn.Module):
        self.actor_critic = actor_critic
        self.actor_obs_normalizer = actor_obs_normalizer
        self.critic_obs_normalizer = critic_obs_normalizer

    @property
    def actor(self) -> nn.Sequential:
        """The layers from the normalized observation, or the output of the memory, to the mean actions."""
        policy = self.actor_critic
        if type(policy) not in (ActorCritic, ActorCriticRecurrent) or policy.action_bound is not None:
            raise ValueError(
                f"{type(policy).__name__} is more than an actor and a memory; export it with `st-rl export RUN` or "
                "runner.export(path)"
            )
        return policy.actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.actor_critic, name)
