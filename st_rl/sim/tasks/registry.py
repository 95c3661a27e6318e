"""Tasks by name."""

import dataclasses

import torch

from st_rl.sim.envs.cfg import TaskCfg, with_overrides
from st_rl.sim.envs.task import Task
from st_rl.sim.tasks import (
    balance,
    humanoid_amp,
    humanoid_track,
    humanoid_walk,
    quadruped_amp,
    quadruped_parkour,
    quadruped_rough,
    quadruped_track,
    quadruped_walk,
)
from st_rl.sim.tasks.training import TaskEntry
from st_rl.utils.config import is_class_path, resolve_class, unknown_name_message

TASKS: dict[str, TaskEntry] = {
    "balance": balance.TASK,
    "humanoid-amp": humanoid_amp.TASK,
    "humanoid-track": humanoid_track.TASK,
    "humanoid-walk": humanoid_walk.TASK,
    "quadruped-amp": quadruped_amp.TASK,
    "quadruped-parkour": quadruped_parkour.TASK,
    "quadruped-rough": quadruped_rough.TASK,
    "quadruped-track": quadruped_track.TASK,
    "quadruped-walk": quadruped_walk.TASK,
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
    **overrides: object,
) -> Task:
    """Build a task by name.

    Args:
        name: One of `TASKS`, or the path of a class, `package.module:Class`, which needs `cfg`.
        num_envs: Number of robots; by default as in the configuration.
        device: Device of the tensors; it selects the physics backend too.
        seed: Seed of the task's random numbers on the CPU; a GPU uses `torch.manual_seed`.
        cfg: The configuration, by default that of the task; not modified.
        overrides: Fields to replace by dotted name, such as `**{"commands.lin_vel_x": (0.3, 1.0)}`.
    """
    if is_class_path(name):
        if cfg is None:
            raise ValueError(f"the task '{name}' needs its configuration: make_task('{name}', cfg=...)")
        task_class = resolve_class(name, {}, "task", Task)
    else:
        task_class, cfg_class = find_task(name)[:2]
        cfg = cfg_class() if cfg is None else cfg
        if not isinstance(cfg, cfg_class):
            raise ValueError(f"the task '{name}' takes a {cfg_class.__name__}, got a {type(cfg).__name__}")
    cfg = with_overrides(cfg, overrides)
    task = task_class(cfg, cfg.num_envs if num_envs is None else num_envs, device, seed)
    if not is_class_path(name):
        task.task_id, task.task_config = name, dataclasses.asdict(cfg)
    return task
