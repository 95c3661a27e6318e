"""Built-in tasks: what a robot should do, in batched torch on top of a backend."""

import copy
from typing import Any, NamedTuple

import torch

from st_rl.sim.envs.cfg import TaskCfg, with_overrides
from st_rl.sim.envs.legged_amp import LeggedAmp, LeggedAmpCfg
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.envs.task import Task
from st_rl.sim.tasks.balance import Balance, BalanceCfg
from st_rl.sim.tasks.humanoid_amp import HumanoidAmpCfg
from st_rl.sim.tasks.humanoid_walk import HumanoidWalk, HumanoidWalkCfg
from st_rl.sim.tasks.quadruped_parkour import QuadrupedParkour
from st_rl.sim.tasks.quadruped_parkour_cfg import QuadrupedParkourCfg
from st_rl.sim.tasks.quadruped_rough import QuadrupedRough
from st_rl.sim.tasks.quadruped_rough_cfg import QuadrupedRoughCfg
from st_rl.sim.tasks.training import (
    BALANCE_TRAINING,
    HUMANOID_AMP_TRAINING,
    HUMANOID_WALK_TRAINING,
    QUADRUPED_AMP_TRAINING,
    QUADRUPED_PARKOUR_TRAINING,
    QUADRUPED_ROUGH_TRAINING,
    QUADRUPED_WALK_TRAINING,
)
from st_rl.utils.config import unknown_name_message
from st_rl.utils.registry import is_class_path, resolve_class

__all__ = ["TASKS", "Task", "TaskCfg", "TaskEntry", "find_task", "make_task", "with_overrides"]


class TaskEntry(NamedTuple):
    """A task by name: its class, the class of its configuration, how to train it, and what it is in a few words."""

    task: type[Any]
    cfg: type[Any]
    training: dict[str, Any]
    summary: str = ""

    def training_config(self) -> dict[str, Any]:
        """A copy of the default training configuration, free to change."""
        return copy.deepcopy(self.training)


TASKS: dict[str, TaskEntry] = {
    "balance": TaskEntry(Balance, BalanceCfg, BALANCE_TRAINING, "keep a pole upright on a cart; learned in seconds"),
    "humanoid-amp": TaskEntry(
        LeggedAmp, HumanoidAmpCfg, HUMANOID_AMP_TRAINING, "walk as commanded, in the style of a reference walk"
    ),
    "humanoid-walk": TaskEntry(
        HumanoidWalk,
        HumanoidWalkCfg,
        HUMANOID_WALK_TRAINING,
        "walk and turn as commanded, on two feet and with quiet arms",
    ),
    "quadruped-amp": TaskEntry(
        LeggedAmp, LeggedAmpCfg, QUADRUPED_AMP_TRAINING, "walk as commanded, in the style of a trot, pace or bound"
    ),
    "quadruped-parkour": TaskEntry(
        QuadrupedParkour,
        QuadrupedParkourCfg,
        QUADRUPED_PARKOUR_TRAINING,
        "run along a track of steps, hurdles and gaps",
    ),
    "quadruped-rough": TaskEntry(
        QuadrupedRough,
        QuadrupedRoughCfg,
        QUADRUPED_ROUGH_TRAINING,
        "cross slopes, steps, waves and rubble at a commanded speed",
    ),
    "quadruped-walk": TaskEntry(
        LeggedWalk,
        LeggedWalkCfg,
        QUADRUPED_WALK_TRAINING,
        "follow commands forward, sideways and turning on flat ground",
    ),
}
"""Tasks that `make_task` and the command line know."""


def find_task(name: str) -> TaskEntry:
    """The entry of a task; ValueError with the nearest name first and all names for an unknown one."""
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
        num_envs: Number of robots; the configuration's own number by default.
        device: Where tensors live; it also decides which backend steps physics.
        seed: Of the task's random numbers on the CPU; on a GPU they follow `torch.manual_seed`.
        cfg: The configuration to start from, by default that of the task; not modified.
        overrides: Fields to replace by dotted name, such as `**{"commands.forward": (0.3, 1.0)}`.
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
