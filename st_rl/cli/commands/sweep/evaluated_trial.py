"""The trial object that a runner reports to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import CommandError

if TYPE_CHECKING:
    import optuna


class EvaluatedTrial:
    """Reports checkpoint scores to Optuna instead of the noisy training metrics of the runner.

    The evaluator scores every checkpoint; the score is reported in the next iteration. `on_iteration` is called with
    the number of started iterations.
    """

    def __init__(self, trial: optuna.Trial, evaluator: Callable[[Any], float], on_iteration: Callable[[int], None]):
        self._trial = trial
        self._evaluator = evaluator
        self._on_iteration = on_iteration
        self._unreported: float | None = None
        self._metrics: dict[str, float] = {}
        self.scores: list[float] = []

    def evaluate(self, policy: Callable[..., Any]) -> float:
        """Return the score of a policy, higher is better; CommandError if it is not finite."""
        score = self._evaluator(policy)
        if not math.isfinite(score):
            raise CommandError(f"the score is {score}")
        self.scores.append(score)
        self._unreported = score
        return score

    def set_user_attr(self, key: str, value: object) -> None:
        """Store a metric of the training."""
        if isinstance(value, float):
            self._metrics[key] = value

    def report(self, value: float, step: int) -> None:
        """Store the tracking error `value` of iteration `step` and report the last score to Optuna."""
        self._metrics["tracking_error"] = value
        self._on_iteration(step + 1)
        if self._unreported is not None:
            self._trial.report(self._unreported, step)

    def should_prune(self) -> bool:
        """Whether Optuna prunes the trial; only asked after a new score."""
        has_new_score, self._unreported = self._unreported is not None, None
        return has_new_score and self._trial.should_prune()

    def store_metrics(self, iterations: int) -> None:
        """Store the number of iterations and the last finite metrics with Optuna."""
        self._trial.set_user_attr("iterations", iterations)
        for name, value in self._metrics.items():
            if math.isfinite(value):
                self._trial.set_user_attr(name, value)
