"""The contract of a vectorized environment, its checker and adapters."""

from st_rl.env.check_env import check_env
from st_rl.env.gymnasium_adapter import GymnasiumVecEnv, make_gymnasium
from st_rl.env.manager_based_adapter import ManagerBasedVecEnv, make_mjlab
from st_rl.env.observation_history import ObservationHistory
from st_rl.env.vec_env import VecEnv

__all__ = [
    "GymnasiumVecEnv",
    "ManagerBasedVecEnv",
    "ObservationHistory",
    "VecEnv",
    "check_env",
    "make_gymnasium",
    "make_mjlab",
]
