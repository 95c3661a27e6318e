"""The contract of a vectorised environment, its checker and adapters."""

from st_rl.env.check_env import check_env
from st_rl.env.vec_env import VecEnv

__all__ = ["VecEnv", "check_env"]
