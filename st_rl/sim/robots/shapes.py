"""Sizes of a model's geoms: how far down they reach, and how high a foot's centre is when it stands."""

from typing import Any

import numpy as np

from st_rl.sim.require import require_mujoco

# Cosine of the angle below which a foot would stand flat.
_NEARLY_FLAT = 0.94


def lowest_height(model: Any, data: Any, geom: int) -> float:
    """World height of the lowest point of a geom in the pose of `data`."""
    down = data.geom_xmat[geom].reshape(3, 3)[2]
    return float(data.geom_xpos[geom, 2] - _reach(model, geom, down))


def sole_height(model: Any, data: Any, geom: int) -> float:
    """Height of a geom's centre above the ground when it stands as it does in the pose of `data`.

    A flat foot that hangs at a slight angle is measured as if it stood flat.
    """
    up = data.geom_xmat[geom].reshape(3, 3)[2].copy()
    nearest = int(np.abs(up).argmax())
    if abs(up[nearest]) > _NEARLY_FLAT:
        up = np.sign(up[nearest]) * np.eye(3)[nearest]
    return float(_reach(model, geom, up))


def _reach(model: Any, geom: int, up: np.ndarray) -> float:
    """How far a geom extends from its centre against the unit vector `up` `(3,)` in its own frame."""
    kinds = require_mujoco().mjtGeom
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == int(kinds.mjGEOM_SPHERE):
        return float(size[0])
    if kind == int(kinds.mjGEOM_CAPSULE):
        return float(size[0] + size[1] * abs(up[2]))
    if kind == int(kinds.mjGEOM_CYLINDER):
        return float(size[0] * np.hypot(up[0], up[1]) + size[1] * abs(up[2]))
    if kind == int(kinds.mjGEOM_ELLIPSOID):
        return float(np.linalg.norm(size * up))
    if kind == int(kinds.mjGEOM_BOX):
        return float(size @ np.abs(up))
    if kind == int(kinds.mjGEOM_MESH):
        mesh = int(model.geom_dataid[geom])
        start, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
        return float(-(model.mesh_vert[start : start + count] @ up).min())
    return float(model.geom_rbound[geom])
