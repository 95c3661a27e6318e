"""Tasks by name."""

import copy
from typing import Any, NamedTuple

import torch

from st_rl.sim.envs.cfg import TaskCfg, with_overrides
from st_rl.sim.envs.task import Task
from st_rl.sim.tasks import (
    balance,
    humanoid_amp,
    humanoid_walk,
    quadruped_amp,
    quadruped_parkour,
    quadruped_rough,
    quadruped_walk,
)
from st_rl.utils.config import unknown_name_message
from st_rl.utils.registry import is_class_path, resolve_class


class TaskEntry(NamedTuple):
    """A task by name."""

    task: type[Task]
    """Class of the task."""
    cfg: type[TaskCfg]
    """Class of its configuration."""
    training: dict[str, Any]
    """Default training configuration."""
    summary: str = ""
    """One line for `st-rl tasks`."""

    def training_config(self) -> dict[str, Any]:
        """A copy of the default training configuration."""
        return copy.deepcopy(self.training)


TASKS: dict[str, TaskEntry] = {
    "balance": TaskEntry(
        balance.Balance, balance.BalanceCfg, balance.TRAINING, "keep a pole upright on a cart; learned in seconds"
    ),
    "humanoid-amp": TaskEntry(
        humanoid_amp.HumanoidAmp,
        humanoid_amp.HumanoidAmpCfg,
        humanoid_amp.TRAINING,
        "follow velocity commands in the style of a reference walk",
    ),
    "humanoid-walk": TaskEntry(
        humanoid_walk.HumanoidWalk,
        humanoid_walk.HumanoidWalkCfg,
        humanoid_walk.TRAINING,
        "follow velocity commands on two feet, with quiet arms",
    ),
    "quadruped-amp": TaskEntry(
        quadruped_amp.QuadrupedAmp,
        quadruped_amp.QuadrupedAmpCfg,
        quadruped_amp.TRAINING,
        "follow velocity commands in the style of a trot, pace or bound",
    ),
    "quadruped-parkour": TaskEntry(
        quadruped_parkour.QuadrupedParkour,
        quadruped_parkour.QuadrupedParkourCfg,
        quadruped_parkour.TRAINING,
        "run along a track of steps, hurdles and gaps",
    ),
    "quadruped-rough": TaskEntry(
        quadruped_rough.QuadrupedRough,
        quadruped_rough.QuadrupedRoughCfg,
        quadruped_rough.TRAINING,
        "cross slopes, steps, waves and rubble at a commanded speed",
    ),
    "quadruped-walk": TaskEntry(
        quadruped_walk.QuadrupedWalk,
        quadruped_walk.QuadrupedWalkCfg,
        quadruped_walk.TRAINING,
        "follow velocity commands on flat ground",
    ),
}
"""Tasks that `make_task` and the command line know."""


def find_task(name: str) -> TaskEntry:
    """Return the entry of a task; ValueError with the nearest known name for an unknown one."""
    if name not in TASKS:
        raise ValueError(unknown_name_message("task", name, TASKS))
    return TASKS[name]


def make_task(
    name: str,
    num_envs: int | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    *,
    cfg: TaskCfg | None = None,
    **overrides: Any,
) -> Task:
    """Build a task by name.

    Args:
        name: One of `TASKS`, or the path of a class, `package.module:Class`, which needs `cfg`.
        num_envs: Number of robots; that of the configuration by default.
        device: Device of the tensors; it selects the physics backend too.
        seed: Seed of the task's random numbers on the CPU; a GPU uses `torch.manual_seed`.
        cfg: The configuration, by default that of the task; not modified.
        overrides: Fields to replace by dotted name, such as `**{"commands.lin_vel_x": (0.3, 1.0)}`.
    """
    if is_class_path(name):
        if cfg is None:
            raise ValueError(f"the task '{name}' needs its configuration: make_task('{name}', cfg=...)")
        final_cfg = with_overrides(cfg, overrides)
        task_class = resolve_class(name, {}, "task", Task)
        return task_class(final_cfg, final_cfg.num_envs if num_envs is None else num_envs, device, seed)
    entry = find_task(name)
    if cfg is not None and not isinstance(cfg, entry.cfg):
        raise ValueError(f"the task '{name}' takes a {entry.cfg.__name__}, got a {type(cfg).__name__}")
    final_cfg = with_overrides(entry.cfg() if cfg is None else cfg, overrides)
    return entry.task(final_cfg, final_cfg.num_envs if num_envs is None else num_envs, device, seed)
