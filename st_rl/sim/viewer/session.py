"""A policy that a user steers: carries out the controls of a viewer on a task."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from st_rl.env.utils import split_observations, split_step
from st_rl.sim.envs.legged_amp import LeggedAmp
from st_rl.sim.envs.legged_task import LeggedTask
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.envs.task import StepOutcome, Task
from st_rl.sim.envs.terrain_walk import TerrainWalk
from st_rl.sim.evaluation.rollout import Policy, is_commanded, reset_policy
from st_rl.sim.terms.observations import yaw_angle
from st_rl.sim.viewer.controls import Command, Controls, push_velocity
from st_rl.sim.viewer.frames import Frame, FrameLayout

LoadPolicy = Callable[[str], Policy]
"""Loads the policy of a checkpoint by its name; ValueError or OSError with a message for the user."""
# A simulation that is further behind than this, s, continues from now instead of catching up.
_LARGEST_LAG = 0.2


class ViewSession:
    """Steps a task under a policy as the controls say."""

    def __init__(self, task: Task, policy: Policy, load_policy: LoadPolicy, checkpoint: str):
        self.task = task
        self.layout = FrameLayout.of_task(task)
        self.controls = Controls()
        self.checkpoint = checkpoint
        """Name of the checkpoint that acts."""
        self.message = ""
        """What the last event led to, for the user; empty if there is nothing to say."""
        self.time = 0.0
        """Simulated seconds."""
        self._policy = policy
        self._load_policy = load_policy
        self._held: Command | None = None
        self._held_clip = -1
        self._row = torch.zeros(self.layout.width, device=task.device)
        self._pack = self.layout.packer(task)
        self._log = torch.zeros(len(self.layout.reward_names), device=task.device)
        task.step_observers.append(self._keep_log)
        self.frame = self._read_frame()
        """The robots after the last step."""

    def _keep_log(self, outcome: StepOutcome) -> None:
        self._log.copy_(outcome.log[: len(self._log)])

    @torch.inference_mode()
    def step(self) -> None:
        """Carry out new events, then step all robots once unless paused."""
        for event in self.controls.take_events():
            self.message = ""
            event(self)
            self.frame = self._read_frame()
        if self.controls.is_paused:
            return
        self._hold_command()
        self._hold_clip()
        obs = split_observations(self.task.get_observations())[0]
        _, _, _, dones, _ = split_step(self.task.step(self._policy(obs)))
        reset_policy(self._policy, dones)
        self.time += self.task.step_dt
        self.frame = self._read_frame()

    def _read_frame(self) -> Frame:
        self._pack(self._row, self._log)
        return self.layout.unpack(self._row.to("cpu", copy=True).numpy())

    def _hold_command(self) -> None:
        command = self.controls.command
        if command is not None and command != self._held and is_commanded(self.task):
            rows = torch.tensor([command], device=self.task.device).repeat(self.task.num_envs, 1)
            self.task.hold_commands(rows)
            self._held = command

    def _hold_clip(self) -> None:
        """Let all robots track the chosen clip, from its first frame when it changes."""
        if isinstance(self.task, MotionTracking) and self.controls.clip != self._held_clip:
            self._held_clip = self.controls.clip
            reset_policy(self._policy)
            self.task.hold_clips(torch.full_like(self.task.clip, self._held_clip))

    @property
    def _robot(self) -> int:
        return min(self.controls.robot, self.layout.num_robots - 1)

    def push(self, direction_deg: float, speed: float) -> None:
        """Push the chosen robot, in a direction seen from it: 0 is forward, 90 to its left."""
        task, robot = self.task, self._robot
        if isinstance(task, LeggedTask):
            mask = torch.zeros(task.num_envs, dtype=torch.bool, device=task.device)
            mask[robot] = True
            velocity = push_velocity(direction_deg, speed, float(yaw_angle(task.orientation[robot : robot + 1])))
            task.push(torch.from_numpy(velocity).to(mask.device, torch.float32).repeat(task.num_envs, 1), mask)

    def restart(self) -> None:
        """Start a new episode for all robots."""
        reset_policy(self._policy)
        self.task.reset()
        self._held = None

    def move_to_terrain(self, kind: int, level: int) -> None:
        """Let the chosen robot start again on another kind of terrain and level."""
        if isinstance(self.task, TerrainWalk):
            self.task.kind[self._robot], self.task.level[self._robot] = kind, level
        self.restart()

    def load_checkpoint(self, name: str) -> None:
        """Continue with the policy of another checkpoint; a file that cannot be loaded changes nothing."""
        try:
            policy = self._load_policy(name)
        except (OSError, RuntimeError, ValueError) as error:
            self.message = f"{name} could not be loaded: {error}"
            return
        self._policy, self.checkpoint = policy, name
        reset_policy(policy)

    @property
    def clips(self) -> list[tuple[str, float]]:
        """Name and duration in s of each reference clip; empty for a task without."""
        task = self.task
        has_clips = isinstance(task, LeggedAmp | MotionTracking)
        return [(clip.name, clip.duration) for clip in task.reference.clips] if has_clips else []

    def ghost_qpos(self) -> np.ndarray | None:
        """`(nq,)` pose of the reference clip, at the place and heading of the chosen robot; None without clips.

        A robot that tracks clips has its own place in them, and the ghost moves with it.
        """
        task, controls = self.task, self.controls
        if isinstance(task, MotionTracking):
            row = None
            if controls.clip_time is not None:
                frame = min(round(controls.clip_time / task.step_dt), task.reference.num_frames[controls.clip] - 1)
                row = torch.full_like(task.row, int(task.reference.first_row[controls.clip]) + frame)
            return task.reference_qpos(row)[self._robot].cpu().numpy().astype(np.float64)
        if not isinstance(task, LeggedAmp):
            return None
        duration = self.clips[controls.clip][1] - 2 * task.step_dt
        moment = self.time % duration if controls.clip_time is None else min(controls.clip_time, duration)
        clip = torch.tensor([controls.clip], device=task.device)
        pose = task.reference.state(clip, torch.tensor([moment], device=task.device, dtype=torch.float32))[0]
        qpos = pose[0].cpu().numpy().astype(np.float64)
        base = task.robot.require_locomotion("a reference").qpos
        qpos[base : base + 2] = self.frame.qpos[self._robot, base : base + 2]
        return qpos


class RealTime:
    """Decides how many steps are due so that simulated time follows the clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._next = clock()

    def wait_s(self, step_dt: float, speed: float) -> float:
        """Return the seconds until the next step is due, at least 0, and count it as done."""
        now = self._clock()
        self._next = max(self._next, now - _LARGEST_LAG) + step_dt / speed
        return max(0.0, self._next - now)
