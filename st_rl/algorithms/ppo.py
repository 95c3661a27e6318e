"""Proximal policy optimization, and the update loop that all algorithms share."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from st_rl.algorithms.averages import RunningAverages
from st_rl.algorithms.optimizer import GuardedOptimizer, adapt_learning_rate
from st_rl.algorithms.rnd_trainer import RndTrainer
from st_rl.algorithms.schedules import Schedule
from st_rl.algorithms.symmetry_augmentation import make_symmetry
from st_rl.algorithms.symmetry_function import SymmetryFunction
from st_rl.engine import Engine
from st_rl.env.utils import split_final_observations
from st_rl.modules.actor_critic import ActorCritic
from st_rl.modules.networks.gaussian import gaussian_kl
from st_rl.modules.networks.memory import preserve_hidden_states
from st_rl.modules.normalizer import (
    NORMALIZE_UNTIL,
    DiscountedRewardScaling,
    EmpiricalNormalization,
    normalize_without_update,
)
from st_rl.modules.policy import ClippedStdPolicy, Policy, StatefulPolicy
from st_rl.modules.policy.rsl_rl_view import RslRlPolicy
from st_rl.modules.policy.weight_transfer import Observations, transfer_normalizer, transfer_policy
from st_rl.modules.state_adaptor import PrivilegeEstimatorMixin
from st_rl.modules.state_estimator import EstimatorMixin
from st_rl.storage import RolloutStorage, storage_classes
from st_rl.storage.fields import MiniBatch, Shape, StepTransition
from st_rl.utils.config import Configurable, accepted_keys, report_unused_keys, resolve_class
from st_rl.utils.distributed import average_in_place
from st_rl.utils.log import logger
from st_rl.utils.tensors.segments import Segments, expand_images, segment_slices

SCHEDULES = ("fixed", "adaptive")
PRECISIONS = {"bf16": torch.bfloat16}
# The methods that the engine compiles or captures.
GRAPHED_METHODS = {
    *("act", "process_env_step", "_training_reward", "_reset_policies"),
    *("compute_returns", "minibatch_step", "compute_losses"),
}
# Rollouts for which the statistics of a parent count in `start_from` if there are new components.
_NEW_COMPONENT_ROLLOUTS = 10
Losses = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]
Settings = tuple[tuple[str, Any], ...]


class PPO(Configurable):
    """Clipped-surrogate PPO; owns the policy, its optimizer, the rollout storage and the observation normalizers.

    A variant adds named losses in `compute_losses`, a reward term in `_training_reward` or a label in `act`. The weight
    of the loss `x` is the attribute `x_coef`, default 1.
    """

    config_keys = frozenset({"rnd_cfg", "symmetry_cfg"})
    graph_safe = True
    """Whether the methods of this class read no Python value that changes between iterations, so that they may be
    compiled and captured: `iteration`, not `current_learning_iteration`. Not inherited: a subclass that overrides one
    of `GRAPHED_METHODS` runs eagerly unless it declares this itself."""
    # The class of the rollout storage; a variant that stores more per step replaces it.
    storage_class: type[RolloutStorage] = RolloutStorage
    # Whether a loss trains the policy's state estimator or adaptor.
    trains_estimates: bool = False
    # Whether `collect_transition_from_dataset` stores recorded steps; an algorithm that overrides it declares this.
    learns_from_dataset: bool = False

    def __init__(
        self,
        actor_critic: Policy,
        num_learning_epochs: int = 1,
        num_mini_batches: int = 1,
        clip_param: float = 0.2,
        gamma: float = 0.998,
        lam: float = 0.95,
        value_loss_coef: float = 1.0,
        entropy_coef: float = 0.0,
        learning_rate: float = 1e-3,
        max_grad_norm: float = 1.0,
        use_clipped_value_loss: bool = True,
        clip_min_std: float | Tensor | Sequence[float] = 1e-15,
        optimizer_class_name: str = "Adam",
        schedule: str = "fixed",
        desired_kl: float | None = 0.01,
        device: torch.device | str = "cpu",
        empirical_normalization: bool = False,
        *args: Any,
        mixed_precision: str | None = None,
        critic_obs_normalization: bool | None = None,
        unnormalized_components: Sequence[str] = (),
        reward_normalization: bool = False,
        reward_clip: float = 10.0,
        normalize_advantage_per_mini_batch: bool = False,
        shuffle_every_epoch: bool = False,
        anneal_learning_rate: bool = False,
        anneal_clip_param: bool = False,
        anneal_iterations: int | None = None,
        clip_gradients_separately: bool = False,
        exact_kl: bool = False,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        _check_arguments(actor_critic, schedule, mixed_precision, max_grad_norm)
        self.device = device
        # A policy from elsewhere has the members of `Policy` only; what else is used is behind an `isinstance`.
        self.actor_critic = cast(ActorCritic, actor_critic)
        actor_critic.to(device)
        self.num_learning_epochs, self.num_mini_batches = num_learning_epochs, num_mini_batches
        self.clip_param = clip_param
        self.gamma, self.lam = gamma, lam
        self.value_loss_coef, self.entropy_coef = value_loss_coef, entropy_coef
        self.surrogate_loss_coef = 1.0
        self.max_grad_norm = max_grad_norm
        self.use_clipped_value_loss = use_clipped_value_loss
        is_number = isinstance(clip_min_std, (int, float, Tensor))
        self.clip_min_std = clip_min_std if is_number else torch.tensor(clip_min_std, device=device)
        self.optimizer_class_name, self.optimizer_kwargs = optimizer_class_name, dict(optimizer_kwargs or {})
        self.schedule, self.desired_kl = schedule, desired_kl
        self.empirical_normalization = empirical_normalization
        is_same = critic_obs_normalization is None
        self.critic_obs_normalization = empirical_normalization if is_same else critic_obs_normalization
        self.unnormalized_components = list(unnormalized_components)
        self.mixed_precision = mixed_precision
        self.reward_normalization = reward_normalization
        self.reward_clip = reward_clip
        self.normalize_advantage_per_mini_batch = normalize_advantage_per_mini_batch
        self.shuffle_every_epoch = shuffle_every_epoch
        self.anneal_learning_rate = anneal_learning_rate
        self.anneal_clip_param = anneal_clip_param
        self.anneal_iterations = anneal_iterations
        self._check_annealing()
        self.clip_gradients_separately = clip_gradients_separately
        self.exact_kl = exact_kl
        if args:
            logger.warning(f"{type(self).__name__} ignores {len(args)} positional arguments it does not know: {args}")
        _check_numbers({**vars(self), "learning_rate": learning_rate})
        self._build_components(learning_rate, **kwargs)

    def _build_components(
        self,
        learning_rate: float,
        rnd_cfg: Mapping[str, Any] | None = None,
        symmetry_cfg: Mapping[str, Any] | None = None,
        strict: bool = False,
        **unused: Any,
    ) -> None:
        """Create the optimizers, normalizers and everything else that the hyper-parameters describe."""
        device = self.device
        report_unused_keys(unused, type(self).__name__, accepted_keys(type(self)), strict)
        # Values that change with the iteration, on the device, where compiled and captured code reads them.
        self.iteration = torch.zeros((), device=device)
        self._schedules: list[Schedule] = []
        self._annealed_rate: Schedule | None = None
        self._annealed_clip: Schedule | None = None
        self.current_learning_iteration = 0
        self.lr_scheduler: LRScheduler | None = None
        # None until init_storage, which knows the sizes of the environment.
        self.storage = cast(RolloutStorage, None)
        self.transition = cast(StepTransition, None)
        self.obs_normalizer: nn.Module = nn.Identity().to(device)
        self.critic_obs_normalizer: nn.Module = nn.Identity().to(device)
        self.reward_normalizer: DiscountedRewardScaling | None = None
        if self.reward_normalization:
            self.reward_normalizer = DiscountedRewardScaling(self.gamma, self.reward_clip).to(device)
        self._averages = RunningAverages()
        # Runs acting and update; the runner replaces it by a faster one.
        self.engine = Engine("eager", device)
        self._rnd_trainer = RndTrainer(rnd_cfg, device, strict) if rnd_cfg else None
        self.rnd = self._rnd_trainer.rnd if self._rnd_trainer else None
        self.rnd_optimizer = self._rnd_trainer.optimizer if self._rnd_trainer else None
        self.intrinsic_rewards: Tensor | None = None
        policy = self.actor_critic
        self.symmetry = make_symmetry(symmetry_cfg, policy, device) if symmetry_cfg else None
        self.mirror_loss_coef = self.symmetry.mirror_loss_coef if self.symmetry else 0.0
        self._optimizer = GuardedOptimizer(
            self.optimizer_class_name, self._policy_parameters(), learning_rate, device, **self.optimizer_kwargs
        )
        if self.anneal_learning_rate:
            self._annealed_rate = Schedule(lambda it: learning_rate * self._anneal_fraction(it), 1, device)
        if self.anneal_clip_param:
            self._annealed_clip = Schedule(lambda it: self.clip_param * self._anneal_fraction(it), 1, device)
            self._schedules.append(self._annealed_clip)
        if isinstance(policy, EstimatorMixin | PrivilegeEstimatorMixin) and not self.trains_estimates:
            logger.warning(
                f"{type(self).__name__} does not train the state estimator of {type(policy).__name__}; "
                "EstimatorPPO and EstimatorTPPO do"
            )

    def capture_obstacle(self) -> str | None:
        """Say why the methods of this algorithm cannot be compiled and captured; None if they can."""
        classes = [vars(cls) for cls in type(self).__mro__ if not GRAPHED_METHODS.isdisjoint(vars(cls))]
        if not all(cls.get("graph_safe", False) for cls in classes):
            return (
                f"{type(self).__name__} overrides methods that the engine compiles and does not declare "
                "graph_safe = True: it runs eagerly. To train faster, declare it if these methods read "
                "self.iteration (a 0-d tensor) and not current_learning_iteration"
            )
        if isinstance(self.symmetry, SymmetryFunction):
            return (
                "data_augmentation_func is a Python function that may wait for the device: updates run eagerly. "
                "joint_names and obs in symmetry_cfg train faster"
            )
        return None

    # ---- components ----------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the policy; a subclass may assign its own."""
        return self._optimizer.optimizer

    @optimizer.setter
    def optimizer(self, value: torch.optim.Optimizer) -> None:
        self._optimizer.replace(value)

    @property
    def current_learning_iteration(self) -> int:
        """The current iteration; `iteration` holds the same number as a 0-d tensor on the device."""
        return self._current_learning_iteration

    @current_learning_iteration.setter
    def current_learning_iteration(self, value: int) -> None:
        self._current_learning_iteration = value
        self.iteration.fill_(value)
        for schedule in self._schedules:
            schedule.update(value)
        if self._annealed_rate is not None:
            self.learning_rate = self._annealed_rate(value)

    def _check_annealing(self) -> None:
        """ValueError if the learning rate or the clip range cannot be annealed as configured."""
        if self.anneal_learning_rate and self.schedule == "adaptive":
            raise ValueError(
                "anneal_learning_rate=True and schedule='adaptive' would both set the learning rate; use "
                "schedule='fixed' to anneal it"
            )
        if (self.anneal_learning_rate or self.anneal_clip_param) and not (self.anneal_iterations or 0) >= 1:
            raise ValueError(
                f"anneal_iterations is {self.anneal_iterations}; anneal_learning_rate and anneal_clip_param need the "
                "number of iterations of the whole training, at least 1"
            )

    def _anneal_fraction(self, iteration: int) -> float:
        """Fall linearly from 1 in the first of `anneal_iterations` iterations; stays at its last value, above 0."""
        total = self.anneal_iterations or 1
        return max(total - iteration, 1) / total

    @property
    def clip_range(self) -> float | Tensor:
        """The current clip range: `clip_param`, or with `anneal_clip_param` a 0-d tensor."""
        return self.clip_param if self._annealed_clip is None else self._annealed_clip.value

    @property
    def learning_rate(self) -> float | Tensor:
        """The learning rate: a float, or on a GPU a 0-d tensor."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float | Tensor) -> None:
        self._optimizer.learning_rate = value

    @property
    def policy(self) -> RslRlPolicy:
        """The policy with its normalizers, as scripts for rsl_rl 2.3 to 4 read it."""
        return RslRlPolicy(self.actor_critic, self.obs_normalizer, self.critic_obs_normalizer)

    def init_obs_norm(self, num_obs: int, num_critic_obs: int) -> None:
        """Create the observation normalizers: running statistics, or identities."""
        if not self.empirical_normalization and not self.critic_obs_normalization:
            logger.info("observations are not normalized (empirical_normalization is off)")
        segments: tuple[Segments, Segments] = ({}, {})
        if self.unnormalized_components:
            segments = (self.actor_critic.obs_segments or {}, self.actor_critic.critic_obs_segments or {})
            known = {**segments[0], **segments[1]}
            unknown = set(expand_images(self.unnormalized_components, known)) - set(known)
            if unknown:
                raise ValueError(
                    f"unnormalized_components names {sorted(unknown)}; the observations have {list(known)}"
                )
        self.obs_normalizer = self._make_normalizer(self.empirical_normalization, num_obs, segments[0])
        self.critic_obs_normalizer = self._make_normalizer(self.critic_obs_normalization, num_critic_obs, segments[1])

    def _make_normalizer(self, is_normalized: bool, width: int, segments: Segments) -> nn.Module:
        """Return the normalizer of observations `(..., width)`, which leaves `unnormalized_components` unchanged."""
        if not is_normalized:
            return nn.Identity()
        names, slices = expand_images(self.unnormalized_components, segments), segment_slices(segments)
        unchanged: Tensor | None = None
        if set(names) & set(slices):
            unchanged = torch.zeros(width, dtype=torch.bool)
            for name in set(names) & set(slices):
                unchanged[slices[name]] = True
        return EmpiricalNormalization([width], until=NORMALIZE_UNTIL, unchanged=unchanged).to(self.device)

    def init_storage(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        actor_obs_shape: Shape,
        critic_obs_shape: Shape,
        action_shape: Shape,
        **kwargs: Any,
    ) -> None:
        """Allocate the rollout storage on the algorithm's device; `class_name` names another class for it."""
        class_name = kwargs.pop("class_name", None)
        if class_name:
            self.storage_class = resolve_class(class_name, storage_classes(), "storage class", self.storage_class)
        if self.rnd is not None:
            kwargs["rnd_state_shape"] = [self.rnd.num_states]
        obs_dtypes = kwargs.get("obs_dtypes")
        if obs_dtypes:
            is_normalized = self.empirical_normalization or self.critic_obs_normalization
            if "uint8" in obs_dtypes.values() and is_normalized:
                raise ValueError(
                    f"obs_dtypes={dict(obs_dtypes)}: uint8 stores values from 0 to 1, normalized observations are "
                    "larger; use float16, or empirical_normalization=False"
                )
            kwargs["obs_segments"] = self.actor_critic.obs_segments
            kwargs["critic_obs_segments"] = self.actor_critic.critic_obs_segments
        self.transition = self.storage_class.Transition()
        sizes = (num_envs, num_transitions_per_env, actor_obs_shape, critic_obs_shape, action_shape)
        self.storage = self.storage_class(*sizes, device=self.device, **kwargs)

    @property
    def required_info_keys(self) -> tuple[str, ...]:
        """Keys of the environment's infos, or of its observation groups, that the algorithm learns from."""
        return () if self.rnd is None else ("rnd_state",)

    def _policy_parameters(self) -> Iterable[nn.Parameter]:
        """The parameters that the policy's optimizer trains."""
        return self.actor_critic.parameters()

    def _networks(self) -> list[nn.Module]:
        networks: list[nn.Module] = [self.actor_critic, self.obs_normalizer, self.critic_obs_normalizer]
        return [*networks, *(module for module in (self.rnd, self.reward_normalizer) if module is not None)]

    def train_mode(self) -> None:
        """Set policy and normalizers to training mode."""
        for network in self._networks():
            network.train()

    def eval_mode(self) -> None:
        """Set policy and normalizers to evaluation mode: statistics stay unchanged."""
        for network in self._networks():
            network.eval()

    def test_mode(self) -> None:
        """Alias of `eval_mode`."""
        self.eval_mode()

    # ---- rollout -------------------------------------------------------------------------------------------------

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Sample actions `(N, A)` for normalized observations and fill the transition."""
        self._begin_transition(obs, critic_obs)
        policy_step = self._policy_step
        if self.engine.plan.compiles and self._can_compile_acting:
            policy_step = self.engine.compile(policy_step)
        fields = policy_step(obs, critic_obs)
        for name, value in fields.items():
            setattr(self.transition, name, value)
        return fields["actions"]

    def _begin_transition(self, obs: Tensor, critic_obs: Tensor) -> None:
        """Record what the next step of the policy starts from: observations and hidden states."""
        self.transition.observations, self.transition.critic_observations = obs, critic_obs
        if self.actor_critic.is_recurrent:
            self.transition.hidden_states = self.actor_critic.get_hidden_states()

    @property
    def _can_compile_acting(self) -> bool:
        """Whether no network that acts is recurrent, and acting samples at most once (compiled code may reorder)."""
        return not self.actor_critic.is_recurrent

    def _policy_step(self, obs: Tensor, critic_obs: Tensor) -> dict[str, Tensor]:
        """Sample actions and evaluate normalized observations; returns the fields of a transition by name."""
        policy = self.actor_critic
        actions = policy.act(obs).detach()
        return {
            "actions": actions,
            "values": policy.evaluate(critic_obs).detach(),
            "actions_log_prob": policy.get_actions_log_prob(actions).detach(),
            "action_mean": policy.action_mean.detach(),
            "action_sigma": policy.action_std.detach(),
        }

    def process_env_step(
        self,
        rewards: Tensor,
        dones: Tensor,
        infos: Mapping[str, Any],
        next_obs: Tensor | None = None,
        next_critic_obs: Tensor | None = None,
    ) -> None:
        """Store the step that follows `act`: dones and training rewards, `(N,)` each."""
        transition = self.transition
        transition.dones = dones
        # A copy, because a custom storage may write into it.
        rewards = rewards.clone()
        if self.reward_normalizer is not None:
            rewards = self.reward_normalizer(rewards.to(self.device).reshape(-1), dones.to(self.device).reshape(-1))
        transition.rewards = self._training_reward(rewards, dones, infos)
        if hasattr(transition, "next_observations"):
            transition.next_observations, transition.next_critic_observations = next_obs, next_critic_obs
        self.storage.add_transitions(transition)
        transition.clear()
        self._reset_policies(dones)

    def _reset_policies(self, dones: Tensor) -> None:
        """Reset the policy where an episode has ended, `dones (N,)`."""
        self.actor_critic.reset(dones)

    def _training_reward(self, rewards: Tensor, dones: Tensor, infos: Mapping[str, Any]) -> Tensor:
        """The environment's rewards `(N,)`, plus intrinsic reward and time-out bootstrap."""
        transition = self.transition
        if self.rnd is not None:
            rnd_state = (infos.get("observations") or {}).get("rnd_state")
            if rnd_state is None:
                raise KeyError(
                    "infos['observations']['rnd_state'] is missing: rnd_cfg is set, so the environment must deliver "
                    "the state for random network distillation in every step"
                )
            transition.rnd_state = rnd_state.to(self.device)
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(transition.rnd_state)
            rewards = rewards + self.intrinsic_rewards
        bootstrap = self._time_out_bootstrap(infos)
        return rewards if bootstrap is None else rewards + bootstrap

    def _time_out_bootstrap(self, infos: Mapping[str, Any]) -> Tensor | None:
        """The discounted value of the last state `(N,)` where an episode timed out, 0 elsewhere; None if none did."""
        if infos.get("time_outs") is None:
            return None
        time_outs = infos["time_outs"].to(self.device)
        if time_outs.device.type == "cpu" and not bool(time_outs.any()):
            return None
        final_obs, policy = self._final_critic_observation(infos), self.actor_critic
        bootstrap = self._bootstrap if policy.is_recurrent else self.engine.compile_on_gpu(self._bootstrap)
        with preserve_hidden_states(policy):
            return bootstrap(time_outs.reshape(-1), cast(Tensor, self.transition.values), final_obs)

    def _bootstrap(self, time_outs: Tensor, values: Tensor, final_obs: Tensor | None) -> Tensor:
        """Discounted values of `final_obs (N, Oc)`, or else `values (N, 1)`, where `time_outs (N,)`; 0 elsewhere."""
        if final_obs is not None:
            final_values = self.actor_critic.evaluate(final_obs).detach()
            # A final observation with NaN or Inf has no value; use that of the state before it.
            values = torch.where(torch.isfinite(final_values), final_values, values)
        # `where`, not a product: rows of running episodes may hold NaN.
        return torch.where(time_outs > 0, self.gamma * values.squeeze(-1), 0.0)

    def _final_critic_observation(self, infos: Mapping[str, Any]) -> Tensor | None:
        """The normalized final observation `(N, Oc)` of finished episodes; None if it does not fit the critic."""
        final_obs, critic_obs = split_final_observations(infos), cast(Tensor, self.transition.critic_observations)
        if final_obs is None or final_obs.shape[-1] != critic_obs.shape[-1]:
            return None
        groups = infos["final_observations"]
        has_critic_obs = self.storage.critic_observations is not None
        if has_critic_obs and isinstance(groups, Mapping) and groups.get("critic") is None:
            # The actor's final observation is not the critic's, even if it has the same width.
            return None
        return normalize_without_update(self._critic_stream_normalizer, final_obs.to(self.device))

    @property
    def _critic_stream_normalizer(self) -> nn.Module:
        """The normalizer of the critic's observations: the actor's if the critic has no observations of its own."""
        shares_actor_obs = self.storage is not None and self.storage.critic_observations is None
        return self.obs_normalizer if shares_actor_obs else self.critic_obs_normalizer

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Bootstrap with the value of the last state and compute returns and advantages in the storage."""
        with preserve_hidden_states(self.actor_critic):
            last_values = self.actor_critic.evaluate(last_critic_obs).detach()
        self.storage.compute_returns(last_values, self.gamma, self.lam)

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any]) -> None:
        """Store recorded transitions; PPO itself cannot."""
        raise NotImplementedError(f"{type(self).__name__} cannot learn from a dataset; TPPO, APPO and ATPPO can")

    def _store_recorded_step(self, transition: Any, infos: Mapping[str, Any]) -> None:
        """Store recorded steps of all environments in a storage with labels; the recorded actions are the labels."""
        obs = self._normalize_recorded(transition.observation, transition.privileged_observation)
        self._begin_transition(*obs)
        policy_step = self._evaluate_recorded_actions
        if self.engine.plan.compiles and self._can_compile_acting:
            policy_step = self.engine.compile(policy_step)
        for name, value in policy_step(*obs, transition.action.to(self.device)).items():
            setattr(self.transition, name, value)
        next_obs: tuple[Tensor, ...] = ()
        if hasattr(self.transition, "next_observations"):
            next_obs = self._normalize_recorded(transition.next_observation, transition.next_privileged_observation)
        reward, done = transition.reward.to(self.device), transition.done.to(self.device)
        self.process_env_step(reward, done, infos, *next_obs)

    def _evaluate_recorded_actions(self, obs: Tensor, critic_obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """The policy's values and log-probabilities for recorded actions `(N, A)`; fields of a transition by name."""
        # Not an override, which may ask a teacher for labels.
        return self._with_executed_actions(actions, actions, PPO._policy_step(self, obs, critic_obs))

    def _with_executed_actions(self, actions: Tensor, labels: Tensor, decision: dict[str, Tensor]) -> dict[str, Tensor]:
        """The policy's step with other executed actions `(N, A)` and their log-probability under the policy."""
        log_prob = self.actor_critic.get_actions_log_prob(actions).detach()
        return decision | {"actions": actions, "actions_log_prob": log_prob, "action_labels": labels}

    def _normalize_recorded(self, obs: Tensor, critic_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize raw observations without updating the statistics."""
        obs = normalize_without_update(self.obs_normalizer, obs.to(self.device))
        if self.storage.critic_observations is None:
            return obs, obs
        return obs, normalize_without_update(self.critic_obs_normalizer, critic_obs.to(self.device))

    def rollout_settings(self) -> Settings:
        """Names and values of all Python numbers and strings that acting and storing may read."""
        return self._settings()

    # ---- update --------------------------------------------------------------------------------------------------

    def update(self, current_learning_iteration: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the stored rollout; return the mean losses and statistics, name -> 0-d tensor."""
        self.current_learning_iteration = current_learning_iteration
        self._averages = RunningAverages()
        self._merge_normalizers()
        # A captured step is captured again when a Python value that it reads changes.
        settings = (self._settings(), self._optimizer.settings) if self.engine.plan.graphs else None
        can_capture = not self._optimizer.needs_host_sync
        policy = self.actor_critic
        with policy.no_sampling() if isinstance(policy, ActorCritic) else nullcontext():
            for number, minibatch in enumerate(self._mini_batches()):
                slot = number % self.num_mini_batches
                step = self.engine.run_step(self.minibatch_step, minibatch, settings, slot, can_capture)
                self._averages.add(step)
        self.storage.clear()
        means = self._averages.means()
        losses = {name.removeprefix("loss/"): value for name, value in means.items() if name.startswith("loss/")}
        stats = {name.removeprefix("stat/"): value for name, value in means.items() if name.startswith("stat/")}
        return losses, stats

    def _merge_normalizers(self) -> None:
        """Add what all ranks have observed in this rollout to the normalizers of every rank; none with one rank."""
        modules = [module for network in self._networks() for module in network.modules()]
        # Each once: networks may share one.
        for module in dict.fromkeys(modules):
            if isinstance(module, EmpiricalNormalization):
                module.merge_updates()

    def _mini_batches(self) -> Iterator[MiniBatch]:
        """Iterate over the mini-batches of all epochs."""
        storage, number = self.storage, self.num_mini_batches
        if self.actor_critic.is_recurrent:
            storage.shuffles_envs = self.shuffle_every_epoch
            storage.trajectory_capacity = self.engine.static_size(lambda: storage.max_trajectories(number))
        is_recurrent = self.actor_critic.is_recurrent
        generator = storage.reccurent_mini_batch_generator if is_recurrent else storage.mini_batch_generator
        if not self.shuffle_every_epoch:
            return generator(number, self.num_learning_epochs)
        # A generator of one epoch samples a permutation of its own.
        return itertools.chain.from_iterable(generator(number, 1) for _ in range(self.num_learning_epochs))

    def _settings(self) -> Settings:
        """Names and values of all Python numbers and strings that the losses may read; a change captures again."""
        plain = (bool, int, float, str)
        items = [(name, value) for name, value in sorted(vars(self).items()) if isinstance(value, plain)]
        own = tuple([item for item in items if item[0] != "_current_learning_iteration"])
        policy = self.actor_critic
        return own + policy.acting_settings if isinstance(policy, ActorCritic) else own

    def minibatch_step(self, minibatch: MiniBatch) -> dict[str, Tensor]:
        """One gradient step on one mini-batch; returns its losses, statistics and gradient norm as 0-d tensors."""
        objective = self.engine.compile(self._objective, casts_weights=self.mixed_precision is not None)
        with self._autocast():
            total, measured, kl = objective(minibatch)
        optimizers = self._optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()
        if self._rnd_trainer is not None and minibatch.rnd_state is not None:
            measured["loss/rnd"] = self._rnd_trainer.backward(minibatch.rnd_state)
        # All that the ranks exchange for this step, at once.
        exchanged = [gradient for optimizer in optimizers for gradient in optimizer.gradients]
        average_in_place(exchanged if kl is None else [*exchanged, kl])
        if kl is not None:
            adapt = self.engine.compile_on_gpu(adapt_learning_rate)
            self._optimizer.learning_rate = adapt(self._optimizer.learning_rate, kl, float(self.desired_kl or 0.0))
        norms = self._apply_gradients()
        if isinstance(self.actor_critic, ClippedStdPolicy):
            self.actor_critic.clip_std(min=self.clip_min_std)
        return measured | norms

    def _optimizers(self) -> list[GuardedOptimizer]:
        """All optimizers that step on a mini-batch."""
        return [self._optimizer, *([self._rnd_trainer.guarded_optimizer] if self._rnd_trainer else [])]

    def _apply_gradients(self) -> dict[str, Tensor]:
        """Step all optimizers along the current gradients; returns the norms to log, 0-d."""
        if self._rnd_trainer is not None:
            self._rnd_trainer.guarded_optimizer.apply_gradients(max_grad_norm=float("inf"))
        policy = self.actor_critic
        separately = self.clip_gradients_separately and isinstance(policy, ActorCritic)
        groups = policy.network_parameters() if separately else ()
        return {"gradient_norm": self._optimizer.apply_gradients(self.max_grad_norm, clip_groups=groups)}

    def _objective(self, minibatch: MiniBatch) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """The weighted sum of all losses, values to log, and the mean KL divergence if the learning rate follows it."""
        losses, inter_vars, stats = self.compute_losses(minibatch)
        weighted: list[Tensor] = []
        measured: dict[str, Tensor] = {}
        for name, value in losses.items():
            weighted.append(getattr(self, f"{name}_coef", 1.0) * value)
            measured[f"loss/{name}"] = value.detach()
        total = torch.stack(weighted).sum()
        measured["loss/total_loss"] = total.detach()
        measured |= {f"stat/{name}": value.detach() for name, value in stats.items()}
        return total, measured, inter_vars["kl"].mean() if "kl" in inter_vars else None

    def _autocast(self) -> AbstractContextManager[Any]:
        """The context of the losses: hidden layers in `mixed_precision`; weights and the rest stay in float32."""
        if self.mixed_precision is None:
            return nullcontext()
        # No cache of cast weights: a captured step must cast them in every replay.
        device_type = torch.device(self.device).type
        return torch.autocast(device_type, PRECISIONS[self.mixed_precision], cache_enabled=False)

    def non_finite_counts(self) -> dict[str, int]:
        """Non-finite values of the last update, name -> number of mini-batches; syncs with the device."""
        return {name.split("/")[-1]: count for name, count in self._averages.non_finite_counts().items()}

    def take_outlier_counts(self) -> dict[str, list[int]]:
        """Values that normalizers clipped in their statistics since the last call, name -> number of each column.

        Names without any are left out; syncs with the device.
        """
        named = {key.removesuffix("_norm_state_dict"): module for key, module in self._normalizers().items()}
        if self.rnd is not None:
            named |= {f"rnd.{name}": module for name, module in self.rnd.named_modules()}
        if self.reward_normalizer is not None:
            named["discounted returns"] = self.reward_normalizer.statistics
        counters = {name: n.num_clipped for name, n in named.items() if isinstance(n, EmpiricalNormalization)}
        if not counters:
            return {}
        counts = torch.cat([counter.view(-1) for counter in counters.values()]).cpu()
        parts = counts.split([counter.numel() for counter in counters.values()])
        for counter in counters.values():
            counter.zero_()
        return {name: part.tolist() for name, part in zip(counters, parts) if part.any()}

    def compute_losses(self, minibatch: MiniBatch) -> Losses:
        """The named losses of a mini-batch (0-d), intermediate values, and statistics."""
        policy, hidden = self.actor_critic, self._initial_hidden_states(minibatch)
        size = minibatch.actions.shape[0]
        mirror_loss: Tensor | None = None
        if self.symmetry is not None:
            if self.mirror_loss_coef != 0.0:
                # Before `act`, so that the policy keeps the distribution of the mini-batch.
                mirror_loss = self.symmetry.mirror_loss(policy, minibatch.obs, self.obs_normalizer)
            minibatch = self.symmetry.augmented(minibatch, self.obs_normalizer, self._critic_stream_normalizer)
        masks = minibatch.masks
        policy.act(minibatch.obs, masks=masks, hidden_states=None if hidden is None else hidden.actor)
        log_prob = policy.get_actions_log_prob(minibatch.actions)
        values = policy.evaluate(
            minibatch.critic_obs, masks=masks, hidden_states=None if hidden is None else hidden.critic
        ).squeeze(-1)

        inter_vars: dict[str, Tensor] = {}
        if self.desired_kl is not None and self.schedule == "adaptive":
            with torch.no_grad():
                # Only the recorded samples: the old policy did not sample the mirrored ones.
                mean, std = policy.action_mean[:size], policy.action_std[:size]
                old = minibatch.old_mu[:size], minibatch.old_sigma[:size]
                inter_vars["kl"] = gaussian_kl(mean, std, *old, ratio_offset=0.0 if self.exact_kl else 1.0e-5)

        clip = cast(float, self.clip_range)  # torch's stubs know two numbers or two tensors, not their union
        ratio = torch.exp(log_prob - minibatch.old_actions_log_prob.squeeze(-1))
        advantages = minibatch.advantages.squeeze(-1)
        if self.normalize_advantage_per_mini_batch:
            recorded = advantages[:size]
            advantages = (advantages - recorded.mean()) / (recorded.std() + 1e-8)
        surrogate, clipped = -advantages * ratio, -advantages * ratio.clamp(1.0 - clip, 1.0 + clip)
        inter_vars |= {"ratio": ratio, "surrogate": surrogate, "surrogate_clipped": clipped}
        losses = {"surrogate_loss": torch.max(surrogate, clipped).mean()}

        returns = minibatch.returns.squeeze(-1)
        value_errors = (values - returns).square()
        if self.use_clipped_value_loss:
            old_values = minibatch.values.squeeze(-1)
            value_clipped = old_values + (values - old_values).clamp(-clip, clip)
            inter_vars["value_clipped"] = value_clipped
            value_errors = torch.max(value_errors, (value_clipped - returns).square())
        losses["value_loss"] = value_errors.mean()
        # A policy need not have an entropy.
        with suppress(AttributeError, NotImplementedError):
            losses["entropy"] = -policy.entropy[:size].mean()
        if mirror_loss is not None:
            losses["mirror_loss"] = mirror_loss
        return losses, inter_vars, {}

    def _bounded_mean(self, num_samples: int) -> Tensor:
        """The mean actions `(num_samples, ..., A)` of the last `act` without mirrored samples, within the bounds."""
        policy = self.actor_critic
        mean = policy.action_mean[:num_samples]
        return policy.bounded(mean) if isinstance(policy, ActorCritic) else mean

    def _initial_hidden_states(self, minibatch: MiniBatch) -> Any:
        """The hidden states at the first step of every trajectory, or None."""
        return minibatch.hidden_states

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of policy, optimizers, schedulers and normalizers for a checkpoint."""
        state: dict[str, Any] = {
            "model_state_dict": self.actor_critic.state_dict(),
            "optimizer_state_dict": self._optimizer.optimizer.state_dict(),
        }
        if self.lr_scheduler is not None:
            state["lr_scheduler_state_dict"] = self.lr_scheduler.state_dict()
        for key, normalizer in self._normalizers().items():
            if isinstance(normalizer, EmpiricalNormalization):
                state[key] = normalizer.state_dict()
        if self.reward_normalizer is not None:
            state["reward_norm_state_dict"] = self.reward_normalizer.state_dict()
        return state if self._rnd_trainer is None else state | self._rnd_trainer.state_dict()

    def _normalizers(self) -> dict[str, nn.Module]:
        """Checkpoint key -> normalizer."""
        return {
            "obs_norm_state_dict": self.obs_normalizer,
            "critic_obs_norm_state_dict": self.critic_obs_normalizer,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`; all parts but the model may be missing."""
        # First, because it may raise: then nothing has changed yet.
        normalizer_states = self._normalizer_states(state_dict)
        self.actor_critic.load_state_dict(state_dict["model_state_dict"])
        if "optimizer_state_dict" in state_dict:
            self._optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        self._load_lr_scheduler(state_dict.get("lr_scheduler_state_dict"))
        for key, state in normalizer_states.items():
            self._normalizers()[key].load_state_dict(state)
        if self.reward_normalizer is not None and "reward_norm_state_dict" in state_dict:
            self.reward_normalizer.load_state_dict(state_dict["reward_norm_state_dict"])
        if self._rnd_trainer is not None:
            self._rnd_trainer.load_state_dict(state_dict)
        # The optimizers have new tensors, captured steps the old ones.
        self.engine.discard_graphs()

    def start_from(self, parent: ActorCritic, state_dict: Mapping[str, Any], with_noise: bool = True) -> list[str]:
        """Copy the weights of a trained policy and the normalizers of its checkpoint; returns what is new, in words.

        Observations may differ, see `transfer_policy`. Optimizer and schedules are not touched. ValueError if the
        parent does not fit.
        """
        states = self._normalizer_states(state_dict)
        if isinstance(self.obs_normalizer, EmpiricalNormalization) and not state_dict.get("obs_norm_state_dict"):
            raise ValueError(
                "its observations are not normalized, those of this training are: set empirical_normalization=False"
            )
        if not isinstance(self.actor_critic, ActorCritic):
            raise ValueError(f"{type(self.actor_critic).__name__} cannot start from other weights")
        ours, theirs = Observations.of(self.actor_critic), Observations.of(parent)
        segments = {
            "obs_norm_state_dict": (ours.actor, theirs.actor),
            "critic_obs_norm_state_dict": (ours.critic, theirs.critic),
        }
        new = transfer_policy(self.actor_critic, parent, with_noise)
        max_count = _NEW_COMPONENT_ROLLOUTS * self.storage.num_transitions_per_env * self.storage.num_envs
        for key, state in states.items():
            normalizer = self._normalizers()[key]
            if isinstance(normalizer, EmpiricalNormalization):
                transfer_normalizer(normalizer, state, segments.get(key), max_count)
        self.engine.discard_graphs()
        return new

    def _normalizer_states(self, state_dict: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The normalizer states of a checkpoint by key; ValueError if this algorithm has no such normalizer."""
        upstream_names = {"critic_obs_norm_state_dict": "privileged_obs_norm_state_dict"}
        states: dict[str, Mapping[str, Any]] = {}
        for key, normalizer in self._normalizers().items():
            state = state_dict.get(key) or state_dict.get(upstream_names.get(key, key))
            if not state:
                continue
            if not isinstance(normalizer, EmpiricalNormalization):
                raise ValueError(
                    f"the checkpoint was trained with normalized observations ('{key}'), but this algorithm has no "
                    "normalizer: set empirical_normalization=True, or the policy sees inputs it was not trained on"
                )
            states[key] = state
        return states

    def _load_lr_scheduler(self, state: Mapping[str, Any] | None) -> None:
        if self.lr_scheduler is None:
            if state is not None:
                logger.warning("the checkpoint has a learning-rate scheduler, this algorithm has none: ignored")
        elif state is None:
            logger.warning("the checkpoint has no learning-rate scheduler state: the scheduler starts again")
        else:
            self.lr_scheduler.load_state_dict(dict(state))

    def rank_state_dict(self) -> dict[str, Any]:
        """The parts of `state_dict` that differ between ranks: what holds values of single environments."""
        parts = {"rnd_state_dict": self.rnd, "reward_norm_state_dict": self.reward_normalizer}
        return {key: module.state_dict() for key, module in parts.items() if module is not None}

    def pin_hidden_states(self) -> None:
        """Copy the hidden states into the fixed buffers that a captured rollout reads."""
        if isinstance(self.actor_critic, StatefulPolicy):
            self.actor_critic.pin_hidden_states()

    def rollout_state(self) -> dict[str, Any]:
        """The state of the running episodes outside of the environment: the hidden states of the policy."""
        policy = self.actor_critic
        return {"memory": policy.hidden_state_dict() if isinstance(policy, StatefulPolicy) else {}}

    def load_rollout_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `rollout_state`."""
        if isinstance(self.actor_critic, StatefulPolicy):
            self.actor_critic.load_hidden_state_dict(state["memory"])


# Possible values of each number: whether a value is one, and what to type.
_POSSIBLE: dict[str, tuple[Callable[[float], bool], str]] = {
    "num_learning_epochs": (lambda value: value >= 1, "1 or more, for example 5"),
    "num_mini_batches": (lambda value: value >= 1, "1 or more, for example 4"),
    "gamma": (lambda value: 0 <= value <= 1, "a number from 0 to 1, for example 0.99"),
    "lam": (lambda value: 0 <= value <= 1, "a number from 0 to 1, for example 0.95"),
    "clip_param": (lambda value: value > 0, "a number above 0, for example 0.2"),
    "learning_rate": (lambda value: 0 <= value < math.inf, "a finite number of at least 0, for example 1e-3"),
    "value_loss_coef": (math.isfinite, "a finite number, for example 1.0"),
    "entropy_coef": (math.isfinite, "a finite number, for example 0.01"),
    "reward_clip": (lambda value: value > 0, "a number above 0, for example 10.0"),
    "desired_kl": (lambda value: value is None or value >= 0, "a number of at least 0, for example 0.01"),
}


def _check_numbers(settings: Mapping[str, Any]) -> None:
    """ValueError for a hyper-parameter with which PPO cannot train; comparisons with NaN are false."""
    for name, (is_possible, possible) in _POSSIBLE.items():
        if not is_possible(settings[name]):
            raise ValueError(f"{name} is {settings[name]}, which cannot train; use {possible}")


def _check_arguments(actor_critic: object, schedule: str, mixed_precision: str | None, max_grad_norm: float) -> None:
    if not isinstance(actor_critic, nn.Module):
        raise TypeError(
            f"PPO needs a policy (torch.nn.Module) as its first argument, got {type(actor_critic).__name__}; "
            "build one with st_rl.modules.build_actor_critic(env, class_name, policy_cfg)"
        )
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule '{schedule}'; use one of: {', '.join(SCHEDULES)}")
    if mixed_precision is not None and mixed_precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ValueError(f"unknown mixed_precision '{mixed_precision}'; use None (float32) or one of: {known}")
    if max_grad_norm <= 0:
        raise ValueError(f"max_grad_norm must be above 0, got {max_grad_norm}; use float('inf') for no limit")
