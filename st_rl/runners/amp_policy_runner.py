"""The training loop for adversarial motion priors."""

from typing import Any

from st_rl.algorithms.appo import APPOAlgoMixin, read_motion_features
from st_rl.env.utils import observe
from st_rl.runners.on_policy_runner import OnPolicyRunner
from st_rl.utils.log import logger


class AmpPolicyRunner(OnPolicyRunner):
    """`OnPolicyRunner` that warns at construction if discriminator or motion features are missing."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._check_motion_features()

    def _check_motion_features(self) -> None:
        """Warn if the algorithm has no discriminator, or the environment no features of its width."""
        if not isinstance(self.alg, APPOAlgoMixin):
            logger.warning(
                f"AmpPolicyRunner trains a discriminator, but {type(self.alg).__name__} has none; use APPO or ATPPO "
                "with a policy such as AmpActorCritic"
            )
            return
        extras = observe(self.env).extras
        ref_obs, _ = read_motion_features(extras)
        if ref_obs is None:
            logger.warning(
                "the environment delivers no observations['ref_obs'], motion features: enough to play a "
                "policy, not to train one"
            )
        elif ref_obs[0].numel() != self.alg.amp_obs_dim:
            logger.warning(
                f"the environment delivers observations['ref_obs'] of shape {tuple(ref_obs.shape)}, "
                f"{ref_obs[0].numel()} values per environment; the discriminator expects {self.alg.amp_obs_dim} "
                "(amp_discriminator.input_dim)"
            )
