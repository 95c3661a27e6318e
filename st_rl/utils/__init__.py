"""Tensors, trajectories, segments, configuration and files; knows nothing of reinforcement learning."""

from typing import TYPE_CHECKING, Any

from st_rl.utils.lazy_names import load_name

if TYPE_CHECKING:
    from st_rl.utils.files.code_state import store_code_state
    from st_rl.utils.tensors.trajectories import split_and_pad_trajectories, unpad_trajectories

__all__ = ["split_and_pad_trajectories", "store_code_state", "unpad_trajectories"]

# Modules that import torch, loaded with the first use of a name: commands that only read files start without torch.
_MODULES = {
    "split_and_pad_trajectories": "st_rl.utils.tensors.trajectories",
    "store_code_state": "st_rl.utils.files.code_state",
    "unpad_trajectories": "st_rl.utils.tensors.trajectories",
}


def __getattr__(name: str) -> Any:
    return load_name(__name__, name, _MODULES)
