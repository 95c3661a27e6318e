"""Hyper-parameter trials: report a figure after every evaluation, stop when it is not worth going on."""

from typing import Any

from torch import Tensor


class TrialPruned(RuntimeError):
    """The trial was stopped early; raised where Optuna is not installed."""


def report_to_trial(trial: Any, iteration: int, velocity_error: Tensor, cost_of_transport: Tensor) -> bool:
    """Report to an Optuna-like trial; True when it asks to stop."""
    if hasattr(trial, "set_user_attr"):
        trial.set_user_attr("CoT", float(cost_of_transport.float().mean()))
    try:
        trial.report(float(velocity_error.float().mean()), iteration)
        return bool(trial.should_prune()) if hasattr(trial, "should_prune") else False
    except NotImplementedError:
        # Optuna knows neither reports nor pruning for a study of several objectives: such a trial runs to its end.
        return False


def pruned(message: str) -> Exception:
    """The exception that ends a pruned trial: Optuna's own where it is installed."""
    try:
        import optuna
    except ImportError:
        return TrialPruned(message)
    return optuna.TrialPruned(message)
