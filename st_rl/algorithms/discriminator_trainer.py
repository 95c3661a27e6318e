"""Training of the discriminator: its own optimizer, a replay buffer, schedules and a warning when it saturates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from st_rl.algorithms.optimizer import GuardedOptimizer
from st_rl.modules.amp_discriminator import AMPDiscriminator
from st_rl.modules.normalizer import RunningMeanStd
from st_rl.storage.replay_buffer import ReplayBuffer
from st_rl.utils.config import drop_none, report_unused_keys, unknown_name_message
from st_rl.utils.log import logger

SCHEDULED_WEIGHTS = ("style_reward_coef", "task_reward_lerp", "discriminator_grad_pen", "discriminator_loss_coef")
SATURATED_ACCURACY = 0.99
LEAST_VALUES = {"update_interval": 1, "replay_size": 0, "replay_iterations": 1, "saturation_patience": 1}


@dataclass(frozen=True)
class DiscriminatorOptions:
    """The settings `discriminator_cfg`; by default the discriminator is trained as a part of the policy."""

    learning_rate: float | None = None
    """Constant learning rate of its own optimizer; None: the policy's optimizer, rate and gradient clipping."""
    weight_decay: float = 0.0
    """Weight decay; needs its own optimizer."""
    update_interval: int = 1
    """Mini-batches per step of the discriminator; more than 1 needs its own optimizer."""
    logit_reg_coef: float = 0.0
    """Weight of `discriminator_logit_loss`, the squared norm of its last layer's weights."""
    replay_size: int = 0
    """Size of the replay buffer of policy transitions; half of the policy loss then comes from it."""
    replay_iterations: int = 100
    """Iterations that the replay buffer spans."""
    mask_resets: bool = False
    """Whether transitions across a reset get no style reward and no discriminator loss."""
    schedules: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """Weight (one of SCHEDULED_WEIGHTS) -> points (iteration, value), interpolated linearly."""
    saturation_patience: int = 50
    """Consecutive iterations with an accuracy above 0.99 before a warning."""

    @staticmethod
    def read(config: Mapping[str, Any] | None, strict: bool = False) -> "DiscriminatorOptions":
        """The options of a configuration; ValueError for invalid values and, if `strict`, for unknown keys."""
        known = [option.name for option in fields(DiscriminatorOptions)]
        given = drop_none(config or {})
        strict = bool(given.pop("strict", strict))
        unused = {key: given.pop(key) for key in list(given) if key not in known}
        report_unused_keys(unused, "discriminator_cfg", known, strict)
        options = DiscriminatorOptions(**given)
        for name, least in LEAST_VALUES.items():
            value = vars(options)[name]
            if value < least:
                raise ValueError(f"discriminator_cfg.{name} is {value}; it must be at least {least}")
        for name, points in options.schedules.items():
            if name not in SCHEDULED_WEIGHTS:
                raise ValueError(unknown_name_message("weight in discriminator_cfg.schedules", name, SCHEDULED_WEIGHTS))
            iterations = [point[0] for point in points if len(point) == 2]
            if not points or len(iterations) != len(points) or sorted(set(iterations)) != iterations:
                raise ValueError(
                    f"discriminator_cfg.schedules.{name} is {points}; give points [iteration, value] with rising "
                    "iterations, such as [[0, 0.1], [500, 0.5]]"
                )
        return options

    @property
    def needs_optimizer(self) -> bool:
        """Whether the discriminator cannot use the policy's optimizer."""
        return self.learning_rate is not None or self.weight_decay != 0.0 or self.update_interval > 1


def scheduled_value(points: Sequence[Sequence[float]], iteration: float) -> float:
    """Linear interpolation between points `(iteration, value)`; constant beyond them."""
    iterations, values = zip(*points)
    return float(np.interp(iteration, iterations, values))


def masked_mean(values: Tensor, mask: Tensor | None, count: Tensor | None = None) -> Tensor:
    """The mean of `values (...)` where `mask (...)`, 0 or 1, is 1; 0-d.

    With a 0-d `count`, the sum divided by it.
    """
    if mask is None:
        return values.mean()
    return (values * mask).sum() / (mask.sum().clamp(min=1.0) if count is None else count)


def differences(ref_obs: Tensor, ref_motion: Tensor, count: int = 3) -> list[tuple[int, str, str]]:
    """The columns where `ref_obs` and `ref_motion (n, Da)` differ most, as (column, mean ± std of each)."""
    sides = []
    for values in (ref_obs, ref_motion):
        side = RunningMeanStd(shape=values.shape[-1])
        side.update(values.detach().cpu().numpy())
        sides.append(side)
    own, reference = sides
    # A difference in mean or in standard deviation: either one gives the policy away.
    deviations = np.sqrt(own.var + reference.var) + 1e-8
    distance = np.abs(own.mean - reference.mean) / deviations
    distance = distance + np.abs(np.sqrt(own.var) - np.sqrt(reference.var)) / deviations
    columns = np.argsort(-distance)[:count]
    texts = [[f"{mean:.2g} ± {np.sqrt(var):.2g}" for mean, var in zip(side.mean, side.var)] for side in sides]
    return [(int(column), texts[0][column], texts[1][column]) for column in columns]


class DiscriminatorTrainer:
    """The state of a discriminator's training, apart from its weights; empty with the default options."""

    def __init__(
        self,
        options: DiscriminatorOptions,
        discriminator: AMPDiscriminator,
        optimizer_class_name: str,
        learning_rate: float,
        device: torch.device | str,
    ):
        self.options = options
        self._width = discriminator.input_dim
        rate = learning_rate if options.learning_rate is None else options.learning_rate
        self.optimizer: GuardedOptimizer | None = None
        if options.needs_optimizer:
            parameters = discriminator.parameters()
            settings = {"weight_decay": options.weight_decay} if options.weight_decay else {}
            self.optimizer = GuardedOptimizer(optimizer_class_name, parameters, rate, device, **settings)
        self.replay: ReplayBuffer | None = None
        if options.replay_size:
            # A transition is a state and its successor.
            self.replay = ReplayBuffer(-(-self._width // 2), options.replay_size, device)
        # On the device, because a captured step does not run host code again.
        self._num_mini_batches = torch.zeros((), dtype=torch.int64, device=device)
        self._num_saturated = torch.zeros((), device=device)
        self._num_watched = 0
        self._has_warned = False

    # ---- update --------------------------------------------------------------------------------------------------

    def apply_gradients(self, optimizer: GuardedOptimizer, max_grad_norm: float) -> Tensor:
        """Step its own optimizer along the current gradients if this mini-batch is due; returns their norm, 0-d."""
        skip_step = None
        if self.options.update_interval > 1:
            skip_step = self._num_mini_batches % self.options.update_interval != 0
            self._num_mini_batches.add_(1)
        return optimizer.apply_gradients(max_grad_norm, skip_step)

    @torch.no_grad()
    def insert(self, transitions: Tensor, mask: Tensor | None) -> None:
        """Insert a random part of the raw policy transitions `(n, Da)`, of those where `mask (n,)` is 1 if given."""
        if self.replay is None:
            return
        count = min(len(transitions), max(1, self.options.replay_size // self.options.replay_iterations))
        keys = torch.rand(len(transitions), device=transitions.device)
        if mask is None:
            sampled = keys.topk(count).indices
        else:
            # Valid transitions first; repeated if there are fewer than `count`.
            sampled = (keys - 2.0 * (1.0 - mask.float())).topk(count).indices
            sampled = sampled[torch.arange(count, device=sampled.device) % mask.sum().long().clamp(min=1)]
        halves = F.pad(transitions[sampled], (0, self._width % 2)).chunk(2, dim=-1)
        self.replay.insert(*halves)

    def sample(self, count: int) -> Tensor:
        """Past raw transitions `(count, Da)`, sampled with replacement."""
        if self.replay is None:
            raise RuntimeError("there is no replay buffer: set discriminator_cfg.replay_size")
        (halves,) = self.replay.feed_forward_generator(1, count)
        return torch.cat(halves, dim=-1)[:, : self._width]

    # ---- saturation ----------------------------------------------------------------------------------------------

    def is_saturated(self, expert_accuracy: Tensor, policy_accuracy: Tensor) -> bool:
        """Whether to warn: too accurate for `saturation_patience` iterations. Syncs once in that many iterations."""
        is_saturated = 0.5 * (expert_accuracy + policy_accuracy) > SATURATED_ACCURACY
        self._num_saturated.copy_(torch.where(is_saturated, self._num_saturated + 1.0, 0.0))
        self._num_watched += 1
        if self._num_watched % self.options.saturation_patience:
            return False
        stays = float(self._num_saturated) >= self.options.saturation_patience
        is_new, self._has_warned = stays and not self._has_warned, stays
        return is_new

    def warn_saturated(self, ref_obs: Tensor, ref_motion: Tensor) -> None:
        """Warn of saturation and name the features in which `ref_obs` and `ref_motion (n, Da)` differ most."""
        features = ", ".join(
            f"{column} ({own} against {other})" for column, own, other in differences(ref_obs, ref_motion)
        )
        logger.warning(
            f"the discriminator has been saturated for {self.options.saturation_patience} iterations (accuracy above "
            f"{SATURATED_ACCURACY}), so the style reward carries little information. Policy and reference "
            f"differ most in features {features}: check order, units and rate of both. Else raise "
            "discriminator_grad_pen, lower discriminator_cfg.learning_rate, raise update_interval, or set "
            "replay_size"
        )

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The parts of a checkpoint by key."""
        state: dict[str, Any] = {}
        if self.optimizer is not None:
            state["discriminator_optimizer_state_dict"] = {
                **self.optimizer.optimizer.state_dict(),
                "num_mini_batches": self._num_mini_batches,
            }
        if self.replay is not None:
            state["discriminator_replay_state_dict"] = self.replay.state_dict()
        return state

    def check(self, state_dict: Mapping[str, Any]) -> None:
        """Raise ValueError for a checkpoint with other optimizers than this algorithm's."""
        own = state_dict.get("discriminator_optimizer_state_dict")
        if "optimizer_state_dict" in state_dict and (own is None) != (self.optimizer is None):
            has, has_not = ("this algorithm", "the checkpoint") if own is None else ("the checkpoint", "this algorithm")
            raise ValueError(
                f"{has} gives the discriminator its own optimizer (learning_rate, weight_decay or update_interval "
                f"in discriminator_cfg), {has_not} does not; use the same settings or load with load_optimizer=False"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the parts that a checkpoint has."""
        own = state_dict.get("discriminator_optimizer_state_dict")
        if own is not None and self.optimizer is not None:
            self.optimizer.load_state_dict(own)
            self._num_mini_batches.copy_(own["num_mini_batches"])
        if self.replay is not None and "discriminator_replay_state_dict" in state_dict:
            self.replay.load_state_dict(state_dict["discriminator_replay_state_dict"])
        elif self.replay is not None and "optimizer_state_dict" in state_dict:
            logger.warning("the checkpoint has no replay buffer for the discriminator: it starts empty")
