"""Proximal policy optimization, and the update loop that all algorithms share."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from st_rl.algorithms.losses import (
    adapt_learning_rate,
    adapted_learning_rate,
    clipped_surrogate,
    clipped_value,
    gaussian_kl,
)
from st_rl.algorithms.optimizer import GuardedOptimizer
from st_rl.algorithms.rnd_trainer import RndTrainer
from st_rl.algorithms.symmetry_augmentation import SymmetryAugmentation
from st_rl.engine import Engine
from st_rl.env.utils import split_final_observations
from st_rl.modules.networks.memory import preserve_hidden_states
from st_rl.modules.normalizer import EmpiricalNormalization, normalize_without_update
from st_rl.modules.state_adaptor import PrivilegeEstimatorMixin
from st_rl.modules.state_estimator import EstimatorMixin
from st_rl.storage import RolloutStorage, storage_classes
from st_rl.utils.averages import RunningAverages
from st_rl.utils.config import accepted_keys, register_known_keys, report_unused_keys
from st_rl.utils.distributed import average
from st_rl.utils.log import logger
from st_rl.utils.registry import resolve_class

SCHEDULES = ("fixed", "adaptive")
PRECISIONS = {"bf16": torch.bfloat16}


class PPO:
    """Clipped-surrogate PPO; owns the policy, its optimizer, the rollout storage and the observation normalizers.

    A variant adds named losses in `compute_losses`, a reward term in `process_env_step` or a label in `act`. The weight
    of the loss `x` is the attribute `x_coef`, default 1.
    """

    # The class of the rollout storage; a variant that stores more per step replaces it.
    storage_class: type[RolloutStorage] = RolloutStorage
    # Whether a loss trains the policy's state estimator or adaptor.
    trains_estimates: bool = False

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        register_known_keys(accepted_keys(cls))

    def __init__(
        self,
        actor_critic: Any,
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
        clip_min_std: Any = 1e-15,
        optimizer_class_name: str = "Adam",
        schedule: str = "fixed",
        desired_kl: float | None = 0.01,
        device: torch.device | str = "cpu",
        empirical_normalization: bool = False,
        *args: Any,
        mixed_precision: str | None = None,
        **kwargs: Any,
    ):
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
        self.device = device
        # What follows the iteration: `follow(iteration)` is called whenever it is set, always on the host.
        self._schedules: list[Any] = []
        self.mixed_precision = mixed_precision
        self.actor_critic: Any = actor_critic.to(device)
        self.num_learning_epochs = num_learning_epochs
        self.num_mini_batches = num_mini_batches
        self.clip_param = clip_param
        self.gamma = gamma
        self.lam = lam
        self.value_loss_coef = value_loss_coef
        self.entropy_coef = entropy_coef
        self.surrogate_loss_coef = 1.0
        self.max_grad_norm = max_grad_norm
        self.use_clipped_value_loss = use_clipped_value_loss
        self.clip_min_std = (
            torch.tensor(clip_min_std, device=device) if isinstance(clip_min_std, (tuple, list)) else clip_min_std
        )
        self.optimizer_class_name = optimizer_class_name
        self.schedule = schedule
        self.desired_kl = desired_kl
        self.empirical_normalization = empirical_normalization
        self.current_learning_iteration = 0
        self.lr_scheduler: LRScheduler | None = None
        # Set by init_storage, which knows the environment's sizes.
        self.storage: Any = None
        self.transition: Any = None
        self.obs_normalizer: nn.Module = nn.Identity().to(device)
        self.critic_obs_normalizer: nn.Module = nn.Identity().to(device)
        self._averages = RunningAverages()
        # How the steps of the update run; the runner sets a faster one.
        self.engine = Engine("eager", device)

        if args:
            logger.warning(f"{type(self).__name__} ignores {len(args)} positional arguments it does not know: {args}")
        rnd_cfg, symmetry_cfg = kwargs.pop("rnd_cfg", None), kwargs.pop("symmetry_cfg", None)
        strict = bool(kwargs.pop("strict", False))
        report_unused_keys(kwargs, type(self).__name__, accepted_keys(type(self)) | {"rnd_cfg", "symmetry_cfg"}, strict)
        self._rnd_trainer = RndTrainer(rnd_cfg, device, strict) if rnd_cfg else None
        self.rnd = self._rnd_trainer.rnd if self._rnd_trainer else None
        self.rnd_optimizer = self._rnd_trainer.optimizer if self._rnd_trainer else None
        self.intrinsic_rewards: Tensor | None = None
        self.symmetry = SymmetryAugmentation(symmetry_cfg, self.actor_critic, device) if symmetry_cfg else None
        self.mirror_loss_coef = self.symmetry.mirror_loss_coef if self.symmetry else 0.0
        self._optimizer = GuardedOptimizer(optimizer_class_name, self._policy_parameters(), learning_rate, device)
        if isinstance(actor_critic, EstimatorMixin | PrivilegeEstimatorMixin) and not self.trains_estimates:
            logger.warning(
                f"{type(self).__name__} does not train what {type(actor_critic).__name__} estimates, which stays as it "
                "is; EstimatorPPO and EstimatorTPPO train it"
            )

    # ---- what it is made of --------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the policy's parameters; a subclass may put its own in the place of the configured one."""
        return self._optimizer.optimizer

    @optimizer.setter
    def optimizer(self, value: torch.optim.Optimizer) -> None:
        self._optimizer.adopt(value)

    @property
    def current_learning_iteration(self) -> int:
        """The iteration that the schedules are at."""
        return vars(self)["current_learning_iteration"]

    @current_learning_iteration.setter
    def current_learning_iteration(self, value: int) -> None:
        vars(self)["current_learning_iteration"] = value
        for schedule in self._schedules:
            schedule.follow(value)

    @property
    def learning_rate(self) -> float | Tensor:
        """The learning rate: a number, or a 0-d tensor on a device that must not be waited for."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float | Tensor) -> None:
        self._optimizer.learning_rate = value

    def init_obs_norm(self, num_obs: int, num_critic_obs: int) -> None:
        """Make the observation normalisers: running statistics, or nothing."""
        if not self.empirical_normalization:
            logger.info("observations are not normalised (empirical_normalization is off)")
            self.obs_normalizer, self.critic_obs_normalizer = nn.Identity(), nn.Identity()
            return
        self.obs_normalizer = EmpiricalNormalization(shape=[num_obs], until=1.0e8).to(self.device)
        self.critic_obs_normalizer = EmpiricalNormalization(shape=[num_critic_obs], until=1.0e8).to(self.device)

    def init_storage(
        self,
        num_envs: int,
        num_transitions_per_env: int,
        actor_obs_shape: Any,
        critic_obs_shape: Any,
        action_shape: Any,
        **kwargs: Any,
    ) -> None:
        """Allocate the rollout storage on the algorithm's device; `class_name` names another class for it."""
        if kwargs.get("class_name"):
            self.storage_class = resolve_class(
                kwargs["class_name"], storage_classes(), "storage class", self.storage_class
            )
        kwargs.pop("class_name", None)
        if self.rnd is not None:
            kwargs["rnd_state_shape"] = [self.rnd.num_states]
        if kwargs.get("obs_dtypes"):
            kwargs |= self._segments_to_compress(kwargs["obs_dtypes"])
        self.transition = self.storage_class.Transition()
        self.storage = self.storage_class(
            num_envs,
            num_transitions_per_env,
            actor_obs_shape,
            critic_obs_shape,
            action_shape,
            device=self.device,
            **kwargs,
        )

    def _segments_to_compress(self, obs_dtypes: Mapping[str, str]) -> dict[str, Any]:
        """What a storage needs to know of components that it keeps in other types."""
        if "uint8" in obs_dtypes.values() and self.empirical_normalization:
            raise ValueError(
                f"obs_dtypes={dict(obs_dtypes)}: uint8 keeps numbers from 0 to 1, normalised observations are larger; "
                "use float16, or empirical_normalization=False"
            )
        policy = self.actor_critic
        return {"obs_segments": policy.obs_segments, "critic_obs_segments": policy.critic_obs_segments}

    @property
    def required_info_keys(self) -> tuple[str, ...]:
        """The numbers in the environment's infos, or among its observation groups, that something is learned from."""
        return () if self.rnd is None else ("rnd_state",)

    def _policy_parameters(self) -> Iterable[nn.Parameter]:
        """What the optimiser of the policy trains."""
        return self.actor_critic.parameters()

    def _networks(self) -> list[nn.Module]:
        networks = [self.actor_critic, self.obs_normalizer, self.critic_obs_normalizer]
        return networks if self.rnd is None else [*networks, self.rnd]

    def train_mode(self) -> None:
        """Let networks and normalisers learn."""
        for network in self._networks():
            network.train()

    def eval_mode(self) -> None:
        """Freeze the statistics of networks and normalisers."""
        for network in self._networks():
            network.eval()

    def test_mode(self) -> None:
        """The same as `eval_mode`."""
        self.eval_mode()

    # ---- rollout -------------------------------------------------------------------------------------------------

    def act(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Draw actions `(N, A)` for normalised observations and remember what the update needs."""
        return self._record_transition(self._policy_step, obs, critic_obs)

    def _record_transition(
        self, decide: Callable[..., dict[str, Tensor]], obs: Tensor, critic_obs: Tensor, *more: Any
    ) -> Tensor:
        """Keep what `decide` says of normalised observations for the storage; returns the actions `(N, A)`."""
        policy, transition = self.actor_critic, self.transition
        if policy.is_recurrent:
            transition.hidden_states = policy.get_hidden_states()
        if self._draws_once and not self._acts_from_memory:
            decide = self.engine.compiled(decide)
        for name, value in decide(obs, critic_obs, *more).items():
            setattr(transition, name, value)
        transition.observations = obs
        transition.critic_observations = critic_obs
        return transition.actions

    @property
    def _acts_from_memory(self) -> bool:
        """Whether a network that takes part in acting is recurrent, which the compiler leaves alone."""
        return self.actor_critic.is_recurrent

    @property
    def _draws_once(self) -> bool:
        """Whether acting draws random numbers only once, so that the compiler cannot change the order of draws."""
        return True

    def _policy_step(self, obs: Tensor, critic_obs: Tensor) -> dict[str, Tensor]:
        """What the policy does and thinks of normalised observations, by the names of a transition."""
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
        """Store the step that follows `act`: rewards and dones `(N,)`, with bonus and time-out correction."""
        transition = self.transition
        # A copy: a storage of somebody's own may write into it.
        transition.rewards = rewards.clone()
        transition.dones = dones
        if self.rnd is not None:
            rnd_state = (infos.get("observations") or {}).get("rnd_state")
            if rnd_state is None:
                raise KeyError(
                    "infos['observations']['rnd_state'] is missing: the environment must deliver the states whose "
                    "novelty is rewarded in every step"
                )
            transition.rnd_state = rnd_state.to(self.device)
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(transition.rnd_state)
            transition.rewards = transition.rewards + self.intrinsic_rewards
        correction = self._time_out_correction(infos)
        if correction is not None:
            transition.rewards = transition.rewards + correction
        for field, value in (("next_observations", next_obs), ("next_critic_observations", next_critic_obs)):
            if hasattr(transition, field):
                setattr(transition, field, value)
        self.storage.add_transitions(transition)
        transition.clear()
        self.actor_critic.reset(dones)

    def _time_out_correction(self, infos: Mapping[str, Any]) -> Tensor | None:
        """What a robot would still have earned had its episode not run out of time, `(N,)`; zero for the others.

        None where there is nothing to correct.
        """
        if infos.get("time_outs") is None:
            return None
        time_outs = infos["time_outs"].to(self.device)
        if time_outs.device.type == "cpu" and not bool(time_outs.any()):
            return None
        time_outs = time_outs.reshape(-1) > 0
        final, policy = self._final_critic_observation(infos), self.actor_critic
        bootstrap = self._bootstrap if policy.is_recurrent else self.engine.fused(self._bootstrap)
        with preserve_hidden_states(policy):
            return bootstrap(time_outs, self.transition.values, final)

    def _bootstrap(self, time_outs: Tensor, values: Tensor, final: Tensor | None) -> Tensor:
        """Discounted values of the last observations `final (N, Oc)`, or else `values (N, 1)`, where time ran out."""
        if final is not None:
            final_values = self.actor_critic.evaluate(final).detach()
            # A last observation that holds NaN or Inf gives no value; the state before it still does.
            values = torch.where(torch.isfinite(final_values), final_values, values)
        # `where`, not a product: rows of robots that go on may hold anything.
        return torch.where(time_outs, self.gamma * values.squeeze(-1), 0.0)

    def _final_critic_observation(self, infos: Mapping[str, Any]) -> Tensor | None:
        """The last observation `(N, Oc)` of finished episodes, normalised; None where none fits the critic."""
        final = split_final_observations(infos)
        if final is None or final.shape[-1] != self.transition.critic_observations.shape[-1]:
            return None
        groups = infos["final_observations"]
        if (
            self.storage.critic_observations is not None
            and isinstance(groups, Mapping)
            and groups.get("critic") is None
        ):
            # The actor's last observation says nothing to a critic that sees another one, even of the same width.
            return None
        return normalize_without_update(self._critic_stream_normalizer, final.to(self.device))

    @property
    def _critic_stream_normalizer(self) -> nn.Module:
        """What normalised the critic's observations; without its own, it sees the actor's as the actor does."""
        sees_actors = self.storage is not None and self.storage.critic_observations is None
        return self.obs_normalizer if sees_actors else self.critic_obs_normalizer

    def compute_returns(self, last_critic_obs: Tensor) -> None:
        """Bootstrap with the value of the last state and compute returns and advantages in the storage."""
        with preserve_hidden_states(self.actor_critic):
            last_values = self.actor_critic.evaluate(last_critic_obs).detach()
        self.storage.compute_returns(last_values, self.gamma, self.lam)

    def collect_transition_from_dataset(self, transition: Any, infos: Mapping[str, Any]) -> None:
        """Learn from recorded transitions; PPO itself cannot."""
        raise NotImplementedError(f"{type(self).__name__} cannot learn from a dataset; TPPO can")

    # ---- learning ------------------------------------------------------------------------------------------------

    def update(self, current_learning_iteration: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Learn from the stored rollout; return the mean losses and statistics, name -> 0-d tensor."""
        self.current_learning_iteration = current_learning_iteration
        self._averages = RunningAverages()
        settings = (self._settings(), self._optimizer.settings)
        learned_from: list[Any] = []
        for number, minibatch in enumerate(self._mini_batches()):
            if self._optimizer.waits:
                # In a later epoch nothing but numbers in tensors has changed since this mini-batch was met.
                is_known = any(minibatch is known for known in learned_from)
                with self.engine.skip_guards(is_known):
                    measured = self.minibatch_step(minibatch)
                if not is_known:
                    learned_from.append(minibatch)
            else:
                measured = self.engine.run_step(
                    self.minibatch_step, minibatch, settings, number % self.num_mini_batches
                )
            self._averages.add(measured)
        self.storage.clear()
        means = self._averages.means()
        losses = {name.removeprefix("loss/"): value for name, value in means.items() if name.startswith("loss/")}
        stats = {name.removeprefix("stat/"): value for name, value in means.items() if name.startswith("stat/")}
        return losses, stats

    def _mini_batches(self) -> Iterator[Any]:
        """The mini-batches of all epochs."""
        storage, sizes = self.storage, (self.num_mini_batches, self.num_learning_epochs)
        if not self.actor_critic.is_recurrent:
            return storage.mini_batch_generator(*sizes)
        storage.trajectory_capacity = self.engine.static_size(lambda: storage.max_trajectories(self.num_mini_batches))
        return storage.reccurent_mini_batch_generator(*sizes)

    def _settings(self) -> tuple[tuple[str, Any], ...]:
        """Every plain number and word that the losses may read; the engine starts anew when one changes."""
        plain = (bool, int, float, str)
        names = sorted(set(vars(self)) - {"current_learning_iteration"})
        own = tuple((name, vars(self)[name]) for name in names if isinstance(vars(self)[name], plain))
        # Policies from elsewhere need not say.
        return own + getattr(self.actor_critic, "acting_settings", ())

    def rollout_settings(self) -> tuple[tuple[str, Any], ...]:
        """Every plain number and word that acting and storing may read."""
        return self._settings()

    def minibatch_step(self, minibatch: Any) -> dict[str, Tensor]:
        """One gradient step on one mini-batch; returns its losses, statistics and gradient norm as 0-d tensors."""
        # Policies from elsewhere draw actions that nobody looks at.
        no_sampling = getattr(self.actor_critic, "no_sampling", nullcontext)
        objective = self.engine.compiled(self._objective, converts=self.mixed_precision is not None)
        with self._precision(), no_sampling():
            total, measured, kl = objective(minibatch)
        if kl is not None:
            self._adapt_learning_rate(kl)
        if self._rnd_trainer is not None:
            measured["loss/rnd"] = self._rnd_trainer.learn(minibatch.rnd_state)
        measured["gradient_norm"] = self._optimizer.step(total, self.max_grad_norm, self.engine.fused)
        if hasattr(self.actor_critic, "clip_std"):
            self.actor_critic.clip_std(min=self.clip_min_std)
        return {name: value.detach() for name, value in measured.items()}

    def _objective(self, minibatch: Any) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """The weighted sum of all losses, what is worth showing of them, and a KL divergence left to adapt to."""
        losses, inter_vars, stats = self.compute_losses(minibatch)
        weighted = [getattr(self, f"{name}_coef", 1.0) * value for name, value in losses.items()]
        total = torch.stack(weighted).sum()
        measured = {f"loss/{name}": value.detach() for name, value in losses.items()}
        measured["loss/total_loss"] = total.detach()
        measured |= {f"stat/{name}": value.detach() for name, value in stats.items()}
        # As written, `compute_losses` has adapted the learning rate; traced, it could not.
        left_to_do = "kl" in inter_vars and torch.compiler.is_compiling()
        return total, measured, inter_vars["kl"].mean() if left_to_do else None

    def _precision(self) -> AbstractContextManager[Any]:
        """The hidden layers in less than float32 if that is asked for; weights and everything else stay as they are."""
        if self.mixed_precision is None:
            return nullcontext()
        # No cache of converted weights: a captured step must convert them anew each time.
        device_type = torch.device(self.device).type
        return torch.autocast(device_type, PRECISIONS[self.mixed_precision], cache_enabled=False)

    def bad_numbers(self) -> dict[str, int]:
        """What was not finite in the last update, name -> number of mini-batches; waits for the device."""
        return {name.split("/")[-1]: count for name, count in self._averages.bad_counts().items()}

    def compute_losses(self, minibatch: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """The named losses of a mini-batch, values worth keeping, and statistics."""
        policy, hidden = self.actor_critic, self._initial_hidden_states(minibatch)
        size = minibatch.actions.shape[0]
        mirror_loss: Tensor | None = None
        if self.symmetry is not None:
            if self.mirror_loss_coef != 0.0:
                # Before `act`, so that what the policy keeps of its last act is of the mini-batch.
                mirror_loss = self.symmetry.mirror_loss(policy, minibatch.obs, self.obs_normalizer)
            minibatch = self.symmetry.augmented(minibatch, self.obs_normalizer, self._critic_stream_normalizer)
        policy.act(minibatch.obs, masks=minibatch.masks, hidden_states=None if hidden is None else hidden.actor)
        log_prob = policy.get_actions_log_prob(minibatch.actions)
        values = policy.evaluate(
            minibatch.critic_obs, masks=minibatch.masks, hidden_states=None if hidden is None else hidden.critic
        ).squeeze(-1)

        inter_vars: dict[str, Tensor] = {}
        if self.desired_kl is not None and self.schedule == "adaptive":
            with torch.no_grad():
                # Mirrored samples were never drawn from the old policy: the step size is judged on the real ones.
                mean, std = policy.action_mean[:size], policy.action_std[:size]
                inter_vars["kl"] = gaussian_kl(mean, std, minibatch.old_mu[:size], minibatch.old_sigma[:size])
            # Traced code only computes: whoever runs it adapts the rate afterwards.
            if not torch.compiler.is_compiling():
                self._adapt_learning_rate(inter_vars["kl"])

        ratio = torch.exp(log_prob - minibatch.old_actions_log_prob.squeeze(-1))
        surrogate, clipped = clipped_surrogate(ratio, minibatch.advantages.squeeze(-1), self.clip_param)
        inter_vars |= {"ratio": ratio, "surrogate": surrogate, "surrogate_clipped": clipped}
        losses = {"surrogate_loss": torch.max(surrogate, clipped).mean()}

        returns = minibatch.returns.squeeze(-1)
        value_errors = (values - returns).square()
        if self.use_clipped_value_loss:
            value_clipped = clipped_value(values, minibatch.values.squeeze(-1), self.clip_param)
            inter_vars["value_clipped"] = value_clipped
            value_errors = torch.max(value_errors, (value_clipped - returns).square())
        losses["value_loss"] = value_errors.mean()
        entropy = self._policy_entropy()
        if entropy is not None:
            losses["entropy"] = -entropy.mean()
        if mirror_loss is not None:
            losses["mirror_loss"] = mirror_loss
        return losses, inter_vars, {}

    def _initial_hidden_states(self, minibatch: Any) -> Any:
        """The hidden states that the trajectories of a mini-batch start from, or None."""
        return minibatch.hidden_states

    def _policy_entropy(self) -> Tensor | None:
        """The entropy of the policy's last distribution; None for a policy that offers none."""
        try:
            return self.actor_critic.entropy
        except (AttributeError, NotImplementedError):
            return None

    @torch.no_grad()
    def _adapt_learning_rate(self, kl: Tensor) -> None:
        """Follow the size `kl (...)` of the policy's step, averaged over samples and ranks."""
        kl = average(kl.mean() if kl.dim() else kl)
        rate, desired_kl = self.learning_rate, float(self.desired_kl or 0.0)
        if isinstance(rate, Tensor):
            self.learning_rate = self.engine.fused(adapted_learning_rate)(rate, kl, desired_kl)
        else:
            self.learning_rate = adapt_learning_rate(rate, float(kl), desired_kl)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything of the algorithm that a checkpoint keeps."""
        state: dict[str, Any] = {
            "model_state_dict": self.actor_critic.state_dict(),
            "optimizer_state_dict": self._optimizer.optimizer.state_dict(),
        }
        if self.lr_scheduler is not None:
            state["lr_scheduler_state_dict"] = self.lr_scheduler.state_dict()
        for key, normalizer in self._normalizers().items():
            if isinstance(normalizer, EmpiricalNormalization):
                state[key] = normalizer.state_dict()
        return state if self._rnd_trainer is None else state | self._rnd_trainer.state_dict()

    def _normalizers(self) -> dict[str, nn.Module]:
        """Checkpoint key -> normaliser."""
        return {
            "obs_norm_state_dict": self.obs_normalizer,
            "critic_obs_norm_state_dict": self.critic_obs_normalizer,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; everything but the model may be missing."""
        # Refused before anything is changed.
        statistics = self._normalizer_states(state_dict)
        self.actor_critic.load_state_dict(state_dict["model_state_dict"])
        if "optimizer_state_dict" in state_dict:
            self._optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        self._load_lr_scheduler(state_dict.get("lr_scheduler_state_dict"))
        for key, state in statistics.items():
            self._normalizers()[key].load_state_dict(state)
        if self._rnd_trainer is not None:
            self._rnd_trainer.load_state_dict(state_dict)
        # Optimisers have new tensors now, and captured steps would go on with the old ones.
        self.engine.discard_graphs()

    def _normalizer_states(self, state_dict: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The statistics in a checkpoint by our key; ValueError when there is no normaliser to take them."""
        upstream_names = {"critic_obs_norm_state_dict": "privileged_obs_norm_state_dict"}
        states: dict[str, Mapping[str, Any]] = {}
        for key, normalizer in self._normalizers().items():
            state = state_dict.get(key) or state_dict.get(upstream_names.get(key, key))
            if not state:
                continue
            if not isinstance(normalizer, EmpiricalNormalization):
                raise ValueError(
                    f"the checkpoint was trained with normalised observations ('{key}'), but this algorithm has no "
                    "normaliser: set empirical_normalization=True, or the policy sees numbers it was not trained on"
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

    # ---- between two rollouts ------------------------------------------------------------------------------------

    def pin_hidden_states(self) -> None:
        """Keep the present state of all memories where the next rollout will look for it."""
        self.actor_critic.pin_hidden_states()

    def rollout_state(self) -> dict[str, Any]:
        """What the next rollout continues from beside the environment: the memories of the running episodes."""
        return {"memory": self.actor_critic.hidden_state_dict()}

    def load_rollout_state(self, state: Mapping[str, Any]) -> None:
        """Continue the episodes of which `rollout_state` told."""
        self.actor_critic.load_hidden_state_dict(state["memory"])


register_known_keys(accepted_keys(PPO) | {"rnd_cfg", "symmetry_cfg"})
