"""A trial of a sweep, as a runner takes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from st_rl.cli.support.command_line import CommandError


class EvaluatedTrial:
    """Reports to Optuna what the judge of the best snapshot finds, in the place of figures with exploration noise.

    The judge speaks at every snapshot and is heard in the next iteration. `on_iteration` is called with the number of
    iterations begun.
    """

    def __init__(self, trial: Any, judge: Callable[[Any], float], on_iteration: Callable[[int], None]):
        self._trial = trial
        self._judge = judge
        self._on_iteration = on_iteration
        self._unheard: float | None = None
        self._figures: dict[str, float] = {}
        self.scores: list[float] = []

    def judge(self, policy: Any) -> float:
        """The score of a policy without noise, higher is better; CommandError for one that is no number."""
        score = self._judge(policy)
        if not math.isfinite(score):
            raise CommandError(f"the score is {score}")
        self.scores.append(score)
        self._unheard = score
        return score

    def set_user_attr(self, name: str, value: float) -> None:
        """Take a figure of the training, the cost of transport."""
        self._figures[name] = value

    def report(self, tracking_error: float, iteration: int) -> None:
        """Take the training's own figure, and pass on what the judge said after so many iterations."""
        self._figures["tracking_error"] = tracking_error
        self._on_iteration(iteration + 1)
        if self._unheard is not None:
            self._trial.report(self._unheard, iteration)

    def should_prune(self) -> bool:
        """Whether a trial that was just judged is not worth going on with."""
        was_judged, self._unheard = self._unheard is not None, None
        return was_judged and self._trial.should_prune()

    def keep_figures(self, iterations: int) -> None:
        """Leave with Optuna how long the training was, and its last figures, where the task has them."""
        self._trial.set_user_attr("iterations", iterations)
        for name, value in self._figures.items():
            if math.isfinite(value):
                self._trial.set_user_attr(name, value)
