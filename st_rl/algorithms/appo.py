"""Adversarial PPO: a discriminator rewards motions that look like a reference motion (adversarial motion priors)."""

import functools
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from st_rl.algorithms.discriminator_trainer import (
    DiscriminatorOptions,
    DiscriminatorTrainer,
    masked_mean,
    scheduled_value,
)
from st_rl.algorithms.optimizer import GuardedOptimizer
from st_rl.algorithms.ppo import PPO, Losses, Settings
from st_rl.algorithms.schedules import GET_PROB_FUNC, Schedule
from st_rl.algorithms.tppo import TPPO
from st_rl.modules.amp_discriminator import AMPDiscriminator, DiscriminatorPolicy
from st_rl.modules.normalizer import NORMALIZE_UNTIL, EmpiricalNormalization
from st_rl.storage.amp_rollout import AmpHistoryStorage
from st_rl.storage.fields import MiniBatch, resolve_shape
from st_rl.storage.rollout_storage import AmpRolloutStorage
from st_rl.utils.config import own_settings_from
from st_rl.utils.distributed import average, has_exchanges, world_size
from st_rl.utils.log import logger

__all__ = ["APPO", "ATPPO", "GET_PROB_FUNC", "APPOAlgoMixin"]

if TYPE_CHECKING:
    _Algorithm = PPO
else:
    _Algorithm = object

DISCRIMINATOR_LOSSES = ("discriminator_expert_loss", "discriminator_policy_loss", "discriminator_grad_len_loss")


def read_motion_features(infos: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """The motion features of policy and reference from an environment's infos; None for a missing one."""
    groups = infos.get("observations")
    return None if groups is None else groups.get("ref_obs"), infos.get("ref_motion")


class APPOAlgoMixin(_Algorithm):
    """Adds a style reward to the task reward, and trains the discriminator that computes it.

    The environment delivers the motion features of the policy, `infos["observations"]["ref_obs"]`, and of a reference,
    `infos["ref_motion"]`, `(N, Da)` or `(N, frames, D)`. They share one normalizer, or have one each.
    `discriminator_cfg` holds the options of `DiscriminatorOptions`.
    """

    graph_safe = True
    learns_from_dataset = True
    storage_class = AmpRolloutStorage

    @own_settings_from("ppo")
    def __init__(
        self,
        *args: Any,
        discriminator_loss_coef: float = 1.0,
        mimic_loss_coef: float = 0.0,
        amp_obs_dim: int | None = None,
        share_amp_normalizer: bool = True,
        mimic_reward_coef: float = 0.0,
        dagger_loss_coef: float = 0.0,
        discriminator_cfg: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        options = DiscriminatorOptions.read(discriminator_cfg, strict=bool(kwargs.get("strict")))
        # Before super().__init__, which creates the policy's optimizer.
        self._shares_optimizer = not options.needs_optimizer
        super().__init__(*args, **kwargs)
        self.discriminator_loss_coef = discriminator_loss_coef
        self.mimic_loss_coef = mimic_loss_coef
        self.share_amp_normalizer = share_amp_normalizer
        self.mimic_reward_coef = mimic_reward_coef
        self.dagger_loss_coef = dagger_loss_coef
        self.discriminator_expert_loss_coef: float | Tensor = discriminator_loss_coef
        self.discriminator_policy_loss_coef: float | Tensor = discriminator_loss_coef
        self.discriminator_grad_len_loss_coef: float | Tensor = discriminator_loss_coef
        self.discriminator_logit_loss_coef = options.logit_reg_coef
        self.amp_obs_dim = self._check_width(amp_obs_dim)
        self.ref_obs_normalizer = self._new_normalizer()
        self.ref_motion_normalizer = self.ref_obs_normalizer if share_amp_normalizer else self._new_normalizer()
        self._masks_resets, self._has_replay = options.mask_resets, options.replay_size > 0
        # Valid transitions of a mini-batch in the mean over all ranks, so that the mean over ranks of what each divides
        # by it is the mean over all transitions.
        self._num_valid = torch.ones((), device=self.device)
        self._discriminator_trainer = DiscriminatorTrainer(
            options, self._discriminator, self.optimizer_class_name, float(self.learning_rate), self.device
        )
        self._init_schedules(options)

    @property
    def _discriminator(self) -> AMPDiscriminator:
        policy = self.actor_critic
        if not isinstance(policy, DiscriminatorPolicy):
            raise TypeError(
                f"{type(self).__name__} needs a policy with a discriminator, such as AmpActorCritic or "
                f"AmpActorCriticRecurrent (any policy with AmpMixin); {type(policy).__name__} has none"
            )
        return policy.discriminator

    def _check_width(self, amp_obs_dim: int | Mapping[str, Any] | None) -> int:
        """The width of the discriminator's input; ValueError if the configuration gives another."""
        width = self._discriminator.input_dim
        # A client configuration that leaves it unset sends an empty dictionary.
        if amp_obs_dim is not None and amp_obs_dim != {} and amp_obs_dim != width:
            raise ValueError(
                f"amp_obs_dim is {amp_obs_dim} but the discriminator takes {width} features; leave amp_obs_dim out, or "
                "set amp_discriminator.input_dim to the width of all frames of a transition together"
            )
        return width

    def _new_normalizer(self) -> EmpiricalNormalization:
        return EmpiricalNormalization(shape=[self.amp_obs_dim], until=NORMALIZE_UNTIL).to(self.device)

    def _init_schedules(self, options: DiscriminatorOptions) -> None:
        """Replace the weights that have a schedule by the tensor of that schedule."""
        for name, points in options.schedules.items():
            schedule = Schedule(functools.partial(scheduled_value, points), 1, self.device)
            self._schedules.append(schedule)
            if name == "discriminator_loss_coef":
                for loss in DISCRIMINATOR_LOSSES:
                    setattr(self, f"{loss}_coef", schedule.value)
            else:
                setattr(self._discriminator, name, schedule.value)

    # ---- components ---------------------------------------------------------------------------------------------

    def init_storage(self, *args: Any, **kwargs: Any) -> None:
        """Allocate a rollout storage with the motion features of every step."""
        given = resolve_shape(kwargs.pop("amp_obs_shape", None) or None)
        if given is not None and math.prod(given) != self.amp_obs_dim:
            raise ValueError(
                f"storage.amp_obs_shape is {given}, the discriminator takes {self.amp_obs_dim} features; leave it out"
            )
        if self._has_replay or self._masks_resets:
            self.storage_class = AmpHistoryStorage
            kwargs["past_ref_obs_shape"] = (self.amp_obs_dim,) if self._has_replay else None
            kwargs["ref_mask_shape"] = 1 if self._masks_resets else None
        super().init_storage(*args, amp_obs_shape=(self.amp_obs_dim,), **kwargs)

    @property
    def required_info_keys(self) -> tuple[str, ...]:
        """Keys of the environment's infos, or of its observation groups, that the algorithm learns from."""
        return (*super().required_info_keys, "ref_obs", "ref_motion")

    def _policy_parameters(self) -> Iterable[nn.Parameter]:
        """The parameters that the policy's optimizer trains: not the discriminator's if it has its own optimizer."""
        if self._shares_optimizer:
            return super()._policy_parameters()
        own = {id(parameter) for parameter in self._discriminator.parameters()}
        return [parameter for parameter in super()._policy_parameters() if id(parameter) not in own]

    def _networks(self) -> list[nn.Module]:
        return [*super()._networks(), self.ref_obs_normalizer, self.ref_motion_normalizer]

    def _normalizers(self) -> dict[str, nn.Module]:
        normalizers = super()._normalizers() | {"ref_obs_norm_state_dict": self.ref_obs_normalizer}
        if not self.share_amp_normalizer:
            normalizers["ref_motion_norm_state_dict"] = self.ref_motion_normalizer
        return normalizers

    def state_dict(self) -> dict[str, Any]:
        """The state of policy, discriminator, optimizers and normalizers for a checkpoint."""
        return super().state_dict() | self._discriminator_trainer.state_dict()

    def rank_state_dict(self) -> dict[str, Any]:
        """The parts of `state_dict` that differ between ranks, the replay buffer among them."""
        key, state = "discriminator_replay_state_dict", self._discriminator_trainer.state_dict()
        return super().rank_state_dict() | ({key: state[key]} if key in state else {})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`; all parts but the model may be missing."""
        for key in ("ref_obs_norm_state_dict", "ref_motion_norm_state_dict"):
            if key in self._normalizers() and not state_dict.get(key):
                logger.warning(f"the checkpoint has no '{key}': the statistics of the motion features stay unchanged")
        if self.share_amp_normalizer and state_dict.get("ref_motion_norm_state_dict"):
            logger.warning(
                "the checkpoint has a separate normalizer for the reference, which is ignored; set "
                "share_amp_normalizer=False to continue with it"
            )
        self._discriminator_trainer.check(state_dict)
        super().load_state_dict(state_dict)
        self._discriminator_trainer.load_state_dict(state_dict)

    def _settings(self) -> Settings:
        """Names and values of all Python numbers and strings that the losses may read, the discriminator's too."""
        names = ("style_reward_coef", "task_reward_lerp", "discriminator_grad_pen", "additive_reward")
        values = ((name, getattr(self._discriminator, name)) for name in names)
        return (*super()._settings(), *((name, value) for name, value in values if not isinstance(value, Tensor)))

    # ---- rollout -------------------------------------------------------------------------------------------------

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Sample actions `(N, A)`; without a teacher they are also the labels."""
        actions = super().act(obs, critic_obs)
        if self.transition.action_labels is None:
            self.transition.action_labels = actions.clone()
        return actions

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any]) -> None:
        """Store recorded steps of all environments, with the motion features that `infos` must contain."""
        if any(features is None for features in read_motion_features(infos)):
            raise ValueError(
                f"{type(self).__name__} learns from recorded steps only if infos carries their motion features: "
                "infos['observations']['ref_obs'] and infos['ref_motion']. Savers record them if the environment "
                "delivers both; without them use TPPO"
            )
        self._store_recorded_step(transition, infos)

    def _training_reward(self, rewards: Tensor, dones: Tensor, infos: Mapping[str, Any]) -> Tensor:
        """Combine the task rewards `(N,)` with the style reward; store the motion features in the transition."""
        rewards = rewards.to(self.device).reshape(-1)
        ref_obs, ref_motion = self._motion_features(infos, len(rewards))
        finished = dones.to(self.device).reshape(-1) > 0
        result = self.engine.compile_on_gpu(self._style_reward)(ref_obs, ref_motion, rewards, finished)
        transition = self.transition
        transition.ref_obs, transition.ref_motion = result["ref_obs"], result["ref_motion"]
        if self._masks_resets:
            transition.ref_mask = ~finished
        if infos.get("log") is None:
            infos["log"] = {}  # pyright: ignore[reportIndexIssue]
        # The runner logs `episode` instead of `log` if there is one.
        for logged in (infos["log"], infos.get("episode") or {}):
            logged["Episode_Reward/style_reward"] = result["mean_style"]
            logged["Episode_Reward/task_reward"] = result["mean_task"]
        return super()._training_reward(result["reward"], dones, infos)

    def _motion_features(self, infos: Mapping[str, Any], num_envs: int) -> tuple[Tensor, Tensor]:
        """The motion features `(N, Da)` of policy and reference from the environment."""
        ref_obs, ref_motion = read_motion_features(infos)
        if ref_obs is None:
            raise AssertionError(
                "infos['observations']['ref_obs'] is missing: the environment must deliver its motion features "
                "(N, frames, D) in every step"
            )
        if ref_motion is None:
            raise KeyError(
                "infos['ref_motion'] is missing: the environment must deliver the reference's motion features in every "
                "step (are any style fields configured?)"
            )
        features = []
        for name, value in (("infos['observations']['ref_obs']", ref_obs), ("infos['ref_motion']", ref_motion)):
            flat = value.to(self.device, torch.float32).reshape(value.shape[0], -1)
            if flat.shape != (num_envs, self.amp_obs_dim):
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}: {flat.shape[1]} features for each of {flat.shape[0]} "
                    f"environments; there are {num_envs} environments, and the discriminator takes {self.amp_obs_dim} "
                    "features (amp_discriminator.input_dim)"
                )
            features.append(flat)
        return features[0], features[1]

    def _style_reward(
        self, ref_obs: Tensor, ref_motion: Tensor, rewards: Tensor, finished: Tensor
    ) -> dict[str, Tensor]:
        """Normalized motion features `(N, Da)`, the combined reward `(N,)`, and the means of style and task reward."""
        if self.share_amp_normalizer:
            self.ref_obs_normalizer.update(torch.cat([ref_obs, ref_motion]))
            ref_obs = self.ref_obs_normalizer.normalize(ref_obs)
            ref_motion = self.ref_obs_normalizer.normalize(ref_motion)
        else:
            ref_obs, ref_motion = self.ref_obs_normalizer(ref_obs), self.ref_motion_normalizer(ref_motion)
        style, task, reward = self._discriminator.predict_style_reward(ref_obs, rewards)
        if self._masks_resets:
            style = torch.where(finished, 0.0, style)
            reward = self._discriminator.combine_rewards(style, task)
        if self.mimic_reward_coef != 0:
            distance = torch.linalg.vector_norm(ref_obs - ref_motion, dim=-1)
            reward = reward - self.mimic_reward_coef * distance
        means = {"mean_style": style.mean(), "mean_task": task.mean()}
        return {"ref_obs": ref_obs, "ref_motion": ref_motion, "reward": reward, **means}

    # ---- update --------------------------------------------------------------------------------------------------

    def update(self, current_learning_iteration: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the stored rollout; return the mean losses and statistics, name -> 0-d tensor."""
        if self._has_replay:
            self._update_replay()
        losses, stats = super().update(current_learning_iteration)
        learning = self._discriminator_trainer
        if "amp_policy_accuracy" in stats and learning.is_saturated(
            stats["amp_expert_accuracy"], stats["amp_policy_accuracy"]
        ):
            learning.warn_saturated(*(rows.reshape(-1, self.amp_obs_dim) for rows in self._raw_features()))
        return losses, stats

    def _raw_features(self) -> tuple[Tensor, Tensor]:
        """The stored motion features of policy and reference, `(T, N, Da)`, before normalization.

        Approximate: the statistics at the end of the rollout are used for all of its steps.
        """
        storage = cast(AmpRolloutStorage, self.storage)
        rows = slice(0, storage.num_valid_steps)
        ref_obs = self.ref_obs_normalizer.inverse(storage.ref_obs[rows])
        return ref_obs, self.ref_motion_normalizer.inverse(storage.ref_motion[rows])

    @torch.no_grad()
    def _update_replay(self) -> None:
        """Insert part of this rollout into the replay buffer, and write past transitions into the storage."""
        storage, learning = cast(AmpHistoryStorage, self.storage), self._discriminator_trainer
        rows = slice(0, storage.num_valid_steps)
        # Not normalized, because the statistics change until they are sampled.
        raw = self._raw_features()[0].reshape(-1, self.amp_obs_dim)
        learning.insert(raw, storage.ref_mask[rows].reshape(-1) if self._masks_resets else None)
        past = storage.past_ref_obs[rows]
        past.copy_(self.ref_obs_normalizer.normalize(learning.sample(len(raw))).view_as(past))

    def _optimizers(self) -> list[GuardedOptimizer]:
        """All optimizers that step on a mini-batch, the discriminator's own among them."""
        own = self._discriminator_trainer.optimizer
        return [*super()._optimizers(), *([own] if own is not None else [])]

    def _apply_gradients(self) -> dict[str, Tensor]:
        """Step all optimizers along the current gradients; returns the norms to log, 0-d."""
        norms, trainer = super()._apply_gradients(), self._discriminator_trainer
        if trainer.optimizer is not None and self.discriminator_loss_coef != 0:
            norms["discriminator_gradient_norm"] = trainer.apply_gradients(trainer.optimizer, self.max_grad_norm)
        return norms

    def minibatch_step(self, minibatch: MiniBatch) -> dict[str, Tensor]:
        """One gradient step on one mini-batch; returns its losses, statistics and gradient norms as 0-d tensors."""
        if self._masks_resets and has_exchanges():
            num_valid = average(minibatch.ref_mask.sum(dtype=torch.float32))
            self._num_valid.copy_(num_valid.clamp(min=1.0 / world_size()))
        return super().minibatch_step(minibatch)

    def compute_losses(self, minibatch: MiniBatch) -> Losses:
        """The named losses of a mini-batch (0-d), intermediate values, and statistics."""
        losses, inter_vars, stats = super().compute_losses(minibatch)
        if self.dagger_loss_coef != 0:
            labels = minibatch.action_labels
            mean = self._bounded_mean(labels.shape[0])
            losses["dagger_loss"] = torch.linalg.vector_norm(mean - labels, dim=-1).mean()
        if self.mimic_loss_coef != 0:
            with torch.no_grad():
                distance = torch.linalg.vector_norm(minibatch.ref_obs - minibatch.ref_motion, dim=-1)
            losses["mimic_loss"] = distance.mean()
        if self.discriminator_loss_coef != 0:
            with self._full_precision():
                self._add_discriminator_losses(minibatch, losses, stats)
        return losses, inter_vars, stats

    def _full_precision(self) -> AbstractContextManager[Any]:
        """The context of the discriminator's losses: float32, because scores and gradients are small differences."""
        if self.mixed_precision is None:
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, enabled=False)

    def _add_discriminator_losses(
        self, minibatch: MiniBatch, losses: dict[str, Tensor], stats: dict[str, Tensor]
    ) -> None:
        """Add the least-squares losses towards +1 for the reference and -1 for the policy, and the gradient penalty."""
        discriminator = self._discriminator
        mask = minibatch.ref_mask if self._masks_resets else None
        inputs = [minibatch.ref_motion, minibatch.ref_obs, *([minibatch.past_ref_obs] if self._has_replay else [])]
        # One forward pass over all of them.
        if discriminator.has_slopes:
            scores, slopes = discriminator.score_with_slopes(torch.cat(inputs), len(minibatch.ref_motion))
            penalty = discriminator.compute_grad_pen(minibatch.ref_motion, slopes)
        else:
            scores = discriminator(torch.cat(inputs))
            penalty = discriminator.compute_grad_pen(minibatch.ref_motion)
        expert, policy, *past = scores.split([len(transitions) for transitions in inputs])
        count = self._num_valid if has_exchanges() else None
        policy_error = masked_mean((policy + 1.0).square(), mask, count)
        if past:
            policy_error = 0.5 * (policy_error + (past[0] + 1.0).square().mean())
        losses["discriminator_expert_loss"] = 0.5 * (expert - 1.0).square().mean()
        losses["discriminator_policy_loss"] = 0.5 * policy_error
        losses["discriminator_grad_len_loss"] = penalty
        if self.discriminator_logit_loss_coef != 0:
            losses["discriminator_logit_loss"] = discriminator.amp_linear.weight.square().sum()
        with torch.no_grad():
            stats["amp_policy_pred"] = masked_mean(policy, mask, count)
            stats["amp_expert_pred"] = expert.mean()
            stats["amp_policy_accuracy"] = masked_mean((policy < 0).float(), mask, count)
            stats["amp_expert_accuracy"] = (expert > 0).float().mean()
            # A tensor if it has a schedule, else a float.
            weight = discriminator.discriminator_grad_pen
            stats["amp_gradient_norm"] = (penalty / (weight + 1e-12)).sqrt()


class APPO(APPOAlgoMixin, PPO):
    """PPO with an adversarial motion prior."""


class ATPPO(APPOAlgoMixin, TPPO):
    """PPO with an adversarial motion prior and a teacher."""
