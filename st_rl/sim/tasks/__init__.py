"""Built-in tasks, one module each with configuration, tables of terms and training; and terms of your own."""

from st_rl.sim.envs.cfg import TaskCfg, with_overrides
from st_rl.sim.envs.task import Task
from st_rl.sim.envs.term_tables import ObsTerm, RewardTerm
from st_rl.sim.tasks.own_terms import obs_term, reward_term, termination
from st_rl.sim.tasks.registry import TASKS, find_task, make_task
from st_rl.sim.tasks.training import TaskEntry

__all__ = [
    "TASKS",
    "ObsTerm",
    "RewardTerm",
    "Task",
    "TaskCfg",
    "TaskEntry",
    "find_task",
    "make_task",
    "obs_term",
    "reward_term",
    "termination",
    "with_overrides",
]
