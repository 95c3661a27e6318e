"""Proximal policy optimisation with a teacher."""

from collections.abc import Callable, Mapping
from typing import Any

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
from st_rl.algorithms.lr_scheduler import make_lr_scheduler
from st_rl.algorithms.ppo import PPO
from st_rl.algorithms.schedules import GET_PROB_FUNC, Schedule
from st_rl.algorithms.teacher import load_teacher, make_teacher_normalizer
from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.networks.gaussian import SquashedGaussian
from st_rl.modules.normalizer import EmpiricalNormalization, normalize_without_update
from st_rl.modules.policy import EncoderPolicy
from st_rl.storage.rollout_storage import ActionLabelRollout
from st_rl.utils.buffer import buffer_func
from st_rl.utils.log import logger
from st_rl.utils.trajectories import unpad_trajectories
from st_rl.utils.tree import tree_leaves

__all__ = ["GET_PROB_FUNC", "TPPO"]


class TPPO(PPO):
    """PPO with a frozen teacher, whose actions label every step, drive some of the robots and are imitated.

    The teacher sees the critic's observations, or the actor's, scaled as in its own training.
    """

    graph_safe = True
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
        # Null means "not given", except for the one setting whose null says "no limit".
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
        self.lr_scheduler = self._make_lr_scheduler(lr_scheduler or {})
        # A schedule may begin below the rate that was set.
        self.learning_rate = self.optimizer.param_groups[0]["lr"]

        self._teacher_act_prob = Schedule(teacher_act_prob, update_times_scale, self.device)
        weight = Schedule(distillation_loss_coef, update_times_scale, self.device)
        is_constant = isinstance(distillation_loss_coef, (int, float))
        self.distillation_loss_coef: float | Tensor = weight(0) if is_constant else weight.value
        self._schedules += [self._teacher_act_prob, weight]
        # Told by init_obs_norm.
        self._num_obs = self._num_critic_obs = 0
        # Which robots (N,) the teacher drives; drawn at the first step, which shows how many there are.
        self.use_teacher_act_mask: Tensor | None = None
        # The normaliser with the teacher's statistics, once the sizes of the observations are known.
        self._teacher_normalizer: nn.Module | None = None
        self._teacher = load_teacher(
            self.actor_critic,
            {"strict": bool(settings.get("strict")), **self.teacher_policy},
            teacher_policy_class_name,
            teacher_ac_path,
            label_action_with_critic_obs,
            self.device,
        )
        self.teacher_actor_critic = self._teacher.policy
        # Only the distance between two Gaussians needs it.
        self._teacher_std = (
            teacher_std(self.actor_critic, self.teacher_actor_critic) if distill_target == "kl" else None
        )
        self._prepare_latents()
        # As written: torch 2.11 loses fields of a named tuple that compiled code makes in front of a recurrent network.
        self._resample = torch.compiler.disable(self._resampled)

    def _make_lr_scheduler(self, settings: Mapping[str, Any]) -> Any:
        """The learning-rate scheduler, or None."""
        name = self.lr_scheduler_class_name
        if name is not None and self.schedule == "adaptive":
            raise ValueError(
                f"lr_scheduler_class_name='{name}' and schedule='adaptive' would both set the learning rate; "
                "use schedule='fixed' with a scheduler"
            )
        return None if name is None else make_lr_scheduler(name, self.optimizer, settings)

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
                    f"the latent of '{component}' has {width} numbers, that of the teacher's '{teacher_component}' "
                    f"{teacher_width}; give both the same encoder_output_size"
                )
        self.distill_latent_coef = self._distill_latent_coef

    @property
    def distill_latent_coef(self) -> float:
        """Weight of the latent losses; one of them has it as `distill_latent_{component}_coef`."""
        return self._distill_latent_coef

    @distill_latent_coef.setter
    def distill_latent_coef(self, weight: float) -> None:
        self._distill_latent_coef = weight
        for component in self.distill_latent_obs_component_mapping:
            setattr(self, f"distill_latent_{component}_coef", weight)

    # ---- what it is made of --------------------------------------------------------------------------------------

    @property
    def teacher_act_prob(self) -> Schedule:
        """The share of robots that the teacher drives, a function of the iteration; a name or a number sets it too."""
        return self._teacher_act_prob

    @teacher_act_prob.setter
    def teacher_act_prob(self, rule: str | float | Callable[[int], float]) -> None:
        schedule = rule if isinstance(rule, Schedule) else Schedule(rule, self.update_times_scale, self.device)
        self._schedules[self._schedules.index(self._teacher_act_prob)] = schedule
        self._teacher_act_prob = schedule
        schedule.update(self.current_learning_iteration)
        # Captured steps read the number where the one before kept it.
        self.engine.discard_graphs()

    def init_obs_norm(self, num_obs: int, num_critic_obs: int) -> None:
        """Make the observation normalisers; the one in front of the teacher has the teacher's statistics, for good."""
        super().init_obs_norm(num_obs, num_critic_obs)
        self._num_obs, self._num_critic_obs = num_obs, num_critic_obs
        if not self._teacher.has_snapshot:
            return
        stream, width = ("critic_obs", num_critic_obs) if self._teacher_sees_critic_obs else ("obs", num_obs)
        normalizer = make_teacher_normalizer(self._teacher.obs_statistics, stream, width)
        if isinstance(normalizer, EmpiricalNormalization):
            logger.info(f"{stream} are normalised with the frozen statistics of the teacher")
        elif self.empirical_normalization:
            logger.info(f"the teacher was trained without normalisation: {stream} are not normalised")
        self._teacher_normalizer = normalizer.to(self.device)
        setattr(self, f"{stream}_normalizer", self._teacher_normalizer)

    def _normalizer_states(self, state_dict: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The statistics that a checkpoint brings; the teacher's stay its own."""
        states = super()._normalizer_states(state_dict)
        for key, normalizer in self._normalizers().items():
            if normalizer is self._teacher_normalizer and key in states:
                mean = states.pop(key)["_mean"]
                if not torch.equal(mean.to(self.device), normalizer.state_dict()["_mean"]):
                    logger.warning(f"'{key}' of the checkpoint is not loaded: the scale of the teacher stays")
        return states

    @property
    def _teacher_sees_critic_obs(self) -> bool:
        """Whether a critic observation exists beside the actor's and feeds the teacher."""
        if self.storage is not None:
            exists = self.storage.critic_observations is not None
        else:
            # Until the storage tells: of equal width they are most likely the same.
            exists = self._num_obs != self._num_critic_obs
        return self.label_action_with_critic_obs and exists

    def init_storage(self, *args: Any, **kwargs: Any) -> None:
        """Allocate a rollout storage with a label for every step."""
        before = self._teacher_sees_critic_obs
        super().init_storage(*args, **{"buffer_dilation_ratio": self.buffer_dilation_ratio, **kwargs})
        if self._teacher_normalizer is not None and before != self._teacher_sees_critic_obs:
            # The critic has its own observations after all.
            self.init_obs_norm(self._num_obs, self._num_critic_obs)
        stream = "critic_observations" if self._teacher_sees_critic_obs else "observations"
        expected, delivered = self.teacher_actor_critic.num_actor_obs, getattr(self.storage, stream).shape[2:].numel()
        if expected != delivered:
            raise ValueError(
                f"the teacher sees {expected} numbers, the {stream} here have {delivered}; "
                "check label_action_with_critic_obs and num_actor_obs in teacher_policy"
            )

    def _networks(self) -> list[nn.Module]:
        """What learns: neither the teacher nor the statistics of its observations."""
        return [network for network in super()._networks() if network is not self._teacher_normalizer]

    # ---- collecting ----------------------------------------------------------------------------------------------

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Actions `(N, A)`: the student's samples, and the teacher's where it drives."""
        if self.use_teacher_act_mask is None or self.use_teacher_act_mask.shape[0] != obs.shape[0]:
            with torch.inference_mode(False):
                self.use_teacher_act_mask = torch.rand(obs.shape[0], device=self.device) < self.teacher_act_prob.value
        return super().act(obs, critic_obs)

    @property
    def _can_compile_acting(self) -> bool:
        is_recurrent = self.teacher_actor_critic.is_recurrent
        return super()._can_compile_acting and not is_recurrent and not self.action_labels_from_sample

    def _policy_step(self, obs: Tensor, critic_obs: Tensor) -> dict[str, Tensor]:
        """What the student does and thinks, what the teacher would do, and what is done."""
        decision = super()._policy_step(obs, critic_obs)
        teacher = self.teacher_actor_critic
        look = teacher.act if self.action_labels_from_sample else teacher.act_inference
        with torch.no_grad():
            labels = look(critic_obs if self.label_action_with_critic_obs else obs)
        if self.use_teacher_act_mask is None:
            raise RuntimeError("nobody has said yet which robots the teacher drives: call act()")
        actions = torch.where(self.use_teacher_act_mask.unsqueeze(-1), labels, decision["actions"])
        return self._with_executed_actions(actions, labels, decision)

    def _with_executed_actions(self, actions: Tensor, labels: Tensor, decision: dict[str, Tensor]) -> dict[str, Tensor]:
        """The decision with other actions `(N, A)` than the student drew, at the probability that it gives them."""
        log_prob = self.actor_critic.get_actions_log_prob(actions).detach()
        return decision | {"actions": actions, "actions_log_prob": log_prob, "action_labels": labels}

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        infos: Mapping[str, Any],
        next_obs: Tensor | None = None,
        next_critic_obs: Tensor | None = None,
    ) -> None:
        """Store the step that follows `act`; robots that start anew draw lots for their driver."""
        super().process_env_step(rewards, dones, infos, next_obs, next_critic_obs)
        self.teacher_actor_critic.reset(dones)
        mask = self.use_teacher_act_mask
        if mask is not None:
            drawn = torch.rand(mask.shape, device=mask.device) < self.teacher_act_prob.value
            mask.copy_(torch.where(dones.to(mask.device).reshape(-1) > 0, drawn, mask))

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any]) -> None:
        """Store recorded steps of all robots: what was done is what is taught."""
        observed = self._as_seen(transition.observation, transition.privileged_observation)
        self._record_transition(self._evaluate_recorded_actions, *observed, transition.action.to(self.device))
        following: tuple[Tensor, ...] = ()
        if hasattr(self.transition, "next_observations"):
            following = self._as_seen(transition.next_observation, transition.next_privileged_observation)
        reward, done = transition.reward.to(self.device), transition.done.to(self.device)
        self.process_env_step(reward, done, infos, *following)

    def _evaluate_recorded_actions(self, obs: Tensor, critic_obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """What the student thinks of actions `(N, A)` that somebody else has taken."""
        return self._with_executed_actions(actions, actions, super()._policy_step(obs, critic_obs))

    def _as_seen(self, obs: Tensor, critic_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Raw observations as the networks see them, without counting them in the statistics."""
        seen = normalize_without_update(self.obs_normalizer, obs.to(self.device))
        if self.storage.critic_observations is None:
            return seen, seen
        return seen, normalize_without_update(self.critic_obs_normalizer, critic_obs.to(self.device))

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Compute returns and advantages, if anything learns from them."""
        if self.using_ppo:
            super().compute_returns(last_critic_obs)

    def rollout_settings(self) -> tuple[tuple[str, Any], ...]:
        """Plain numbers that acting and storing read; a rolling storage is written where it stands."""
        storage = self.storage
        place = (storage.step, storage.num_transitions_per_env, storage.buffer_full)
        return (*super().rollout_settings(), ("storage", place))

    def pin_hidden_states(self) -> None:
        """Keep the state of all memories, the teacher's too, where the next rollout will look for it."""
        super().pin_hidden_states()
        self.teacher_actor_critic.pin_hidden_states()

    def rollout_state(self) -> dict[str, Any]:
        """What the next rollout continues from: memories, drivers, and the steps that a rolling storage retains."""
        return super().rollout_state() | {
            "teacher_memory": self.teacher_actor_critic.hidden_state_dict(),
            "use_teacher_act_mask": self.use_teacher_act_mask,
            "storage": self.storage.state_dict() if self.storage.buffer_dilation_ratio > 1 else None,
        }

    def load_rollout_state(self, state: Mapping[str, Any]) -> None:
        """Continue the episodes of which `rollout_state` told."""
        super().load_rollout_state(state)
        self.teacher_actor_critic.load_hidden_state_dict(state.get("teacher_memory") or {})
        mask = state.get("use_teacher_act_mask")
        self.use_teacher_act_mask = None if mask is None else mask.to(self.device, copy=True)
        if state.get("storage") is not None and self.storage.buffer_dilation_ratio > 1:
            self.storage.load_state_dict(state["storage"], self.actor_critic.get_hidden_states())

    # ---- learning ------------------------------------------------------------------------------------------------

    def update(self, current_learning_iteration: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the stored rollout, then let the learning-rate scheduler take its step."""
        outcome = super().update(current_learning_iteration)
        if self.storage.buffer_full:
            # Every rollout begins at row 0 then, where a captured one began.
            self.storage.untie_buffer_loop()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
            self.learning_rate = self.optimizer.param_groups[0]["lr"]
        return outcome

    def compute_losses(self, minibatch: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """The losses of PPO, if used, the distance to the teacher's actions and that to its latents."""
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

    def _latent_losses(self, minibatch: Any) -> dict[str, Tensor]:
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

    def _initial_hidden_states(self, minibatch: Any) -> Any:
        """Those of the mini-batch, some of them shaken."""
        hidden = minibatch.hidden_states
        return hidden if hidden is None or self.hidden_state_resample_prob <= 0 else self._resample(hidden)

    def _resampled(self, hidden_states: Any) -> Any:
        """Hidden states, leaves `(L, K, H)`, with those of some trajectories drawn from U(-1, 1)."""
        first = tree_leaves(hidden_states)[0]
        chosen = torch.rand(first.shape[1], device=first.device) < self.hidden_state_resample_prob

        def resample(leaf: Tensor) -> Tensor:
            return torch.where(chosen.view(1, -1, 1), 2.0 * torch.rand_like(leaf) - 1.0, leaf)

        return buffer_func(hidden_states, resample)
