"""Decorators that add a term from a file of your own to a task; the name of the function is the name of the term."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from st_rl.sim.envs.term_tables import MirrorKind, ObsTerm, RewardTerm, Shape, Term
from st_rl.sim.tasks.registry import find_task

Function = TypeVar("Function", bound=Callable[[Any], torch.Tensor])
Entry = TypeVar("Entry", ObsTerm, RewardTerm, Term)


def obs_term(
    task: str,
    width: Shape | Callable[[Any], Shape],
    *,
    scale: float | str = 1.0,
    noise: float | str = 0.0,
    mirror: MirrorKind | Callable[[Any], MirrorKind] | None = None,
    privileged: bool = False,
    segment: str | None = None,
) -> Callable[[Function], Function]:
    """Add the decorated function, `(N, width)` of the task, to the observation of the task of this name.

    The columns come last in the actor observation, or last in the critic's if `privileged`. `ObsTerm` explains the
    other arguments.
    """

    def add(function: Function) -> Function:
        term = ObsTerm(function, width, scale, noise, mirror, privileged, segment)
        return _add(find_task(task).task.OBSERVATIONS, task, function, term)

    return add


def reward_term(task: str, weight: float) -> Callable[[Function], Function]:
    """Add the decorated function, `(N,)` of the task, to the reward of the task of this name, with a weight per second.

    `--env.rewards.NAME` overrides the weight.
    """

    def add(function: Function) -> Function:
        return _add(find_task(task).task.REWARDS, task, function, RewardTerm(function, weight))

    return add


def termination(task: str) -> Callable[[Function], Function]:
    """Let the decorated function, `(N,)` bool of the task, end episodes of the task of this name."""

    def add(function: Function) -> Function:
        return _add(find_task(task).task.TERMINATIONS, task, function, function)

    return add


def _add(table: dict[str, Entry], task: str, function: Function, term: Entry) -> Function:
    """Add a term to a table under the name of its function, and return the function."""
    name = function.__name__
    if name in table:
        raise ValueError(f"the task '{task}' already has a term '{name}': give your function another name")
    table[name] = term
    return function
