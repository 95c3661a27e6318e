"""Acting without exploration noise."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from st_rl.modules.actor_critic import ActorCritic

if TYPE_CHECKING:
    _Policy = ActorCritic
else:
    _Policy = object


class DeterministicPolicyMixin(_Policy):
    """Makes `act` return the mean of the distribution.

    Log-probabilities and entropy still belong to the Gaussian, so an importance ratio is evaluated at its mode: meant
    for distillation, not for the surrogate loss.
    """

    def act(self, *args: Any, **kwargs: Any) -> Tensor:
        """Update the distribution as the parent does and return its mean `(..., A)`."""
        actions = super().act(*args, **kwargs)
        if kwargs.get("inference") or any(args[3:]):  # the fourth argument of `act`
            return actions
        # A parent needs only action_mean; an ActorCritic may also bound it.
        return self.bounded(self.action_mean) if isinstance(self, ActorCritic) else self.action_mean
