"""Acting without exploration noise."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from st_rl.modules.actor_critic import ActorCritic as _Policy
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
        # Any parent with an action_mean will do; ours may bound it.
        bounded = getattr(super(), "bounded", None)
        return self.action_mean if bounded is None else bounded(self.action_mean)
