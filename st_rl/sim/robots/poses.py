"""The default pose of a model, and where a pose puts everything."""

from typing import Any

import numpy as np

from st_rl.sim.require import require_mujoco

HOME = "home"
"""Keyframe of the default pose."""


def home_qpos(model: Any) -> np.ndarray:
    """`(nq,)` keyframe "home", else `qpos0`."""
    mujoco = require_mujoco()
    key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME)
    return (model.key_qpos[key] if key >= 0 else model.qpos0).copy()


def posed(model: Any, qpos: np.ndarray) -> Any:
    """A `mujoco.MjData` with everything where a pose `(nq,)` puts it."""
    mujoco = require_mujoco()
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return data
