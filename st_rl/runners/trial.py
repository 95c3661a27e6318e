"""Optuna trials: report the tracking error of every iteration and stop when the trial is pruned."""

from typing import Protocol, runtime_checkable

from torch import Tensor


class TrialPruned(RuntimeError):
    """The trial was pruned; raised if Optuna is not installed."""


class Trial(Protocol):
    """The method of `optuna.Trial` that training calls."""

    def report(self, value: float, step: int) -> None:
        """Record the objective of an iteration."""
        ...


@runtime_checkable
class PrunableTrial(Protocol):
    """A trial that may be stopped early."""

    def should_prune(self) -> bool:
        """Return whether to stop."""
        ...


@runtime_checkable
class AnnotatedTrial(Protocol):
    """A trial that records further figures."""

    def set_user_attr(self, key: str, value: object) -> None:
        """Record a further figure."""
        ...


def report_to_trial(trial: Trial, iteration: int, velocity_error: Tensor, cost_of_transport: Tensor) -> bool:
    """Report one iteration; returns whether the trial is to be pruned."""
    if isinstance(trial, AnnotatedTrial):
        trial.set_user_attr("CoT", float(cost_of_transport.float().mean()))
    try:
        trial.report(float(velocity_error.float().mean()), iteration)
        return isinstance(trial, PrunableTrial) and bool(trial.should_prune())
    except NotImplementedError:
        # Optuna supports neither reports nor pruning in multi-objective studies.
        return False


def pruned_error(message: str) -> Exception:
    """Return the exception that ends a pruned trial: Optuna's own if it is installed."""
    try:
        import optuna
    except ImportError:
        return TrialPruned(message)
    return optuna.TrialPruned(message)
