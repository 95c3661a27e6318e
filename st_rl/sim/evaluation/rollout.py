"""Lets the robots of a task walk under a policy without exploration noise, and measures what they do.

`T` steps, `N` robots, `F` feet.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from st_rl.env.utils import split_observations, split_step
from st_rl.sim.evaluation.command_grid import Range

Policy = Callable[[Tensor], Tensor]
"""Actions `(N, A)` for raw observations `(N, O)`."""
StepWrapper = Callable[[Callable[[], None]], Callable[[], Any]]
"""Makes a function that will be called often fast, such as a captured graph of it."""


class RolloutRecord(NamedTuple):
    """What was measured of `N` robots over `T` steps; nothing of a robot counts from its first fall, or its end, on."""

    commands: Tensor
    """`(N, 3)` what was asked for."""
    told: Tensor
    """`(T, N, 3)` what the robots were told: zero for small commands, turns of the task's own where it leads them."""
    velocity: Tensor
    """`(T, N, 3)` forward, sideways, turning, in the frame of the base."""
    contact: Tensor
    """`(T, N, F)` bool"""
    foot_height: Tensor
    """`(T, N, F)` height of the soles."""
    power: Tensor
    """`(T, N)` sum of |torque| |joint velocity|."""
    standing: Tensor
    """`(T, N)` bool, True before the first fall and before the end of the ground."""
    success: Tensor
    """`(N,)` 1 for robots that got past everything in their way while they stood, 0 for others, NaN on a free way."""
    arrived: Tensor
    """`(N,)` bool, who came to the end of its ground."""
    period: float
    """Seconds of a step."""
    diverged: int
    """Simulations that became unstable."""

    @property
    def fell(self) -> Tensor:
        """Whether each robot has fallen, `(N,)` bool."""
        return ~self.standing[-1] & ~self.arrived


def has_course(env: Any) -> bool:
    """Whether a task tells, by a `Course`, how far its robots have come; there is more to a success than to stand."""
    return callable(getattr(env, "course", None))


def identity(step: Callable[[], None]) -> Callable[[], Any]:
    """A step that nothing is made of."""
    return step


class EvaluationRollout:
    """Lets the robots of a task walk under a policy, again and again for the same time.

    `repeatable` turns one step, which works on tensors in fixed places, into something that may be called often.
    """

    def __init__(self, task: Any, policy: Policy, seconds: float, repeatable: StepWrapper = identity):
        self._task = task
        self._policy = policy
        self._num_steps = round(seconds / task.step_dt)
        with torch.inference_mode():
            self._recorded = _empty_records(task, self._num_steps)
            self._upright = torch.ones(task.num_envs, dtype=torch.bool, device=task.device)
            self._arrived = torch.zeros_like(self._upright)
            self._success = torch.full((task.num_envs,), torch.nan, device=task.device)
            self._place = torch.zeros(1, dtype=torch.long, device=task.device)
            self._obs = self._observe().clone()
        self._go_on = repeatable(self._step)

    @torch.inference_mode()
    def walk(self, commands: Tensor, pushes: Range | None = None) -> RolloutRecord:
        """Walk under commands `(N, 3)` from new starts, optionally with pushes of so many m/s every so many seconds."""
        task = self._task
        memory_of(self._policy)(None)
        task.reset()
        task.hold_commands(commands.to(task.device))
        self._upright.fill_(True)
        self._arrived.fill_(False)
        self._success.fill_(0.0 if has_course(task) else torch.nan)
        self._place.zero_()
        self._obs.copy_(self._observe())
        push = _Pushes(task, *pushes) if pushes is not None else None
        diverged_before = int(task.diverged_count)
        for step in range(self._num_steps):
            if push is not None and push.is_due(step):
                push.apply()
                self._obs.copy_(self._observe())
            self._go_on()
        diverged = int(task.diverged_count) - diverged_before
        on_host = {name: tensor.to("cpu", copy=True) for name, tensor in self._recorded.items()}
        ends = {"success": self._success.to("cpu", copy=True), "arrived": self._arrived.to("cpu", copy=True)}
        return RolloutRecord(commands.cpu(), **on_host, **ends, period=task.step_dt, diverged=diverged)

    def _observe(self) -> Tensor:
        return split_observations(self._task.get_observations())[0]

    def _step(self) -> None:
        """One step of all robots, recorded in the next row."""
        task = self._task
        if has_course(task):
            # Before the step: after it, a robot whose episode has ended is at the start of its next one.
            course = task.course()
            best = torch.maximum(self._success, course.success)
            self._success.copy_(torch.where(self._upright, best, self._success))
            self._arrived.logical_or_(self._upright & course.is_at_end)
            self._upright.logical_and_(~self._arrived)
        new_obs, _, _, dones, _ = split_step(task.step(self._policy(self._obs)))
        memory_of(self._policy)(dones)
        self._upright.logical_and_(~dones)
        rows = {
            "standing": self._upright,
            "told": task.commands,
            "velocity": torch.cat([task.base_lin_vel[:, :2], task.base_ang_vel[:, 2:]], dim=1),
            "contact": task.foot_contact,
            "foot_height": task.foot_height,
            "power": (task.torques.abs() * task.joint_vel.abs()).sum(dim=1),
        }
        for name, row in rows.items():
            self._recorded[name].index_copy_(0, self._place, row[None])
        self._obs.copy_(new_obs)
        self._place.add_(1)


def run_rollout(
    task: Any, policy: Policy, commands: Tensor, seconds: float, pushes: Range | None = None
) -> RolloutRecord:
    """Let every robot walk once under its command `(N, 3)`."""
    return EvaluationRollout(task, policy, seconds).walk(commands, pushes)


def _empty_records(task: Any, steps: int) -> dict[str, Tensor]:
    """Room for what a walk of so many steps measures, on the device: a step that reads nothing does not wait for it."""
    shape, feet = (steps, task.num_envs), len(task.robot.feet)

    def zeros(*width: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(*shape, *width, dtype=dtype, device=task.device)

    return {
        "told": zeros(3),
        "velocity": zeros(3),
        "contact": zeros(feet, dtype=torch.bool),
        "foot_height": zeros(feet),
        "power": zeros(),
        "standing": zeros(dtype=torch.bool),
    }


def memory_of(policy: Policy) -> Callable[[Tensor | None], Any]:
    """What makes a policy forget finished robots, or all; a plain function has nothing to forget."""
    reset = getattr(policy, "reset", None)
    return reset if callable(reset) else lambda dones: None


class _Pushes:
    """Pushes every robot at regular times in a direction of its own."""

    def __init__(self, task: Any, speed: float, interval_s: float):
        self._task = task
        self._speed = speed
        self._steps = max(1, round(interval_s / task.step_dt))
        self._generator = torch.Generator().manual_seed(7)

    def is_due(self, step: int) -> bool:
        return step > 0 and step % self._steps == 0

    def apply(self) -> None:
        angle = torch.rand(self._task.num_envs, generator=self._generator) * (2 * torch.pi)
        velocity = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], dim=1) * self._speed
        everyone = torch.ones(self._task.num_envs, dtype=torch.bool, device=self._task.device)
        self._task.push(velocity.to(self._task.device), everyone)
