"""A trained policy as a function of raw observations."""

from collections.abc import Mapping

from torch import Tensor, nn

from st_rl.modules.policy import ActingPolicy


class InferencePolicy:
    """Normalizes observations and returns mean actions."""

    def __init__(self, actor_critic: ActingPolicy, obs_normalizer: nn.Module):
        self.actor_critic = actor_critic
        self.obs_normalizer = obs_normalizer

    def __call__(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Return actions `(N, A)` for raw observations `(N, O)`; of observation groups, `policy` is read."""
        if isinstance(obs, Mapping):
            obs = obs["policy"]
        return self.actor_critic.act_inference(self.obs_normalizer(obs))

    def reset(self, dones: Tensor | None = None) -> None:
        """Clear the hidden states of finished environments `(N,)`, or of all."""
        self.actor_critic.reset(dones)
