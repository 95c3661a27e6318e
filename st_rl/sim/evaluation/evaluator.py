"""Evaluates policies without exploration noise.

`T` steps, `N` robots, `F` feet. A `CommandedEnv` is evaluated over a grid of commands, motion tracking over its clips,
any other environment by the returns of its episodes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from st_rl.env import VecEnv
from st_rl.env.gymnasium_adapter import GymnasiumVecEnv
from st_rl.env.utils import split_observations, split_step
from st_rl.sim.envs.cfg import TaskCfg
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.envs.task import Task
from st_rl.sim.evaluation.clip_tracking import ClipRollout, clip_score, compute_clip_metrics
from st_rl.sim.evaluation.command_grid import AXES, EvaluationCfg, evaluation_commands
from st_rl.sim.evaluation.gait_metrics import (
    diagonal_alternation,
    diagonal_pairs,
    find_swings,
    mean_cost_of_transport,
    mean_over_time,
    nan_mean,
    side_pairs,
    step_asymmetry,
)
from st_rl.sim.evaluation.rollout import (
    CourseTask,
    EvaluationRollout,
    Policy,
    RolloutRecord,
    StepWrapper,
    UnevenGroundTask,
    is_commanded,
    reset_policy,
)
from st_rl.sim.robots import Robot
from st_rl.utils.log import logger

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk import LeggedWalk

Rollout = TypeVar("Rollout", EvaluationRollout, ClipRollout)
# Longer clips are cut when a checkpoint is scored, s.
_MAX_CLIP_S = 10.0
# Steps after which an episode that is evaluated ends.
MAX_STEPS = 5000
WALK_METRICS = {
    "falls": "Falls",
    "knee_contacts": "Robots with a knee on the ground",
    "success": "Obstacle success rate",
    "success_by_level": "Success rate by level, from 0",
    "lin_vel_x_error": "Error of mean lin_vel_x, m/s",
    "lin_vel_y_error": "Error of mean lin_vel_y, m/s",
    "ang_vel_yaw_error": "Error of mean ang_vel_yaw, rad/s",
    "lin_vel_x_mae": "Mean absolute error of lin_vel_x, m/s",
    "lin_vel_y_mae": "Mean absolute error of lin_vel_y, m/s",
    "ang_vel_yaw_mae": "Mean absolute error of ang_vel_yaw, rad/s",
    "foot_clearance": "Foot clearance, mean swing peak, m",
    "swing_rate": "Swings per foot and second",
    "stance_fraction": "Stance fraction per foot",
    "alternation": "Diagonal alternation, fraction of time",
    "step_asymmetry": "Left/right step-time asymmetry",
    "cost_of_transport": "Cost of transport",
    "push_survival": "Push survival rate",
    "diverged": "Diverged simulations",
}
"""Metrics of a walk and their headings, in the order of the table."""
EPISODE_METRICS = {
    "return_mean": "Episode return, mean",
    "return_std": "Episode return, standard deviation",
    "return_min": "Episode return, minimum",
    "length_mean": "Episode length, mean, steps",
    "reached_time_limit": "Reached the time limit",
}
"""Metrics of episodes and their headings, in the order of the table."""


def _after_warmup(record: RolloutRecord, warmup_s: float) -> Tensor:
    """Steps that count, `(T, N)` bool: valid ones after the warm-up."""
    valid = record.is_valid.clone()
    valid[: round(warmup_s / record.step_dt)] = False
    return valid


def compute_tracking_metrics(record: RolloutRecord, warmup_s: float) -> dict[str, Any]:
    """Falls, and for each axis the error of the mean velocity and the mean absolute error."""
    valid = _after_warmup(record, warmup_s)
    error = record.velocity - record.effective_commands
    error_of_mean, absolute = mean_over_time(error, valid).abs(), mean_over_time(error.abs(), valid)
    metrics: dict[str, Any] = {"num_envs": record.commands.shape[0], "falls": int(record.fell.sum())}
    for axis, name in enumerate(AXES):
        metrics[f"{name}_error"] = nan_mean(error_of_mean[:, axis])
        metrics[f"{name}_mae"] = nan_mean(absolute[:, axis])
    return metrics


def compute_walk_metrics(
    record: RolloutRecord, robot: Robot, warmup_s: float, moving_threshold: float
) -> dict[str, Any]:
    """Tracking and gait metrics; robots with a command norm below `moving_threshold` stand and have no gait."""
    walking = _after_warmup(record, warmup_s) & (record.commands.norm(dim=1) > moving_threshold)
    swings = find_swings(record.foot_height, record.contact, walking, record.step_dt)
    speed = record.velocity[..., :2].norm(dim=-1)
    feet = torch.from_numpy(robot.foot_positions[:, :2])
    return compute_tracking_metrics(record, warmup_s) | {
        "foot_clearance": nan_mean(swings.clearance),
        "swing_rate": nan_mean(swings.rate),
        "stance_fraction": mean_over_time(record.contact.float(), walking).nanmean(0).tolist(),
        "alternation": nan_mean(diagonal_alternation(record.contact, walking, diagonal_pairs(feet))),
        "step_asymmetry": nan_mean(step_asymmetry(record.contact, walking, side_pairs(feet))),
        "cost_of_transport": nan_mean(mean_cost_of_transport(record.power, speed, robot.mass, walking)),
        "diverged": record.diverged,
    }


def evaluate_walk(task: "LeggedWalk", policy: Policy, cfg: EvaluationCfg) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of a policy, and lists over robots: mean effective `command` and `velocity`, and `fell`."""
    if cfg.seconds <= cfg.warmup_s:
        raise ValueError(
            f"an evaluation of {cfg.seconds:g} s ends within the warm-up of {cfg.warmup_s:g} s: give more seconds"
        )
    commands, moving_threshold = evaluation_commands(cfg, task), task.cfg.commands.moving_threshold
    rollout = EvaluationRollout(task, policy, cfg.seconds)
    record = rollout.run(commands)
    _warn_of_overridden_commands(cfg, record, moving_threshold)
    metrics = compute_walk_metrics(record, task.robot, cfg.warmup_s, moving_threshold)
    if isinstance(task, UnevenGroundTask):
        metrics["knee_contacts"] = int(record.knee_touched.sum())
    if isinstance(task, CourseTask):
        level = task.level.cpu()
        metrics["success"] = nan_mean(record.success)
        metrics["success_by_level"] = [nan_mean(record.success[level == i]) for i in range(int(level.max()) + 1)]
    if cfg.pushes:
        pushed = rollout.run(commands, (cfg.push_speed, cfg.push_interval_s))
        metrics["push_survival"] = 1.0 - float(pushed.fell.float().mean())
    valid = _after_warmup(record, cfg.warmup_s)
    effective = mean_over_time(record.effective_commands, valid)
    robots = {
        "command": torch.where(effective.isnan(), commands, effective).tolist(),
        "velocity": mean_over_time(record.velocity, valid).tolist(),
        "fell": record.fell.tolist(),
    }
    return metrics, robots


def _warn_of_overridden_commands(cfg: EvaluationCfg, record: RolloutRecord, moving_threshold: float) -> None:
    """Warn of axes that `cfg` sets and that the task replaced by its own commands."""
    walking = record.is_valid & (record.commands.norm(dim=1) > moving_threshold)
    differs = ((record.effective_commands - record.commands).abs() > 1e-6) & walking[..., None]
    for axis, is_overridden in zip(AXES, differs.any(dim=0).any(dim=0).tolist()):
        if is_overridden and vars(cfg)[axis] is not None:
            logger.warning(f"this task sets {axis} itself: the requested range of {axis} has no effect")


@torch.inference_mode()
def evaluate_episodes(env: VecEnv, policy: Policy, max_steps: int = MAX_STEPS) -> dict[str, Any]:
    """Metrics of the first episode of each of `N` environments."""
    count = int(env.num_envs)
    total, length = torch.zeros(count), torch.zeros(count)
    running, timed_out = torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)
    reset_policy(policy)
    obs = split_observations(env.reset())[0]
    for _ in range(min(max_steps, int(env.max_episode_length) + 1)):
        obs, _, rewards, dones, infos = split_step(env.step(policy(obs)))
        dones = dones.reshape(-1).cpu() > 0
        total += torch.where(running, rewards.reshape(-1).cpu().float(), 0.0)
        length += running
        limits = infos.get("time_outs")
        if limits is not None:
            timed_out |= running & (limits.reshape(-1).cpu() > 0)
        reset_policy(policy, dones)
        running &= ~dones
        if not bool(running.any()):
            break
    return {
        "num_envs": count,
        "return_mean": float(total.mean()),
        "return_std": float(total.std(correction=0)),
        "return_min": float(total.min()),
        "length_mean": float(length.mean()),
        "reached_time_limit": float((timed_out | running).float().mean()),
    }


def make_eval_task(
    name: str, cfg: TaskCfg, num_envs: int, seconds: float, seed: int, fine: bool, device: str = "cpu"
) -> Task:
    """A task without disturbances, with fine physics if asked, and without a time-out within `seconds`."""
    from st_rl.sim.tasks import make_task

    cfg = cfg.for_evaluation(fine)
    if isinstance(cfg, LeggedWalkCfg):
        cfg.episode_length_s = max(cfg.episode_length_s, seconds + 1.0)
    return make_task(name, num_envs, device, seed, cfg=cfg)


@contextmanager
def preserve_rng_state(device: torch.device | str) -> Iterator[None]:
    """Restore the state of torch's generators of the CPU and of `device` afterwards."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@runtime_checkable
class _NetworkPolicy(Protocol):
    """A policy that computes with the networks in its attributes, such as `InferencePolicy`."""

    actor_critic: torch.nn.Module


class CheckpointEvaluator:
    """Scores policies during training, higher is better, on a separate environment.

    All policies start from the same random state; that of the training stays untouched. `wrap_step` speeds up the
    steps of feed-forward policies; the wrapped step is used until the tensors of the policy move. Episodes end after
    `max_steps`.
    """

    def __init__(
        self, env: VecEnv, cfg: EvaluationCfg, wrap_step: StepWrapper | None = None, max_steps: int = MAX_STEPS
    ):
        self._env = env
        self._cfg = cfg
        self._wrap_step = wrap_step
        self._max_steps = max_steps
        self._rollout: EvaluationRollout | ClipRollout | None = None
        self._addresses: tuple[int, ...] = ()
        self.metrics: dict[str, float] = {}
        """Metrics of the last evaluation, which the training logs."""

    def __call__(self, policy: Policy) -> float:
        """The score of a policy."""
        with preserve_rng_state(self._env.device):
            self._seed()
            task, seconds = self._env, self._cfg.seconds
            if isinstance(task, MotionTracking):
                rollout = self._rollout_of(policy, lambda wrap: ClipRollout(task, policy, _MAX_CLIP_S, wrap))
                metrics = compute_clip_metrics(task, rollout.run())
                names = ("reached_end", "completed", "body_pos_error", "joint_pos_error")
                self.metrics = {name: metrics[name] for name in names}
                return clip_score(metrics)
            if is_commanded(task):
                walk = self._rollout_of(policy, lambda wrap: EvaluationRollout(task, policy, seconds, wrap))
                record = walk.run(evaluation_commands(self._cfg, task))
                metrics = compute_tracking_metrics(record, self._cfg.warmup_s)
                errors = {f"{name}_error": metrics[f"{name}_error"] for name in AXES}
                self.metrics = {"falls": metrics["falls"] / metrics["num_envs"], **errors}
                return walk_score(metrics)
            episodes = evaluate_episodes(task, policy, self._max_steps)
            self.metrics = {name: episodes[name] for name in ("return_mean", "length_mean")}
            return float(episodes["return_mean"])

    def _seed(self) -> None:
        """Give every checkpoint the same initial states; a resumed training continues with the same scores."""
        env, seed, device = self._env, self._cfg.seed, torch.device(self._env.device)
        # Not `torch.manual_seed`, which also seeds GPUs that only the training uses.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif isinstance(env, Task) and env.generator is not None:
            env.generator.manual_seed(seed)
        if isinstance(env, GymnasiumVecEnv):
            env.reset(seed)

    def _rollout_of(self, policy: Policy, make: Callable[[StepWrapper | None], Rollout]) -> Rollout:
        """The last rollout if the policy computes with the same tensors, else a new one of a step that can be wrapped.

        A step replaces hidden states and the progress on a course, which the next one reads: neither is captured.
        """
        addresses = _tensor_addresses(policy)
        if self._rollout is None or addresses != self._addresses:
            keeps_state = _is_recurrent(policy) or isinstance(self._env, CourseTask)
            self._rollout, self._addresses = make(None if keeps_state else self._wrap_step), addresses
        return cast("Rollout", self._rollout)


def _is_recurrent(policy: Policy) -> bool:
    """Whether a policy has hidden states; unknown for a plain function, which counts as recurrent."""
    return not isinstance(policy, _NetworkPolicy) or bool(policy.actor_critic.is_recurrent)


def _tensor_addresses(policy: Policy) -> tuple[int, ...]:
    """Addresses of all parameters and buffers of a policy; for a plain function its id."""
    parts = vars(policy).values() if isinstance(policy, _NetworkPolicy) else ()
    networks = [part for part in parts if isinstance(part, torch.nn.Module)]
    tensors = [tensor for network in networks for tensor in network.state_dict().values()]
    return tuple(tensor.data_ptr() for tensor in tensors) if networks else (id(policy),)


def walk_score(metrics: Mapping[str, Any]) -> float:
    """A score of tracking metrics, higher is better: falls weigh more than errors."""
    errors = [metrics["lin_vel_x_mae"], metrics["lin_vel_y_mae"], 0.5 * metrics["ang_vel_yaw_mae"]]
    known = [error for error in errors if error == error]
    # All errors are NaN if every robot fell during the warm-up.
    error = sum(known) if known else 10.0
    return -error - 2.0 * metrics["falls"] / metrics["num_envs"]
