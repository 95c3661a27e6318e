"""Training of the policy's state estimator and adaptor."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import functional

from st_rl.algorithms.ppo import PPO, Losses
from st_rl.algorithms.tppo import TPPO
from st_rl.modules.state_adaptor import PrivilegeEstimatorMixin
from st_rl.modules.state_estimator import EstimatorMixin
from st_rl.storage.fields import MiniBatch
from st_rl.utils.config import drop_none, own_settings_from
from st_rl.utils.tensors.segments import get_subobs_by_components
from st_rl.utils.tensors.trajectories import unpad_trajectories

if TYPE_CHECKING:
    _Algorithm = PPO
else:
    _Algorithm = object


class EstimatorAlgoMixin(_Algorithm):
    """Adds the losses that train the policy's estimator and adaptor on critic observations.

    Both are distances between stored observations, which are normalized if normalization is on.
    """

    graph_safe = True
    trains_estimates = True

    @own_settings_from("ppo")
    def __init__(
        self,
        *args: Any,
        estimator_loss_func: str = "mse_loss",
        estimator_loss_kwargs: Mapping[str, Any] | None = {},
        estimator_loss_coef: float = 1.0,
        adaptor_loss_coef: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        policy = self.actor_critic
        if not isinstance(policy, EstimatorMixin | PrivilegeEstimatorMixin):
            raise TypeError(
                f"{type(self).__name__} trains an estimator, {type(policy).__name__} has none; use a policy with one "
                "(StateAc, StateAcRecurrent, EncoderStateAc, PrivilegeStateAc, ...) or PPO"
            )
        if not callable(getattr(functional, estimator_loss_func, None)):
            raise ValueError(
                f"estimator_loss_func '{estimator_loss_func}' is no function of torch.nn.functional; "
                "use mse_loss, l1_loss, smooth_l1_loss or huber_loss"
            )
        self.estimator_loss_func = estimator_loss_func
        self.estimator_loss_kwargs = drop_none(estimator_loss_kwargs or {})
        self.estimator_loss_coef = estimator_loss_coef
        self.adaptor_loss_coef = adaptor_loss_coef
        has_estimator = isinstance(policy, EstimatorMixin)
        self.estimator_obs_components = policy.estimator_obs_components if has_estimator else None
        self.estimator_target_obs_components = policy.estimator_target_components if has_estimator else None

    def compute_losses(self, minibatch: MiniBatch) -> Losses:
        """The losses of the parent, with `estimator_loss` and `adaptor_loss` if the policy has these networks."""
        losses, inter_vars, stats = super().compute_losses(minibatch)
        policy = self.actor_critic
        if isinstance(policy, EstimatorMixin):
            losses["estimator_loss"] = self._estimation_loss(
                policy.get_estimated_state(), policy.estimator_target_components, minibatch, policy.use_actor_rnn
            )
        if isinstance(policy, PrivilegeEstimatorMixin):
            losses["adaptor_loss"] = self._estimation_loss(
                policy.get_adapted_state(), policy.adaptor_target_components, minibatch
            )
        return losses, inter_vars, stats

    def _estimation_loss(
        self, estimate: Tensor | None, components: list[str], minibatch: MiniBatch, is_unpadded: bool = False
    ) -> Tensor:
        """The distance of `estimate` from its targets, summed over components and averaged over samples; 0-d."""
        if estimate is None:
            raise RuntimeError("the policy has no estimate: call act() before the losses")
        segments = self.actor_critic.critic_obs_segments or {}
        target = get_subobs_by_components(minibatch.critic_obs, components, segments)
        if minibatch.masks is not None:
            target = unpad_trajectories(target, minibatch.masks)
            estimate = estimate if is_unpadded else unpad_trajectories(estimate, minibatch.masks)
        else:
            # Mirrored samples, which follow the recorded ones, have no targets.
            estimate = estimate[: target.shape[0]]
        distance = getattr(functional, self.estimator_loss_func)
        return distance(estimate, target, **self.estimator_loss_kwargs, reduction="none").sum(dim=-1).mean()


class EstimatorPPO(EstimatorAlgoMixin, PPO):
    """PPO that trains the policy's estimator too."""


class EstimatorTPPO(EstimatorAlgoMixin, TPPO):
    """TPPO that trains the student's estimator too."""
