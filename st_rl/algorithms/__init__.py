"""Losses, returns and the update; algorithms never see an environment."""

from typing import Any

from st_rl.algorithms.appo import APPO, ATPPO
from st_rl.algorithms.estimator import EstimatorPPO, EstimatorTPPO
from st_rl.algorithms.ppo import PPO
from st_rl.algorithms.tppo import TPPO

__all__ = ["APPO", "ATPPO", "PPO", "TPPO", "EstimatorPPO", "EstimatorTPPO", "algorithm_classes"]


def algorithm_classes() -> dict[str, Any]:
    """The algorithms that a configuration can name, by class name: those here, and those that a user adds."""
    classes = {name: cls for name, cls in globals().items() if isinstance(cls, type)}
    return {name: cls for name, cls in classes.items() if callable(getattr(cls, "update", None))}
