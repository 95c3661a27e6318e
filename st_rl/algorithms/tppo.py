"""Proximal policy optimization with a teacher."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from st_rl.algorithms.distillation import (
    BOUNDED_TARGETS,
    DISTILL_TARGETS,
    LATENT_TARGETS,
    action_distance,
    bounded_statistics,
    check_encoders,
    check_target,
    latent_width,
    teacher_std,
    vector_distance,
)
from st_rl.algorithms.optimizer import make_lr_scheduler
from st_rl.algorithms.ppo import PPO, Losses, Settings
from st_rl.algorithms.schedules import GET_PROB_FUNC, Schedule
from st_rl.algorithms.teacher import load_teacher, make_teacher_normalizer
from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.networks.gaussian import SquashedGaussian
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.modules.policy import EncoderPolicy, HiddenState
from st_rl.modules.policy.build import EnvSpec
from st_rl.modules.policy.rsl_rl_checkpoint import convert_checkpoint, load_into
from st_rl.storage.fields import MiniBatch
from st_rl.storage.rollout_storage import ActionLabelRollout
from st_rl.utils.buffer import buffer_func
from st_rl.utils.log import logger
from st_rl.utils.tensors.trajectories import unpad_trajectories
from st_rl.utils.tensors.tree import tree_leaves

__all__ = ["GET_PROB_FUNC", "TPPO"]

# Modules of a policy that compute its mean actions.
TEACHER_PARTS = ("actor.", "memory_a.", "encoders.")


class TPPO(PPO):
    """PPO with a frozen teacher: it labels every step, acts in some environments, and the student imitates it.

    The teacher takes the critic's observations, or the actor's, normalized with the statistics of its own training.
    """

    graph_safe = True
    learns_from_dataset = True
    storage_class = ActionLabelRollout

    def __init__(
        self,
        *args: Any,
        ppo: Mapping[str, Any] | None = None,
        teacher_policy_class_name: str = "ActorCritic",
        teacher_policy: Mapping[str, Any] = {},
        teacher_ac_path: str | None = None,
        label_action_with_critic_obs: bool = True,
        teacher_act_prob: str | float | Callable[[int], float] = "exp",
        update_times_scale: float = 100,
        using_ppo: bool = True,
        distillation_loss_coef: str | float | Callable[[int], float] = 1.0,
        distill_target: str = "real",
        distill_latent_coef: float = 1.0,
        distill_latent_target: str = "real",
        distill_latent_obs_component_mapping: Mapping[str, str] | None = None,
        buffer_dilation_ratio: float = 1.0,
        lr_scheduler_class_name: str | None = None,
        lr_scheduler: Mapping[str, Any] = {},
        hidden_state_resample_prob: float = 0.0,
        action_labels_from_sample: bool = False,
        **kwargs: Any,
    ):
        check_target("distill_target", distill_target, DISTILL_TARGETS)
        check_target("distill_latent_target", distill_latent_target, LATENT_TARGETS)
        # None means "not given", except for `desired_kl`, where it means "no limit".
        inner = {key: value for key, value in (ppo or {}).items() if value is not None or key == "desired_kl"}
        settings = {key: value for key, value in {**inner, **kwargs}.items() if key != "class_name"}
        super().__init__(*args, **settings)
        self.ppo = ppo
        self.teacher_policy_class_name = teacher_policy_class_name
        self.teacher_policy = dict(teacher_policy or {})
        self.teacher_ac_path = teacher_ac_path
        self.label_action_with_critic_obs = label_action_with_critic_obs
        self.update_times_scale = update_times_scale
        self.using_ppo = using_ppo
        self.distill_target = distill_target
        self._distill_latent_coef = distill_latent_coef
        self.distill_latent_target = distill_latent_target
        self.distill_latent_obs_component_mapping = dict(distill_latent_obs_component_mapping or {})
        self.buffer_dilation_ratio = buffer_dilation_ratio
        self.hidden_state_resample_prob = hidden_state_resample_prob
        self.action_labels_from_sample = action_labels_from_sample
        self.lr_scheduler_class_name = lr_scheduler_class_name
        self._init_lr_scheduler(lr_scheduler or {})
        self._init_distillation_schedules(teacher_act_prob, distillation_loss_coef)
        # Eager: torch 2.11 loses fields of a named tuple that compiled code creates before a recurrent network.
        self._resample = torch.compiler.disable(self._resampled)
        self._init_teacher(bool(settings.get("strict")))

    def _init_distillation_schedules(
        self, teacher_act_prob: str | float | Callable[[int], float], loss_coef: str | float | Callable[[int], float]
    ) -> None:
        """Create the schedules of the teacher's probability to act and of the weight of the distillation loss."""
        self._teacher_act_prob = Schedule(teacher_act_prob, self.update_times_scale, self.device)
        weight = Schedule(loss_coef, self.update_times_scale, self.device)
        is_constant = isinstance(loss_coef, (int, float))
        self.distillation_loss_coef: float | Tensor = weight(0) if is_constant else weight.value
        self._schedules += [self._teacher_act_prob, weight]

    def _init_lr_scheduler(self, settings: Mapping[str, Any]) -> None:
        """Create the learning-rate scheduler if one is named; the rate becomes the scheduler's initial one."""
        name = self.lr_scheduler_class_name
        if name is None:
            return
        if self.schedule == "adaptive" or self.anneal_learning_rate:
            other = "schedule='adaptive'" if self.schedule == "adaptive" else "anneal_learning_rate=True"
            raise ValueError(
                f"lr_scheduler_class_name='{name}' and {other} would both set the learning rate; "
                "use schedule='fixed' with a scheduler"
            )
        self.lr_scheduler = make_lr_scheduler(name, self.optimizer, settings)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]

    def _init_teacher(self, strict: bool) -> None:
        """Load the teacher and check that student and teacher can be compared."""
        # Set by init_obs_norm.
        self._num_obs = self._num_critic_obs = 0
        # Environments `(N,)` in which the teacher acts; sampled at the first step, which gives N.
        self.use_teacher_act_mask: Tensor | None = None
        # The teacher that `load_teacher` loaded, for checkpoints.
        self._teacher_checkpoint: dict[str, Any] | None = None
        # The normalizer with the teacher's statistics; set by init_obs_norm.
        self._teacher_normalizer: nn.Module | None = None
        student = self.actor_critic
        sizes = student.num_actor_obs, student.num_critic_obs, student.num_actions
        self._teacher = load_teacher(
            EnvSpec(*sizes, student.obs_segments, student.critic_obs_segments),
            {"strict": strict, **self.teacher_policy},
            self.teacher_policy_class_name,
            self.teacher_ac_path,
            self.label_action_with_critic_obs,
            self.device,
        )
        self.teacher_actor_critic = self._teacher.policy
        # Used by the KL divergence only.
        self._teacher_std = teacher_std(student, self.teacher_actor_critic) if self.distill_target == "kl" else None
        self._prepare_latents()

    @property
    def has_teacher(self) -> bool:
        """Whether the teacher's weights were loaded."""
        return self._teacher.has_snapshot

    def load_teacher(self, snapshot: Mapping[str, Any], source: object) -> None:
        """Load the teacher from a checkpoint of its training; it becomes part of this algorithm's checkpoints."""
        snapshot = convert_checkpoint(snapshot, splits_std=self.teacher_actor_critic.std_head is not None)
        weights = dict(self.teacher_actor_critic.state_dict())
        # Its critic and its noise, which may be of other sizes, label nothing.
        weights |= {
            name: value for name, value in snapshot["model_state_dict"].items() if name.startswith(TEACHER_PARTS)
        }
        load_into(self.teacher_actor_critic, weights, source)
        self._teacher = self._teacher._replace(
            has_snapshot=True, obs_statistics=snapshot.get("obs_norm_state_dict") or None
        )
        self._teacher_checkpoint = {
            "model_state_dict": self.teacher_actor_critic.state_dict(),
            "obs_norm_state_dict": self._teacher.obs_statistics,
        }
        self.init_obs_norm(self._num_obs, self._num_critic_obs)
        self.train_mode()
        self.engine.discard_graphs()

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, with the teacher if it was loaded by `load_teacher`."""
        teacher = self._teacher_checkpoint
        return super().state_dict() | ({} if teacher is None else {"teacher_checkpoint": teacher})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`, the teacher first."""
        if state_dict.get("teacher_checkpoint"):
            self.load_teacher(state_dict["teacher_checkpoint"], "the checkpoint")
        super().load_state_dict(state_dict)

    def _prepare_latents(self) -> None:
        """Set the weights of the latent losses; ValueError for latents that cannot be compared."""
        # Student and teacher, if their latents are compared.
        self._latent_policies: tuple[EncoderPolicy, EncoderPolicy] | None = None
        mapping = self.distill_latent_obs_component_mapping
        if mapping:
            student = check_encoders(self.actor_critic, "student")
            self._latent_policies = student, check_encoders(self.teacher_actor_critic, "teacher")
        for component, teacher_component in mapping.items():
            width = latent_width(self.actor_critic, component)
            teacher_width = latent_width(self.teacher_actor_critic, teacher_component)
            if width != teacher_width:
                raise ValueError(
                    f"the latent of '{component}' has width {width}, that of the teacher's '{teacher_component}' "
                    f"{teacher_width}; give both the same encoder_output_size"
                )
        self.distill_latent_coef = self._distill_latent_coef

    @property
    def distill_latent_coef(self) -> float:
        """Weight of all latent losses; sets `distill_latent_{component}_coef` of each."""
        return self._distill_latent_coef

    @distill_latent_coef.setter
    def distill_latent_coef(self, weight: float) -> None:
        self._distill_latent_coef = weight
        for component in self.distill_latent_obs_component_mapping:
            setattr(self, f"distill_latent_{component}_coef", weight)

    # ---- components ---------------------------------------------------------------------------------------------

    @property
    def teacher_act_prob(self) -> Schedule:
        """The probability that the teacher acts, a function of the iteration; may be set by name or number."""
        return self._teacher_act_prob

    @teacher_act_prob.setter
    def teacher_act_prob(self, rule: str | float | Callable[[int], float]) -> None:
        schedule = rule if isinstance(rule, Schedule) else Schedule(rule, self.update_times_scale, self.device)
        self._schedules[self._schedules.index(self._teacher_act_prob)] = schedule
        self._teacher_act_prob = schedule
        schedule.update(self.current_learning_iteration)
        # Captured steps read the tensor of the old schedule.
        self.engine.discard_graphs()

    def init_obs_norm(self, num_obs: int, num_critic_obs: int) -> None:
        """Create the observation normalizers; the teacher's input keeps the frozen statistics of the teacher."""
        super().init_obs_norm(num_obs, num_critic_obs)
        self._num_obs, self._num_critic_obs = num_obs, num_critic_obs
        if not self._teacher.has_snapshot:
            return
        stream, width = ("critic_obs", num_critic_obs) if self._teacher_sees_critic_obs else ("obs", num_obs)
        normalizer = make_teacher_normalizer(self._teacher.obs_statistics, stream, width)
        if isinstance(normalizer, EmpiricalNormalization):
            logger.info(f"{stream} are normalized with the frozen statistics of the teacher")
        elif self.empirical_normalization:
            logger.info(f"the teacher was trained without normalization: {stream} are not normalized")
        self._teacher_normalizer = normalizer.to(self.device)
        setattr(self, f"{stream}_normalizer", self._teacher_normalizer)

    def _normalizer_states(self, state_dict: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The normalizer states of a checkpoint, without the one of the teacher's input."""
        states = super()._normalizer_states(state_dict)
        for key, normalizer in self._normalizers().items():
            if normalizer is self._teacher_normalizer and key in states:
                mean = states.pop(key)["_mean"]
                if not torch.equal(mean.to(self.device), normalizer.state_dict()["_mean"]):
                    logger.warning(f"'{key}' of the checkpoint is not loaded: the teacher's statistics stay")
        return states

    @property
    def _teacher_sees_critic_obs(self) -> bool:
        """Whether there is a separate critic observation and the teacher takes it."""
        if self.storage is not None:
            exists = self.storage.critic_observations is not None
        else:
            # Before init_storage: with equal widths they are most likely the same.
            exists = self._num_obs != self._num_critic_obs
        return self.label_action_with_critic_obs and exists

    def init_storage(self, *args: Any, **kwargs: Any) -> None:
        """Allocate a rollout storage with a label for every step."""
        before = self._teacher_sees_critic_obs
        super().init_storage(*args, **{"buffer_dilation_ratio": self.buffer_dilation_ratio, **kwargs})
        if self._teacher_normalizer is not None and before != self._teacher_sees_critic_obs:
            # The guess from the widths was wrong.
            self.init_obs_norm(self._num_obs, self._num_critic_obs)
        stream, stored = "observations", self.storage.observations
        if self._teacher_sees_critic_obs and self.storage.critic_observations is not None:
            stream, stored = "critic_observations", self.storage.critic_observations
        expected, delivered = self.teacher_actor_critic.num_actor_obs, stored.shape[2:].numel()
        if expected != delivered:
            raise ValueError(
                f"the teacher takes {expected} observations, the {stream} here have {delivered}; "
                "check label_action_with_critic_obs and num_actor_obs in teacher_policy"
            )

    def _networks(self) -> list[nn.Module]:
        """Without the normalizer of the teacher's input: its statistics stay frozen."""
        return [network for network in super()._networks() if network is not self._teacher_normalizer]

    # ---- rollout -------------------------------------------------------------------------------------------------

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Actions `(N, A)`: samples of the student, or actions of the teacher where it acts."""
        if self.use_teacher_act_mask is None or self.use_teacher_act_mask.shape[0] != obs.shape[0]:
            with torch.inference_mode(False):
                self.use_teacher_act_mask = torch.rand(obs.shape[0], device=self.device) < self.teacher_act_prob.value
        return super().act(obs, critic_obs)

    @property
    def _can_compile_acting(self) -> bool:
        is_recurrent = self.teacher_actor_critic.is_recurrent
        return super()._can_compile_acting and not is_recurrent and not self.action_labels_from_sample

    def _policy_step(self, obs: Tensor, critic_obs: Tensor) -> dict[str, Tensor]:
        """The student's step with the teacher's labels and the executed actions; fields of a transition by name."""
        decision = super()._policy_step(obs, critic_obs)
        teacher = self.teacher_actor_critic
        label = teacher.act if self.action_labels_from_sample else teacher.act_inference
        with torch.no_grad():
            labels = label(critic_obs if self.label_action_with_critic_obs else obs)
        if self.use_teacher_act_mask is None:
            raise RuntimeError("use_teacher_act_mask is not set: call act()")
        actions = torch.where(self.use_teacher_act_mask.unsqueeze(-1), labels, decision["actions"])
        return self._with_executed_actions(actions, labels, decision)

    def _reset_policies(self, dones: Tensor) -> None:
        """Reset student and teacher where an episode has ended; sample there whether the teacher acts next."""
        super()._reset_policies(dones)
        self.teacher_actor_critic.reset(dones)
        mask = self.use_teacher_act_mask
        if mask is not None:
            sampled = torch.rand(mask.shape, device=mask.device) < self.teacher_act_prob.value
            mask.copy_(torch.where(dones.to(mask.device).reshape(-1) > 0, sampled, mask))

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any]) -> None:
        """Store recorded steps of all environments; the recorded actions are the labels."""
        self._store_recorded_step(transition, infos)

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Compute returns and advantages if `using_ppo`."""
        if self.using_ppo:
            super().compute_returns(last_critic_obs)

    def rollout_settings(self) -> Settings:
        """Names and values that acting and storing read, with the write position of a rolling storage."""
        storage = cast(ActionLabelRollout, self.storage)
        place = (storage.step, storage.num_transitions_per_env, storage.buffer_full)
        return (*super().rollout_settings(), ("storage", place))

    def pin_hidden_states(self) -> None:
        """Copy the hidden states, the teacher's too, into the fixed buffers that a captured rollout reads."""
        super().pin_hidden_states()
        self.teacher_actor_critic.pin_hidden_states()

    def rollout_state(self) -> dict[str, Any]:
        """The state of the running episodes: hidden states, the teacher mask, and the steps in a rolling storage."""
        storage = cast(ActionLabelRollout, self.storage)
        return super().rollout_state() | {
            "teacher_memory": self.teacher_actor_critic.hidden_state_dict(),
            "use_teacher_act_mask": self.use_teacher_act_mask,
            "storage": storage.state_dict() if storage.buffer_dilation_ratio > 1 else None,
        }

    def load_rollout_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `rollout_state`."""
        super().load_rollout_state(state)
        self.teacher_actor_critic.load_hidden_state_dict(state.get("teacher_memory") or {})
        mask = state.get("use_teacher_act_mask")
        self.use_teacher_act_mask = None if mask is None else mask.to(self.device, copy=True)
        storage = cast(ActionLabelRollout, self.storage)
        if state.get("storage") is not None and storage.buffer_dilation_ratio > 1:
            storage.load_state_dict(state["storage"], self.actor_critic.get_hidden_states())

    # ---- update --------------------------------------------------------------------------------------------------

    def update(self, current_learning_iteration: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the stored rollout, then step the learning-rate scheduler."""
        outcome = super().update(current_learning_iteration)
        storage = cast(ActionLabelRollout, self.storage)
        if storage.buffer_full:
            # Then every rollout starts at row 0, as the captured one did.
            storage.untie_buffer_loop()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
            self.learning_rate = self.optimizer.param_groups[0]["lr"]
        return outcome

    def compute_losses(self, minibatch: MiniBatch) -> Losses:
        """The losses of PPO if `using_ppo`, the distance to the teacher's actions and to its latents."""
        policy = self.actor_critic
        losses: dict[str, Tensor] = {}
        inter_vars: dict[str, Tensor] = {}
        stats: dict[str, Tensor] = {}
        if self.using_ppo:
            losses, inter_vars, stats = super().compute_losses(minibatch)
        else:
            hidden = self._initial_hidden_states(minibatch)
            policy.act(minibatch.obs, masks=minibatch.masks, hidden_states=None if hidden is None else hidden.actor)
        labels = minibatch.action_labels
        # Mirrored samples, which follow the recorded ones, have no labels.
        num_samples = labels.shape[0]
        std, bound = policy.action_std[:num_samples], policy.action_bound if isinstance(policy, ActorCritic) else None
        mean = self._bounded_mean(num_samples)
        if self.distill_target == "max_log_prob" and bound is not None:
            student = SquashedGaussian(policy.action_mean[:num_samples], std, bound)
            distance = -student.log_prob(labels).sum(dim=-1)
        else:
            distance = action_distance(self.distill_target, mean, std, labels, self._teacher_std)
        losses["distillation_loss"] = distance.mean()
        if self.distill_target in BOUNDED_TARGETS:
            stats |= bounded_statistics(mean.detach(), labels)
        return losses | self._latent_losses(minibatch), inter_vars, stats

    def _latent_losses(self, minibatch: MiniBatch) -> dict[str, Tensor]:
        """The distance between the latents of student and teacher, one loss per component."""
        losses: dict[str, Tensor] = {}
        if self._latent_policies is None:
            return losses
        student, teacher = self._latent_policies
        teacher_obs = minibatch.critic_obs if self.label_action_with_critic_obs else minibatch.obs
        for component, teacher_component in self.distill_latent_obs_component_mapping.items():
            latent = student.get_encoder_latent(minibatch.obs, component)
            with torch.no_grad():
                target = teacher.get_encoder_latent(teacher_obs, teacher_component)
            if minibatch.masks is not None:
                latent, target = (unpad_trajectories(value, minibatch.masks) for value in (latent, target))
            distance = vector_distance(self.distill_latent_target, latent, target)
            losses[f"distill_latent_{component}"] = distance.mean()
        return losses

    def _initial_hidden_states(self, minibatch: MiniBatch) -> Any:
        """The hidden states of the mini-batch, some of them resampled."""
        hidden = minibatch.hidden_states
        return hidden if hidden is None or self.hidden_state_resample_prob <= 0 else self._resample(hidden)

    def _resampled(self, hidden_states: HiddenState) -> Any:
        """Hidden states, leaves `(L, K, H)`, with those of random trajectories sampled from U(-1, 1)."""
        first = tree_leaves(hidden_states)[0]
        chosen = torch.rand(first.shape[1], device=first.device) < self.hidden_state_resample_prob

        def resample(leaf: Tensor) -> Tensor:
            return torch.where(chosen.view(1, -1, 1), 2.0 * torch.rand_like(leaf) - 1.0, leaf)

        return buffer_func(hidden_states, resample)
