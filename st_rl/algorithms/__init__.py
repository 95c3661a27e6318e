"""Losses, returns and the update; algorithms never see an environment."""

from st_rl.algorithms.appo import APPO, ATPPO
from st_rl.algorithms.estimator import EstimatorPPO, EstimatorTPPO
from st_rl.algorithms.ppo import PPO
from st_rl.algorithms.tppo import TPPO

__all__ = ["APPO", "ATPPO", "PPO", "TPPO", "EstimatorPPO", "EstimatorTPPO", "algorithm_classes"]


def algorithm_classes() -> dict[str, type[PPO]]:
    """The algorithms a configuration can name, by class name."""
    return {name: cls for name, cls in globals().items() if isinstance(cls, type) and issubclass(cls, PPO)}
