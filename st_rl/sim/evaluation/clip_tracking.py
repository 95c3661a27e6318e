"""Evaluates how well a policy tracks reference clips, clip by clip.

`T` steps, `N` robots, `C` clips, `B` tracked bodies.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.env.utils import split_observations, split_step
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.evaluation.rollout import Policy, StepWrapper, reset_policy

CLIP_METRICS = {
    "reached_end": "Reached the end",
    "completed": "Followed before failing, of the clip",
    "body_pos_error": "Body position error, m",
    "joint_pos_error": "Joint position error, rad",
    "acceleration_ratio": "Joint acceleration, times that of the clip",
    "diverged": "Diverged simulations",
}
"""Metrics of clip tracking and their headings, in the order of the table."""
# Slower joints of a clip, rad/s^2, have no acceleration to compare with.
_MIN_ACCELERATION = 0.1


class ClipRecord(NamedTuple):
    """Measurements of the first episode of `N` robots, each from the first frame of its clip; rows after it count 0."""

    clip: Tensor
    """`(N,)` clip of each robot."""
    steps: Tensor
    """`(N,)` steps of the episode."""
    reached_end: Tensor
    """`(N,)` bool: the robot was still tracking at the end of its clip, or of the rollout."""
    body_pos_error: Tensor
    """`(T, C)` sum over the robots that track a clip, m."""
    joint_pos_error: Tensor
    """`(T, C)` the same, rad."""
    body_pos_distance: Tensor
    """`(T, C, B)` the same for each body, m."""
    num_robots: Tensor
    """`(T, C)` robots that track a clip."""
    joint_acceleration: Tensor
    """`(T, C)` sum over these robots of the mean square of the joints' accelerations, (rad/s^2)^2."""
    diverged: int
    """Number of simulations that diverged."""


class ClipRollout:
    """Runs a policy on all clips of a task at once, the robots divided over the clips.

    All tensors of a step stay at fixed addresses, so that `wrap_step` can capture the step as a graph.
    """

    def __init__(
        self,
        task: MotionTracking,
        policy: Policy,
        max_seconds: float | None = None,
        wrap_step: StepWrapper | None = None,
    ):
        self._task, self._policy = task, policy
        clips = len(task.reference.clips)
        self._num_steps = max(task.reference.num_frames) - 1
        if max_seconds is not None:
            self._num_steps = min(self._num_steps, max(1, round(max_seconds / task.step_dt)))
        device = task.device
        self._clip = torch.arange(task.num_envs, device=device) % clips
        # Fewer robots than clips track them in several rounds.
        self._rounds = range(0, clips, task.num_envs)
        widths = {"body_pos_error": (), "joint_pos_error": (), "num_robots": (), "joint_acceleration": ()}
        widths |= {"body_pos_distance": (len(task.reference.body_names),)}
        with torch.inference_mode():
            self._sums = {
                name: torch.zeros(self._num_steps, clips, *width, device=device) for name, width in widths.items()
            }
            self._is_valid = torch.ones(task.num_envs, dtype=torch.bool, device=device)
            self._reached_end = torch.zeros_like(self._is_valid)
            self._steps = torch.zeros(task.num_envs, device=device)
            self._row = torch.zeros(1, dtype=torch.long, device=device)
            self._joint_vel = torch.zeros_like(task.joint_vel)
            self._obs = self._observe().clone()
        self._run_step = self._step if wrap_step is None else wrap_step(self._step)

    @torch.inference_mode()
    def run(self) -> ClipRecord:
        """Start all robots at the first frame of their clips and run them until the longest clip is over."""
        task, clips = self._task, len(self._task.reference.clips)
        diverged_before = int(task.diverged_count)
        for tensor in self._sums.values():
            tensor.zero_()
        robots: list[tuple[Tensor, Tensor, Tensor]] = []
        for first in self._rounds:
            self._clip.copy_((torch.arange(task.num_envs, device=task.device) + first) % clips)
            reset_policy(self._policy)
            task.hold_clips(self._clip)
            self._steps.zero_()
            self._row.zero_()
            self._is_valid.fill_(True)
            self._reached_end.fill_(False)
            self._joint_vel.copy_(task.joint_vel)
            self._obs.copy_(self._observe())
            for _ in range(self._num_steps):
                self._run_step()
            reached = self._reached_end | self._is_valid
            robots.append((self._clip.cpu().clone(), self._steps.cpu().clone(), reached.cpu()))
        clip, steps, reached = (torch.cat(parts) for parts in zip(*robots))
        sums = {name: tensor.to("cpu", copy=True) for name, tensor in self._sums.items()}
        return ClipRecord(clip, steps, reached, **sums, diverged=int(task.diverged_count) - diverged_before)

    def _observe(self) -> Tensor:
        return split_observations(self._task.get_observations())[0]

    def _step(self) -> None:
        """Step all robots once and add the next row to the sums."""
        task = self._task
        new_obs, _, _, dones, _ = split_step(task.step(self._policy(self._obs)))
        reset_policy(self._policy, dones)
        counted = self._is_valid.float()
        self._reached_end.logical_or_(self._is_valid & task.clip_ended)
        self._steps.add_(counted)
        acceleration = ((task.joint_vel - self._joint_vel) / task.step_dt).square().mean(dim=1)
        # A robot that was reset has jumped, and a diverged one may have errors that are not finite.
        self._is_valid.logical_and_(~dones)
        rows = {
            "body_pos_error": task.body_pos_error,
            "joint_pos_error": task.joint_pos_error,
            "body_pos_distance": task.body_pos_distance,
            "num_robots": counted,
            "joint_acceleration": acceleration.masked_fill(~self._is_valid, 0.0),
        }
        for name, row in rows.items():
            weight = counted if row.dim() == 1 else counted[:, None]
            total = torch.zeros_like(self._sums[name][0])
            total.index_add_(0, self._clip, torch.nan_to_num(row, posinf=0.0, neginf=0.0) * weight)
            self._sums[name].index_add_(0, self._row, total[None])
        self._joint_vel.copy_(task.joint_vel)
        self._obs.copy_(new_obs)
        self._row.add_(1)


def evaluate_clips(task: MotionTracking, policy: Policy) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics of a policy over all clips, and those of each clip with its worst moment and its error over time."""
    record = ClipRollout(task, policy).run()
    return compute_clip_metrics(task, record), [
        describe_clip(task, record, number) for number in range(len(task.reference.clips))
    ]


def compute_clip_metrics(task: MotionTracking, record: ClipRecord, clip: int | None = None) -> dict[str, Any]:
    """Metrics of one clip, or of all robots; errors are means over the steps before a failure."""
    robots = torch.ones_like(record.reached_end) if clip is None else record.clip == clip
    clips = slice(None) if clip is None else slice(clip, clip + 1)
    num_steps = len(record.num_robots)
    length = (torch.tensor(task.reference.num_frames)[record.clip] - 1).clamp(max=num_steps)
    count = float(record.num_robots[:, clips].sum())
    own = float(record.joint_acceleration[:, clips].sum()) / max(count, 1.0)
    # Weighted as the robots are.
    wanted = sum(
        _mean_square_acceleration(task, number) * float(record.num_robots[:, number].sum())
        for number in range(len(task.reference.clips))[clips]
    ) / max(count, 1.0)
    return {
        "num_envs": int(robots.sum()),
        "reached_end": float(record.reached_end[robots].float().mean()),
        "completed": float((record.steps / length)[robots].clamp(max=1.0).mean()),
        "body_pos_error": float(record.body_pos_error[:, clips].sum()) / max(count, 1.0),
        "joint_pos_error": float(record.joint_pos_error[:, clips].sum()) / max(count, 1.0),
        "acceleration_ratio": float(np.sqrt(own / max(wanted, _MIN_ACCELERATION**2))),
        **({"diverged": record.diverged} if clip is None else {}),
    }


def _mean_square_acceleration(task: MotionTracking, clip: int) -> float:
    """Mean square of the joints' accelerations in a clip, (rad/s^2)^2."""
    return float((np.diff(task.reference.clips[clip].joint_vel, axis=0) / task.step_dt).__pow__(2).mean())


def describe_clip(task: MotionTracking, record: ClipRecord, clip: int) -> dict[str, Any]:
    """Name, duration and metrics of a clip, its worst moment, and the errors over time of the robots that track it."""
    count = record.num_robots[:, clip]
    tracked = int((count > 0).sum())
    mean = record.body_pos_distance[:tracked, clip] / count[:tracked, None]
    step, body = divmod(int(mean.argmax()), mean.shape[1])
    errors = {
        name: getattr(record, name)[:tracked, clip] / count[:tracked] for name in ("body_pos_error", "joint_pos_error")
    }
    return {
        "clip": task.reference.clips[clip].name,
        "seconds": (task.reference.num_frames[clip] - 1) * task.step_dt,
        **compute_clip_metrics(task, record, clip),
        "worst_s": (step + 1) * task.step_dt,
        "worst_body": task.reference.body_names[body],
        "worst_error": float(mean[step, body]),
        "period": task.step_dt,
        "tracking": [round(float(value), 4) for value in count[:tracked] / count[0]],
        **{f"{name}_by_step": [float(f"{value:.4g}") for value in row.tolist()] for name, row in errors.items()},
    }


def clip_score(metrics: Mapping[str, Any]) -> float:
    """A score of clip metrics, higher is better: failing weighs more than errors."""
    return -metrics["body_pos_error"] - 0.2 * metrics["joint_pos_error"] - (1.0 - metrics["completed"])
