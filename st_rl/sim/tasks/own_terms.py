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
    unit: str = "",
    frame: str = "",
) -> Callable[[Function], Function]:
    """Add the decorated function, `(N, width)` of the task, to the observation of the task of this name.

    The columns come last in the actor observation, or last in the critic's if `privileged`. The first line of the
    function's docstring describes them to a controller; `ObsTerm` explains the other arguments.
    """

    def make_term(function: Term) -> ObsTerm:
        description = (function.__doc__ or "").strip().partition("\n")[0]
        return ObsTerm(function, width, scale, noise, mirror, privileged, segment, unit, frame, description)

    return _decorator(find_task(task).task.OBSERVATIONS, task, make_term)


def reward_term(task: str, weight: float) -> Callable[[Function], Function]:
    """Add the decorated function, `(N,)` of the task, to the reward of the task of this name, with a weight per second.

    `--env.rewards.NAME` overrides the weight.
    """
    return _decorator(find_task(task).task.REWARDS, task, lambda function: RewardTerm(function, weight))


def termination(task: str) -> Callable[[Function], Function]:
    """Let the decorated function, `(N,)` bool of the task, end episodes of the task of this name."""
    return _decorator(find_task(task).task.TERMINATIONS, task, lambda function: function)


def _decorator(
    table: dict[str, Entry], task: str, make_term: Callable[[Term], Entry]
) -> Callable[[Function], Function]:
    """A decorator that adds a term to a table under the name of its function."""

    def add(function: Function) -> Function:
        name = function.__name__
        if name in table:
            raise ValueError(f"the task '{task}' already has a term '{name}': give your function another name")
        table[name] = make_term(function)
        return function

    return add
