"""Data augmentation and mirror loss for left-right symmetric tasks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.algorithms.symmetry_function import SymmetryFunction
from st_rl.env.protocols import MirroredEnv
from st_rl.modules.policy import Policy
from st_rl.modules.symmetry import Symmetry, joint_mirror, observation_mirror
from st_rl.storage.fields import MiniBatch
from st_rl.utils.config import drop_none, report_unused_keys

SYMMETRY_KEYS = frozenset(
    "use_data_augmentation mirror_loss_coef joint_names joint_signs unpaired_joints obs critic_obs".split()
)
NEEDED_KEYS = ("joint_names", "obs")


def completed_symmetry(cfg: Mapping[str, Any], env: object) -> dict[str, Any]:
    """The settings, completed with the environment's `mirror` settings where required keys are missing."""
    if cfg.get("data_augmentation_func") is not None or all(cfg.get(key) for key in NEEDED_KEYS):
        return dict(cfg)
    return {**(env.mirror if isinstance(env, MirroredEnv) else {}), **drop_none(cfg)}


def make_symmetry(
    cfg: Mapping[str, Any], policy: Policy, device: torch.device | str
) -> "SymmetryAugmentation | SymmetryFunction":
    """Return the symmetry that the settings describe: by joint names, or by a function of the user."""
    if policy.is_recurrent:
        raise ValueError(
            "symmetry_cfg needs a feed-forward policy: the hidden states of a mirrored past are unknown; "
            f"{type(policy).__name__} is recurrent"
        )
    is_function = cfg.get("data_augmentation_func") is not None
    return SymmetryFunction(cfg) if is_function else SymmetryAugmentation(cfg, policy, device)


class SymmetryAugmentation:
    """Adds mirrored samples to mini-batches, and a loss that makes the policy symmetric.

    Configuration: `joint_names` in the order of the actions, `obs` (and `critic_obs`, when it differs) mapping every
    observation segment to a kind of `st_rl.modules.symmetry.observation_mirror`; optionally `joint_signs` and
    `unpaired_joints` for `joint_mirror`, `use_data_augmentation` (default True) and `mirror_loss_coef` (default 0).
    """

    def __init__(self, cfg: Mapping[str, Any], policy: Policy, device: torch.device | str):
        report_unused_keys(
            {key: value for key, value in cfg.items() if key not in SYMMETRY_KEYS}, "symmetry_cfg", SYMMETRY_KEYS, True
        )
        cfg = drop_none(cfg)
        if policy.obs_segments is None:
            raise ValueError("symmetry_cfg needs obs_segments, from the environment or in the policy configuration")
        for key in NEEDED_KEYS:
            if not cfg.get(key):
                raise ValueError(f"symmetry_cfg needs '{key}'; it has {sorted(cfg)}")
        joints = joint_mirror(cfg["joint_names"], cfg.get("joint_signs"), unpaired=cfg.get("unpaired_joints") or ())
        critic_kinds = cfg.get("critic_obs") or cfg["obs"]
        self.symmetry = Symmetry(
            observation_mirror(policy.obs_segments, cfg["obs"], joints),
            joints,
            observation_mirror(policy.critic_obs_segments or policy.obs_segments, critic_kinds, joints),
        ).to(device)
        self.use_data_augmentation = bool(cfg.get("use_data_augmentation", True))
        self.mirror_loss_coef = float(cfg.get("mirror_loss_coef", 0.0))

    def augmented(self, minibatch: MiniBatch, obs_normalizer: nn.Module, critic_obs_normalizer: nn.Module) -> MiniBatch:
        """The mini-batch `(M, ...)` followed by its mirrored samples, `(2M, ...)`."""
        if not self.use_data_augmentation:
            return minibatch
        symmetry = self.symmetry.through(obs_normalizer, critic_obs_normalizer)
        obs, critic_obs, actions = symmetry.augment(minibatch.obs, minibatch.critic_obs, minibatch.actions)
        unchanged = {
            name: Symmetry.duplicate(getattr(minibatch, name))
            for name in ("values", "advantages", "returns", "old_actions_log_prob")
        }
        return minibatch._replace(obs=obs, critic_obs=critic_obs, actions=actions, **unchanged)

    def mirror_loss(self, policy: Policy, obs: Tensor, obs_normalizer: nn.Module) -> Tensor:
        """The distance of the mean action for mirrored observations `(M, O)` from the mirrored mean action, 0-d."""
        return self.symmetry.through(obs_normalizer, nn.Identity()).mirror_loss(policy.act_inference, obs)
