"""Runs a policy without exploration noise on all robots of a task and records what they do.

`T` steps, `N` robots, `F` feet.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor

from st_rl.env.protocols import CommandedEnv
from st_rl.env.utils import split_observations, split_step
from st_rl.sim.evaluation.command_grid import Range

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk import LeggedWalk
    from st_rl.sim.envs.terrain_walk import Course

Policy = Callable[[Tensor], Tensor]
"""Actions `(N, A)` for raw observations `(N, O)`."""
StepWrapper = Callable[[Callable[[], None]], Callable[[], Any]]
"""Turns a step into a faster one, such as a captured CUDA graph of it."""


@runtime_checkable
class _RecurrentPolicy(Protocol):
    """A policy with hidden states."""

    def reset(self, dones: Tensor | None = None) -> Any: ...


@runtime_checkable
class CourseTask(Protocol):
    """A task with obstacle courses, on which success means more than staying upright."""

    level: Tensor
    """`(N,)` difficulty level of each robot's course."""

    def course(self) -> "Course":
        """Progress of all robots."""
        ...


@runtime_checkable
class UnevenGroundTask(Protocol):
    """A task on ground that knees may touch without a fall."""

    num_knee_contacts: Tensor
    """`(N,)` knees that touch something."""


class RolloutRecord(NamedTuple):
    """Measurements of `N` robots over `T` steps; those after a robot's first fall, or its course's end, are invalid."""

    commands: Tensor
    """`(N, 3)` requested commands."""
    effective_commands: Tensor
    """`(T, N, 3)` commands in effect: zero for small requests, and the task's own where it steers the robots."""
    velocity: Tensor
    """`(T, N, 3)` lin_vel_x, lin_vel_y, ang_vel_yaw in the base frame."""
    contact: Tensor
    """`(T, N, F)` bool"""
    foot_height: Tensor
    """`(T, N, F)` height of the soles."""
    power: Tensor
    """`(T, N)` sum of |torque| |joint velocity|."""
    is_valid: Tensor
    """`(T, N)` bool, True before the first fall and before the end of the course."""
    success: Tensor
    """`(N,)` 1 for robots that passed all obstacles before a fall, 0 for others, NaN without obstacles."""
    reached_end: Tensor
    """`(N,)` bool, robots that reached the end of their course."""
    knee_touched: Tensor
    """`(N,)` bool, robots on uneven ground of which a knee touched something."""
    step_dt: float
    """Seconds per step."""
    diverged: int
    """Number of simulations that diverged."""

    @property
    def fell(self) -> Tensor:
        """Robots that fell, `(N,)` bool."""
        return ~self.is_valid[-1] & ~self.reached_end


def is_commanded(env: object) -> TypeGuard["LeggedWalk"]:
    """Whether an environment follows velocity commands, so that a rollout can measure it."""
    return isinstance(env, CommandedEnv)


def reset_policy(policy: Policy, dones: Tensor | None = None) -> None:
    """Reset the hidden states of finished environments `(N,)`, or of all, if the policy has any."""
    if isinstance(policy, _RecurrentPolicy):
        policy.reset(dones)


class EvaluationRollout:
    """Rollouts of fixed length of one policy on one task.

    All tensors of a step stay at fixed addresses, so that `wrap_step` can capture the step as a graph.
    """

    def __init__(self, task: "LeggedWalk", policy: Policy, seconds: float, wrap_step: StepWrapper | None = None):
        self._task = task
        self._policy = policy
        self._num_steps = round(seconds / task.step_dt)
        with torch.inference_mode():
            self._records = _allocate_records(task, self._num_steps)
            self._is_valid = torch.ones(task.num_envs, dtype=torch.bool, device=task.device)
            self._reached_end = torch.zeros_like(self._is_valid)
            self._knee_touched = torch.zeros_like(self._is_valid)
            self._success = torch.full((task.num_envs,), torch.nan, device=task.device)
            self._row = torch.zeros(1, dtype=torch.long, device=task.device)
            self._obs = self._observe().clone()
        self._run_step = self._step if wrap_step is None else wrap_step(self._step)

    @torch.inference_mode()
    def run(self, commands: Tensor, pushes: Range | None = None) -> RolloutRecord:
        """Reset the task and run it under commands `(N, 3)`.

        `pushes` is the speed in m/s and the interval in s at which every robot is pushed in a random direction.
        """
        task = self._task
        reset_policy(self._policy)
        task.reset()
        task.hold_commands(commands.to(task.device))
        self._is_valid.fill_(True)
        self._reached_end.fill_(False)
        self._knee_touched.fill_(False)
        self._success.fill_(0.0 if isinstance(task, CourseTask) else torch.nan)
        self._row.zero_()
        self._obs.copy_(self._observe())
        push_steps = 0 if pushes is None else max(1, round(pushes[1] / task.step_dt))
        generator = torch.Generator().manual_seed(7)
        diverged_before = int(task.diverged_count)
        for step in range(self._num_steps):
            if pushes is not None and step > 0 and step % push_steps == 0:
                angle = torch.rand(task.num_envs, generator=generator) * (2 * torch.pi)
                velocity = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=1) * pushes[0]
                task.push(velocity.to(task.device), torch.ones_like(self._is_valid))
                self._obs.copy_(self._observe())
            self._run_step()
        ends = {"success": self._success, "reached_end": self._reached_end, "knee_touched": self._knee_touched}
        on_host = {name: tensor.to("cpu", copy=True) for name, tensor in (self._records | ends).items()}
        diverged = int(task.diverged_count) - diverged_before
        return RolloutRecord(commands.cpu(), **on_host, step_dt=task.step_dt, diverged=diverged)

    def _observe(self) -> Tensor:
        return split_observations(self._task.get_observations())[0]

    def _step(self) -> None:
        """Step all robots once and write the next row of the records."""
        task = self._task
        if isinstance(task, CourseTask):
            # Before the step, which resets robots at the end of their episode.
            course = task.course()
            best = torch.maximum(self._success, course.success)
            self._success.copy_(torch.where(self._is_valid, best, self._success))
            self._reached_end.logical_or_(self._is_valid & course.is_at_end)
            self._is_valid.logical_and_(~self._reached_end)
        new_obs, _, _, dones, _ = split_step(task.step(self._policy(self._obs)))
        reset_policy(self._policy, dones)
        if isinstance(task, UnevenGroundTask):
            self._knee_touched.logical_or_(self._is_valid & (task.num_knee_contacts > 0))
        self._is_valid.logical_and_(~dones)
        rows = {
            "is_valid": self._is_valid,
            "effective_commands": task.commands,
            "velocity": torch.cat([task.base_lin_vel[:, :2], task.base_ang_vel[:, 2:]], dim=1),
            "contact": task.foot_contact,
            "foot_height": task.foot_height,
            "power": (task.torques.abs() * task.joint_vel.abs()).sum(dim=1),
        }
        for name, row in rows.items():
            self._records[name].index_copy_(0, self._row, row[None])
        self._obs.copy_(new_obs)
        self._row.add_(1)


def _allocate_records(task: "LeggedWalk", steps: int) -> dict[str, Tensor]:
    """Zero tensors `(T, N, ...)` on the device, so that recording a step needs no host sync."""
    feet = len(task.robot.feet)
    widths = {"effective_commands": (3,), "velocity": (3,), "contact": (feet,), "foot_height": (feet,)}
    widths |= {"power": (), "is_valid": ()}
    return {
        name: torch.zeros(
            (steps, task.num_envs, *width),
            dtype=torch.bool if name in ("contact", "is_valid") else torch.float32,
            device=task.device,
        )
        for name, width in widths.items()
    }
