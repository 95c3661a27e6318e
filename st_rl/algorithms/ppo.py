"""Proximal policy optimisation, and the one update loop that every algorithm of this library shares."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.algorithms.acting_algorithm import ActingAlgorithm
from st_rl.algorithms.losses import (
    adapt_learning_rate,
    adapted_learning_rate,
    clipped_surrogate,
    clipped_value,
    gaussian_kl,
)
from st_rl.algorithms.optimizer import GuardedOptimizer
from st_rl.algorithms.rnd_trainer import RndTrainer
from st_rl.algorithms.saved_algorithm import SavedAlgorithm
from st_rl.algorithms.symmetry_augmentation import SymmetryAugmentation
from st_rl.engine import Engine
from st_rl.modules.normalizer import EmpiricalNormalization
from st_rl.modules.state_adaptor import PrivilegeEstimatorMixin
from st_rl.modules.state_estimator import EstimatorMixin
from st_rl.storage.rollout_storage import RolloutStorage
from st_rl.utils.averages import RunningAverages
from st_rl.utils.config import accepted_keys, register_known_keys, report_unused_keys
from st_rl.utils.distributed import average
from st_rl.utils.log import logger

SCHEDULES = ("fixed", "adaptive")
PRECISIONS = {"bf16": torch.bfloat16}


class PPO(ActingAlgorithm, SavedAlgorithm):
    """Clipped-surrogate PPO; owns the policy, its optimiser, the rollout storage and the observation normalisers.

    A variant adds named losses in `compute_losses`, a reward term in `process_env_step` or a label in `act`; the loop
    over mini-batches and the gradient step are written here and know nothing of it. The weight of the loss `x` is the
    attribute `x_coef`, or 1.
    """

    # What keeps the rollout; a variant that stores more per step names another class.
    storage_class: type[RolloutStorage] = RolloutStorage
    # Whether there is a loss for what the policy estimates.
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
        """Allocate the rollout storage on the algorithm's device."""
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


register_known_keys(accepted_keys(PPO) | {"rnd_cfg", "symmetry_cfg"})
