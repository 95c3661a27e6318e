"""The training loop for motion priors."""

from typing import Any

from st_rl.algorithms.appo import delivered_features
from st_rl.env.utils import observe
from st_rl.runners.on_policy_runner import OnPolicyRunner
from st_rl.utils.log import logger


class AmpPolicyRunner(OnPolicyRunner):
    """The on-policy runner, which says at once when there is nothing to imitate; APPO also trains without it."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._check_motion_features()

    def _check_motion_features(self) -> None:
        """Warn of an algorithm without a discriminator, and of an environment without features for it."""
        width = getattr(self.alg, "amp_obs_dim", None)
        if width is None or getattr(self.alg.actor_critic, "discriminator", None) is None:
            logger.warning(
                f"AmpPolicyRunner trains a discriminator, but {type(self.alg).__name__} has none; use APPO or ATPPO "
                "with a policy such as AmpActorCritic"
            )
            return
        extras = observe(self.env).extras
        ref_obs, _ = delivered_features(extras)
        if ref_obs is None:
            logger.warning(
                "the environment delivers no observations['ref_obs'], the robot's motion features: enough to play a "
                "policy, not to train one"
            )
        elif ref_obs[0].numel() != width:
            logger.warning(
                f"the environment delivers observations['ref_obs'] of {ref_obs[0].numel()} numbers for a robot, shape "
                f"{tuple(ref_obs.shape)}; the discriminator takes {width} (amp_discriminator.input_dim)"
            )
