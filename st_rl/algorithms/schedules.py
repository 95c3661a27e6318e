"""Values that are functions of the iteration, such as the probability that the teacher acts."""

import math
from collections.abc import Callable

import torch

PROB_OPTIONS = ("linear", "exp", "tanh")


class UnknownScheduleError(ValueError, KeyError):
    """A schedule name that does not exist."""

    __str__ = ValueError.__str__


def GET_PROB_FUNC(option: str, iteration_scale: float) -> Callable[[float], float]:
    """A function of the iteration that falls from about 1 to 0 over about `iteration_scale` iterations."""
    if option not in PROB_OPTIONS:
        raise UnknownScheduleError(f"unknown schedule '{option}'; use one of: {', '.join(PROB_OPTIONS)}")
    scale = float(iteration_scale)
    if scale <= 0 or (option == "exp" and scale < 1):
        least = "at least 1" if option == "exp" else "above 0"
        raise ValueError(f"iteration_scale must be {least} for the '{option}' schedule, got {iteration_scale}")
    functions: dict[str, Callable[[float], float]] = {
        "linear": lambda x: max(0.0, 1.0 - x / scale),
        "exp": lambda x: max(0.0, (1.0 - 1.0 / scale) ** x),
        "tanh": lambda x: max(0.0, 0.5 * (1.0 - math.tanh((x - scale) / scale))),
    }
    return functions[option]


class Schedule:
    """A function of the iteration with its current value in a 0-d tensor, which compiled and captured code can read."""

    def __init__(self, rule: str | float | Callable[[int], float], scale: float, device: torch.device | str):
        self._rule = GET_PROB_FUNC(rule, scale) if isinstance(rule, str) else rule
        self.value = torch.zeros((), device=device)
        self.update(0)

    def __call__(self, iteration: int) -> float:
        """The value at an iteration."""
        return float(self._rule(iteration) if callable(self._rule) else self._rule)

    def update(self, iteration: int) -> None:
        """Set the tensor to the value at an iteration."""
        self.value.fill_(self(iteration))
