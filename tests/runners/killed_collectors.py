"""Pairs of collectors that write to the same folder and are killed at random moments.

They are forks, so that many of them take seconds; benchmarks/faults/kill_collectors.py kills more.
"""

import os
import random
import signal
import time
import traceback
from typing import Any

import torch

from st_rl.runners import DemonstrationSaver
from st_rl.storage.rollout_files import layout
from st_rl.utils.files.heartbeat import heartbeats

EPISODE_LENGTH = 23


class NumberedEnv:
    """Observations identify every frame: `(writer, env, episode, step, sum)`."""

    num_envs, num_obs, num_actions, num_privileged_obs, device = 6, 5, 1, None, "cpu"

    def __init__(self, writer: int):
        self.writer = writer
        self.episodes = torch.arange(self.num_envs) * 1000
        self.steps = torch.zeros(self.num_envs, dtype=torch.int64)

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        robots = torch.arange(self.num_envs)
        columns = [torch.full_like(robots, self.writer), robots, self.episodes, self.steps]
        numbers = torch.stack([*columns, sum(columns)], dim=-1).float()
        return numbers, {"observations": {}}

    def reset(self) -> Any:
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> Any:
        rewards = self.steps.float()
        self.steps = self.steps + 1
        dones = self.steps >= EPISODE_LENGTH + torch.arange(self.num_envs)
        self.episodes = self.episodes + dones
        self.steps = torch.where(dones, 0, self.steps)
        obs, extras = self.get_observations()
        return obs, rewards, dones, {**extras, "time_outs": dones & (self.episodes % 2 == 0)}


class StepPolicy:
    """The action is the step number."""

    def act_inference(self, obs: torch.Tensor) -> torch.Tensor:
        return obs[:, 3:4].clone()

    def reset(self, dones: torch.Tensor) -> None:
        pass


def collect_endlessly(folder: str, writer: int) -> None:
    saver = DemonstrationSaver(NumberedEnv(writer), StepPolicy(), folder, 5, min_timesteps=1e12)
    saver.on_progress = lambda fraction, line: None
    saver.collect_and_save()


def count_files(folder: str) -> int:
    """Frame files of all trajectories."""
    return sum(len(layout.frame_files(trajectory)) for trajectory in layout.own_trajectories(folder))


def start_collector(folder: str, writer: int) -> int:
    """Fork a collector and return its process id; it prints the traceback if it raises."""
    pid = os.fork()
    if pid == 0:
        try:
            collect_endlessly(folder, writer)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def kill_collectors(folder: str, num_kills: int, seed: int) -> None:
    """Start pairs of collectors and kill them; RuntimeError when one exits before it is killed."""
    generator, num_killed = random.Random(seed), 0
    while num_killed < num_kills:
        running = [start_collector(folder, num_killed + number) for number in (1, 2)]
        try:
            for pid in tuple(running):
                wait_for_kill(folder, pid, generator)
                os.kill(pid, signal.SIGKILL)
                running.remove(pid)
                _, status = os.waitpid(pid, 0)
                if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
                    raise RuntimeError(f"a collector exited before it was killed, with status {status}")
                num_killed += 1
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)


def wait_for_kill(folder: str, pid: int, generator: random.Random) -> None:
    """Wait until a collector has started or, half of the time, until frames were written."""
    # By its progress, not by time, which depends on the load of the machine.
    while not any(f"-{pid}-" in path.name for path in heartbeats(folder, layout.COLLECTOR)):
        time.sleep(0.001)
    num_files = count_files(folder) if generator.random() < 0.5 else -1
    while count_files(folder) <= num_files:
        time.sleep(0.001)
    time.sleep(generator.uniform(0.002, 0.06))
