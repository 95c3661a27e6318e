"""Tensors, trajectories, segments, configuration and files; knows nothing of reinforcement learning."""

from st_rl.utils.files.code_state import store_code_state
from st_rl.utils.tensors.trajectories import split_and_pad_trajectories, unpad_trajectories

__all__ = ["split_and_pad_trajectories", "store_code_state", "unpad_trajectories"]
