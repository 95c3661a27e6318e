"""Schedules of teacher guidance."""

import math
from collections.abc import Callable

PROB_OPTIONS = ("linear", "exp", "tanh")


class UnknownScheduleError(ValueError, KeyError):
    """A schedule name that does not exist."""

    __str__ = ValueError.__str__


def GET_PROB_FUNC(option: str, iteration_scale: float) -> Callable[[float], float]:
    """A function of the iteration that falls from about 1 towards 0 within some `iteration_scale` iterations."""
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
