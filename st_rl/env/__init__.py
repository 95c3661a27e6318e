"""The contract of a vectorised environment, its checker and adapters."""

from st_rl.env.vec_env import VecEnv

__all__ = ["VecEnv"]
