"""Documented import path of trajectories, observation slices, code state and rotations."""

from st_rl.utils.files.code_state import store_code_state
from st_rl.utils.tensors.rotations import (
    quat_to_rotmat,
    rotmat_to_euler_xzy,
    rotmat_to_euler_yzx,
    rotmat_to_euler_zxy,
    wrap_to_pi,
)
from st_rl.utils.tensors.segments import (
    get_obs_slice,
    get_subobs_by_components,
    get_subobs_size,
    substitute_estimated_state,
)
from st_rl.utils.tensors.trajectories import split_and_pad_trajectories, unpad_trajectories

__all__ = [
    "get_obs_slice",
    "get_subobs_by_components",
    "get_subobs_size",
    "quat_to_rotmat",
    "rotmat_to_euler_xzy",
    "rotmat_to_euler_yzx",
    "rotmat_to_euler_zxy",
    "split_and_pad_trajectories",
    "store_code_state",
    "substitute_estimated_state",
    "unpad_trajectories",
    "wrap_to_pi",
]
