"""Adversarial motion priors share the schedules of teacher guidance."""

from st_rl.algorithms.tppo import GET_PROB_FUNC

__all__ = ["GET_PROB_FUNC"]
