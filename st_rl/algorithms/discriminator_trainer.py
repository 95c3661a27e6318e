"""What keeps a discriminator useful: its own optimiser, past transitions, schedules and a watch on its accuracy."""

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
    """The settings `discriminator_cfg`; by default the discriminator is one more part of the policy."""

    learning_rate: float | None = None
    """Constant rate of an optimiser of its own; None leaves it in the policy's, with its rate and gradient clipping."""
    weight_decay: float = 0.0
    """Weight decay; gives it an optimiser of its own."""
    update_interval: int = 1
    """It learns from every so many-th mini-batch; more than 1 gives it an optimiser of its own."""
    logit_reg_coef: float = 0.0
    """Weight of `discriminator_logit_loss`, the squared length of its last layer's weights."""
    replay_size: int = 0
    """Number of past policy transitions to keep; it then learns as much from them as from new ones."""
    replay_iterations: int = 100
    """Iterations that the kept transitions come from."""
    mask_resets: bool = False
    """Whether transitions that end an episode, and so show the pose after the reset, are neither judged nor learned."""
    schedules: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """Weight (one of SCHEDULED_WEIGHTS) -> points (iteration, value), between which it moves in straight lines."""
    saturation_patience: int = 50
    """Iterations of an accuracy above 0.99 after which a warning comes."""

    @staticmethod
    def read(config: Mapping[str, Any] | None, strict: bool = False) -> "DiscriminatorOptions":
        """The options of a configuration; ValueError for what cannot be and, when `strict`, for what nothing knows."""
        known = [option.name for option in fields(DiscriminatorOptions)]
        given = drop_none(config or {})
        strict = bool(given.pop("strict", strict))
        unused = {key: given.pop(key) for key in list(given) if key not in known}
        report_unused_keys(unused, "discriminator_cfg", known, strict)
        options = DiscriminatorOptions(**given)
        for name, least in LEAST_VALUES.items():
            if getattr(options, name) < least:
                raise ValueError(f"discriminator_cfg.{name} is {getattr(options, name)}; it must be at least {least}")
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
        """Whether the discriminator cannot share the policy's optimiser."""
        return self.learning_rate is not None or self.weight_decay != 0.0 or self.update_interval > 1


def scheduled_value(points: Sequence[Sequence[float]], iteration: float) -> float:
    """The value at an iteration on the straight lines between points `(iteration, value)`; constant beyond them."""
    iterations, values = zip(*points)
    return float(np.interp(iteration, iterations, values))


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of `values (...)` where `mask (...)`, 0 or 1, is 1; 0-d."""
    return values.mean() if mask is None else (values * mask).sum() / mask.sum().clamp(min=1.0)


def differences(ref_obs: Tensor, ref_motion: Tensor, count: int = 3) -> list[tuple[int, str, str]]:
    """The columns in which `ref_obs` and `ref_motion (n, Da)` differ most for their spread, with mean and deviation."""
    sides = []
    for values in (ref_obs, ref_motion):
        side = RunningMeanStd(shape=values.shape[-1])
        side.update(values.detach().cpu().numpy())
        sides.append(side)
    own, reference = sides
    # Of mean and of spread: either is enough to tell two streams apart.
    deviations = np.sqrt(own.var + reference.var) + 1e-8
    distance = np.abs(own.mean - reference.mean) / deviations
    distance = distance + np.abs(np.sqrt(own.var) - np.sqrt(reference.var)) / deviations
    columns = np.argsort(-distance)[:count]
    texts = [[f"{mean:.2g} ± {np.sqrt(var):.2g}" for mean, var in zip(side.mean, side.var)] for side in sides]
    return [(int(column), texts[0][column], texts[1][column]) for column in columns]


class DiscriminatorTrainer:
    """The state that a discriminator's training needs beyond its weights; empty with the default options."""

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
        self.stepper: GuardedOptimizer | None = None
        if options.needs_optimizer:
            parameters = discriminator.parameters()
            self.stepper = GuardedOptimizer(optimizer_class_name, parameters, rate, device, options.weight_decay)
        self.replay: ReplayBuffer | None = None
        if options.replay_size:
            # A transition is a state and its successor, frame after frame.
            self.replay = ReplayBuffer(-(-self._width // 2), options.replay_size, device)
        # Counted on the device, because a captured step repeats what the host did once.
        self._num_mini_batches = torch.zeros((), dtype=torch.int64, device=device)
        self._saturated_for = torch.zeros((), device=device)
        self._num_watched = 0
        self._has_warned = False

    # ---- learning ------------------------------------------------------------------------------------------------

    def apply_gradients(self, stepper: GuardedOptimizer, max_grad_norm: float) -> Tensor:
        """Step its own optimizer along the present gradients if this mini-batch is due; returns their norm, 0-d."""
        skip_step = None
        if self.options.update_interval > 1:
            skip_step = self._num_mini_batches % self.options.update_interval != 0
            self._num_mini_batches.add_(1)
        return stepper.apply_gradients(max_grad_norm, skip_step)

    @torch.no_grad()
    def remember(self, transitions: Tensor, mask: Tensor | None) -> None:
        """Keep a random part of raw policy transitions `(n, Da)`, of those where `mask (n,)` is 1 if it is given."""
        if self.replay is None:
            return
        count = min(len(transitions), max(1, self.options.replay_size // self.options.replay_iterations))
        lot = torch.rand(len(transitions), device=transitions.device)
        if mask is None:
            drawn = lot.topk(count).indices
        else:
            # Those that count come first; where they are too few they come again.
            drawn = (lot - 2.0 * (1.0 - mask.float())).topk(count).indices
            drawn = drawn[torch.arange(count, device=drawn.device) % mask.sum().long().clamp(min=1)]
        kept = transitions[drawn]
        halves = F.pad(kept, (0, self._width % 2)).chunk(2, dim=-1)
        self.replay.insert(*halves)

    def recall(self, count: int) -> Tensor:
        """Raw transitions `(count, Da)` of the past, drawn with replacement."""
        if self.replay is None:
            raise RuntimeError("there is no replay: set discriminator_cfg.replay_size")
        (halves,) = self.replay.feed_forward_generator(1, count)
        return torch.cat(halves, dim=-1)[:, : self._width]

    # ---- watching ------------------------------------------------------------------------------------------------

    def watch(self, expert_accuracy: Tensor, policy_accuracy: Tensor) -> bool:
        """Whether it is time to warn: it has known too well for too long. Asks the device once in that time."""
        is_saturated = 0.5 * (expert_accuracy + policy_accuracy) > SATURATED_ACCURACY
        self._saturated_for.copy_(torch.where(is_saturated, self._saturated_for + 1.0, 0.0))
        self._num_watched += 1
        if self._num_watched % self.options.saturation_patience:
            return False
        stays = float(self._saturated_for) >= self.options.saturation_patience
        is_news, self._has_warned = stays and not self._has_warned, stays
        return is_news

    def warn(self, ref_obs: Tensor, ref_motion: Tensor) -> None:
        """Say that the discriminator is saturated, how `ref_obs` and `ref_motion (n, Da)` differ, and what helps."""
        features = ", ".join(
            f"{column} ({own} against {other})" for column, own, other in differences(ref_obs, ref_motion)
        )
        logger.warning(
            f"for {self.options.saturation_patience} iterations the discriminator has told policy and reference apart "
            f"with an accuracy above {SATURATED_ACCURACY}: the style reward hardly says what would be better. They "
            f"differ most in features {features}: check order, units and rate of both. Else raise "
            "discriminator_grad_pen, slow it down with discriminator_cfg.learning_rate or update_interval, or keep "
            "past transitions with replay_size"
        )

    # ---- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, by its key there."""
        state: dict[str, Any] = {}
        if self.stepper is not None:
            state["discriminator_optimizer_state_dict"] = {
                **self.stepper.optimizer.state_dict(),
                "num_mini_batches": self._num_mini_batches,
            }
        if self.replay is not None:
            state["discriminator_replay_state_dict"] = self.replay.state_dict()
        return state

    def check(self, state_dict: Mapping[str, Any]) -> None:
        """ValueError for a checkpoint whose optimisers are others than those here."""
        own = state_dict.get("discriminator_optimizer_state_dict")
        if "optimizer_state_dict" in state_dict and (own is None) != (self.stepper is None):
            has, has_not = ("this algorithm", "the checkpoint") if own is None else ("the checkpoint", "this algorithm")
            raise ValueError(
                f"{has} gives the discriminator its own optimiser (learning_rate, weight_decay or update_interval "
                f"in discriminator_cfg), {has_not} does not; use the same settings or load with load_optimizer=False"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what of it a checkpoint has."""
        own = state_dict.get("discriminator_optimizer_state_dict")
        if own is not None and self.stepper is not None:
            self.stepper.load_state_dict(own)
            self._num_mini_batches.copy_(own["num_mini_batches"])
        if self.replay is not None and "discriminator_replay_state_dict" in state_dict:
            self.replay.load_state_dict(state_dict["discriminator_replay_state_dict"])
        elif self.replay is not None and "optimizer_state_dict" in state_dict:
            logger.warning("the checkpoint has no past transitions for the discriminator: the replay starts empty")
