"""Judges policies without exploration noise: a walk over a grid of commands, or whole episodes.

`T` steps, `N` robots, `F` feet. Robots that are told where to walk, with `hold_commands`, are judged as walkers; every
other environment by the return of its episodes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from st_rl.env.utils import split_observations, split_step
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
    EvaluationRollout,
    Policy,
    RolloutRecord,
    StepWrapper,
    has_course,
    identity,
    memory_of,
)
from st_rl.utils.log import logger

# Figures of a walk, in the order of the table, with the words that explain them.
WALK_METRICS = {
    "falls": "Falls",
    "success": "Get past everything in their way",
    "success_by_level": "The same on each level, from 0",
    "forward_error": "Forward error of the mean, m/s",
    "sideways_error": "Sideways error of the mean, m/s",
    "turning_error": "Turning error of the mean, rad/s",
    "forward_error_now": "Forward error at each instant, m/s",
    "sideways_error_now": "Sideways error at each instant, m/s",
    "turning_error_now": "Turning error at each instant, rad/s",
    "foot_clearance": "Foot clearance, mean peak, m",
    "swing_rate": "Steps of each foot a second",
    "stance_share": "Stance share of each foot",
    "alternation": "Diagonal pairs alternate, share",
    "step_asymmetry": "Left and right step times differ by, share",
    "cost_of_transport": "Cost of transport",
    "push_survival": "Survive pushes",
    "diverged": "Unstable simulations",
}
EPISODE_METRICS = {
    "return_mean": "Return of an episode, mean",
    "return_std": "Return of an episode, deviation",
    "return_min": "Return of an episode, lowest",
    "length_mean": "Steps of an episode, mean",
    "reached_time_limit": "Reach the time limit",
}


def is_commanded(env: Any) -> bool:
    """Whether an environment can be told to walk somewhere."""
    return callable(getattr(env, "hold_commands", None))


def _counted(result: RolloutRecord, settle_s: float) -> Tensor:
    """Which steps of which robots count, `(T, N)` bool: those after the beginning and before a fall."""
    counted = result.standing.clone()
    counted[: round(settle_s / result.period)] = False
    return counted


def compute_tracking_metrics(result: RolloutRecord, settle_s: float) -> dict[str, Any]:
    """How well the robots of a walk followed their commands."""
    counted = _counted(result, settle_s)
    error = result.velocity - result.told
    mean, now = mean_over_time(error, counted).abs(), mean_over_time(error.abs(), counted)
    figures: dict[str, Any] = {"robots": result.commands.shape[0], "falls": int(result.fell.sum())}
    for axis, name in enumerate(AXES):
        figures[f"{name}_error"] = nan_mean(mean[:, axis])
        figures[f"{name}_error_now"] = nan_mean(now[:, axis])
    return figures


def compute_walk_metrics(
    result: RolloutRecord,
    mass: float,
    pairs: Sequence[tuple[int, int]],
    settle_s: float,
    moving: float,
    sides: Sequence[tuple[int, int]] = (),
) -> dict[str, Any]:
    """The figures of a walk. A command of a norm below `moving` means to stand; its robot has no gait to judge.

    `pairs` are feet across the body from each other, `sides` left and right feet.
    """
    walking = _counted(result, settle_s) & (result.commands.norm(dim=1) > moving)
    swings = find_swings(result.foot_height, result.contact, walking, result.period)
    speed = result.velocity[..., :2].norm(dim=-1)
    figures = compute_tracking_metrics(result, settle_s)
    figures["foot_clearance"] = nan_mean(swings.clearance)
    figures["swing_rate"] = nan_mean(swings.rate)
    figures["stance_share"] = mean_over_time(result.contact.float(), walking).nanmean(0).tolist()
    figures["alternation"] = nan_mean(diagonal_alternation(result.contact, walking, pairs))
    figures["step_asymmetry"] = nan_mean(step_asymmetry(result.contact, walking, sides))
    figures["cost_of_transport"] = nan_mean(mean_cost_of_transport(result.power, speed, mass, walking))
    figures["diverged"] = result.diverged
    return figures


def diagonal_foot_pairs(task: Any) -> tuple[tuple[int, int], ...]:
    """The diagonal pairs of the robot's feet, from where they stand in its default pose."""
    return diagonal_pairs(torch.from_numpy(task.robot.foot_positions[:, :2]))


def evaluate_walk(task: Any, policy: Policy, plan: EvaluationCfg) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures of a task's robots, and what each of them was told and did: lists by name."""
    if plan.seconds <= plan.settle_s:
        raise ValueError(
            f"a walk of {plan.seconds:g} s is over within the first {plan.settle_s:g} s, which do not count: "
            "give more seconds"
        )
    commands = evaluation_commands(plan, task)
    moving, mass, pairs = task.cfg.commands.moving_threshold, task.robot.mass, diagonal_foot_pairs(task)
    walker = EvaluationRollout(task, policy, plan.seconds)
    plain = walker.walk(commands)
    _report_overruled(plan, plain, moving)
    sides = side_pairs(torch.from_numpy(task.robot.foot_positions[:, :2]))
    figures = compute_walk_metrics(plain, mass, pairs, plan.settle_s, moving, sides)
    if has_course(task):
        level = task.level.cpu()
        figures["success"] = nan_mean(plain.success)
        figures["success_by_level"] = [nan_mean(plain.success[level == i]) for i in range(int(level.max()) + 1)]
    if plan.pushes:
        pushed = walker.walk(commands, (plan.push_speed, plan.push_interval_s))
        figures["push_survival"] = 1.0 - float(pushed.fell.float().mean())
    counted = _counted(plain, plan.settle_s)
    told = mean_over_time(plain.told, counted)
    robots = {
        "command": torch.where(told.isnan(), commands, told).tolist(),
        "velocity": mean_over_time(plain.velocity, counted).tolist(),
        "fell": plain.fell.tolist(),
    }
    return figures, robots


def _report_overruled(plan: EvaluationCfg, result: RolloutRecord, moving: float) -> None:
    """Warn of commands that were asked for and that the task replaced by its own."""
    walks = result.standing & (result.commands.norm(dim=1) > moving)
    differs = ((result.told - result.commands).abs() > 1e-6) & walks[..., None]
    for axis, overruled in zip(AXES, differs.any(dim=0).any(dim=0).tolist()):
        if overruled and getattr(plan, axis) is not None:
            logger.warning(f"this task leads its robots by {axis} commands of its own: those asked for have no effect")


@torch.inference_mode()
def evaluate_episodes(env: Any, policy: Policy, max_steps: int = 5000) -> dict[str, Any]:
    """Figures of the first episode of each of `N` environments."""
    count = int(env.num_envs)
    total, length = torch.zeros(count), torch.zeros(count)
    running, timed_out = torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.bool)
    forget = memory_of(policy)
    forget(None)
    obs = split_observations(env.reset())[0]
    for _ in range(min(max_steps, int(env.max_episode_length) + 1)):
        obs, _, rewards, dones, infos = split_step(env.step(policy(obs)))
        dones = dones.reshape(-1).cpu() > 0
        total += torch.where(running, rewards.reshape(-1).cpu().float(), 0.0)
        length += running
        limits = infos.get("time_outs")
        if limits is not None:
            timed_out |= running & (limits.reshape(-1).cpu() > 0)
        forget(dones)
        running &= ~dones
        if not bool(running.any()):
            break
    return {
        "robots": count,
        "return_mean": float(total.mean()),
        "return_std": float(total.std(correction=0)),
        "return_min": float(total.min()),
        "length_mean": float(length.mean()),
        "reached_time_limit": float((timed_out | running).float().mean()),
    }


def make_eval_task(
    name: str, cfg: Any, num_envs: int, seconds: float, seed: int, fine: bool, device: str = "cpu"
) -> Any:
    """A task to judge a policy in: undisturbed, with fine physics if asked, and without a time-out within `seconds`."""
    from st_rl.sim.tasks import make_task

    judged = cfg.for_evaluation(fine)
    if getattr(judged, "commands", None) is not None:
        judged.episode_length_s = max(judged.episode_length_s, seconds + 1.0)
    return make_task(name, num_envs, device, seed, cfg=judged)


@contextmanager
def preserve_rng_state(device: torch.device | str) -> Iterator[None]:
    """Whatever is drawn inside, the generators of torch on the CPU and on `device` go on as if nothing had happened."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


class CheckpointEvaluator:
    """Scores a policy now and then in the course of its training, higher is better, on an environment of its own.

    It draws no random numbers that the training would have drawn. `repeatable` makes the steps of a policy without
    memory fast; what it makes of them serves until the policy is another one.
    """

    def __init__(self, env: Any, plan: EvaluationCfg, repeatable: StepWrapper | None = None):
        self._env = env
        self._plan = plan
        self._repeatable = repeatable
        self._walker: EvaluationRollout | None = None
        self._walker_places: tuple[int, ...] = ()

    def __call__(self, policy: Policy) -> float:
        """The score of a policy."""
        with preserve_rng_state(getattr(self._env, "device", "cpu")):
            if not is_commanded(self._env):
                return float(evaluate_episodes(self._env, policy)["return_mean"])
            result = self._walker_for(policy).walk(evaluation_commands(self._plan, self._env))
            return walk_score(compute_tracking_metrics(result, self._plan.settle_s))

    def _walker_for(self, policy: Policy) -> EvaluationRollout:
        """The walker of before if the policy computes with the same numbers in the same places, else a new one."""
        places = _places(policy)
        if self._walker is None or places != self._walker_places:
            # A memory is never in the same place twice.
            has_memory = getattr(getattr(policy, "actor_critic", None), "is_recurrent", True)
            repeatable = None if has_memory else self._repeatable
            self._walker = EvaluationRollout(self._env, policy, self._plan.seconds, repeatable or identity)
            self._walker_places = places
        return self._walker


def _places(policy: Policy) -> tuple[int, ...]:
    """Where in memory the numbers lie that a policy computes with, and for a plain function itself."""
    parts = [policy, *getattr(policy, "__dict__", {}).values()]
    networks = [part for part in parts if isinstance(part, torch.nn.Module)]
    if not networks:
        return (id(policy),)
    return tuple(tensor.data_ptr() for network in networks for tensor in network.state_dict().values())


def walk_score(figures: Mapping[str, Any]) -> float:
    """One number for a walk, higher is better: small errors and, before all, no falls."""
    errors = [figures["forward_error_now"], figures["sideways_error_now"], 0.5 * figures["turning_error_now"]]
    known = [error for error in errors if error == error]
    # Without any robot that stood long enough to be measured, the errors say nothing.
    error = sum(known) if known else 10.0
    return -error - 2.0 * figures["falls"] / figures["robots"]
