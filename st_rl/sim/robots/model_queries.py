"""Queries on a MuJoCo model: default pose, extent of geoms, collisions, ground."""

from typing import NamedTuple

import numpy as np

from st_rl.sim.require import MjData, MjModel, MjSpec, mujoco

HOME = "home"
"""Keyframe of the default pose."""
# Above this cosine of its tilt a foot counts as standing flat.
_NEARLY_FLAT = 0.94


class FreeJoint(NamedTuple):
    """Body and addresses of the base's free joint: position and quaternion (7), velocities (6)."""

    body: int
    qpos: int
    qvel: int


def home_qpos(model: MjModel) -> np.ndarray:
    """`(nq,)` keyframe "home", else `qpos0`."""
    key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, HOME)
    return (model.key_qpos[key] if key >= 0 else model.qpos0).copy()


def scalar_joints(model: MjModel) -> list[int]:
    """Ids of all hinge and slide joints."""
    kinds = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    return [joint for joint in range(model.njnt) if int(model.jnt_type[joint]) in kinds]


def find_free_joint(model: MjModel) -> FreeJoint | None:
    """The first free joint; None for a robot with a fixed base."""
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE))
    if len(free) == 0:
        return None
    joint = int(free[0])
    return FreeJoint(int(model.jnt_bodyid[joint]), int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint]))


def body_chain(model: MjModel, body: int) -> list[int]:
    """A body and those that carry it, up to the world."""
    chain = [body]
    while chain[-1]:
        chain.append(int(model.body_parentid[chain[-1]]))
    return chain


def pose_data(model: MjModel, qpos: np.ndarray) -> MjData:
    """A new `mujoco.MjData` with the kinematics of a pose `(nq,)`."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return data


def is_colliding(model: MjModel, geom: int) -> bool:
    """Whether a geom can collide with any other."""
    return bool(model.geom_contype[geom] or model.geom_conaffinity[geom])


def robot_geoms(model: MjModel) -> list[int]:
    """Ids of all geoms that do not belong to the world body."""
    return [geom for geom in range(model.ngeom) if int(model.geom_bodyid[geom]) != 0]


def has_ground(model: MjModel) -> bool:
    """Whether the world body has a colliding plane or height field."""
    kinds = mujoco.mjtGeom
    ground = (int(kinds.mjGEOM_PLANE), int(kinds.mjGEOM_HFIELD))
    world = (g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == 0 and is_colliding(model, g))
    return any(int(model.geom_type[geom]) in ground for geom in world)


def ground_contact_bits(spec: MjSpec) -> dict[str, int]:
    """`contype` and `conaffinity` for new ground: as the plane of the world has them, if it has a colliding one.

    Otherwise bits that match every colliding geom of the robot, whatever the defaults of the file are.
    """
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    for geom in spec.worldbody.geoms:
        if geom.type == plane and (geom.contype or geom.conaffinity):
            return {"contype": geom.contype, "conaffinity": geom.conaffinity}
    bits = {"contype": 1, "conaffinity": 1}
    for geom in spec.geoms:
        bits["contype"] |= geom.conaffinity
        bits["conaffinity"] |= geom.contype
    return bits


def lowest_height(model: MjModel, data: MjData, geom: int) -> float:
    """World height of the lowest point of a geom in the pose of `data`."""
    down = data.geom_xmat[geom].reshape(3, 3)[2]
    return float(data.geom_xpos[geom, 2] - geom_extent(model, geom, down))


def sole_height(model: MjModel, data: MjData, geom: int) -> float:
    """Height of a geom's centre above the ground when it stands with the orientation of `data`.

    A foot that is tilted slightly is measured as if it stood flat.
    """
    up = data.geom_xmat[geom].reshape(3, 3)[2].copy()
    nearest = int(np.abs(up).argmax())
    if abs(up[nearest]) > _NEARLY_FLAT:
        up = np.sign(up[nearest]) * np.eye(3)[nearest]
    return float(geom_extent(model, geom, up))


def geom_extent(model: MjModel, geom: int, up: np.ndarray) -> np.ndarray:
    """Distance `(...)` from the centre of a geom to its lowest point, for unit vectors `up` `(..., 3)` in its frame."""
    kinds = mujoco.mjtGeom
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    if kind == int(kinds.mjGEOM_SPHERE):
        return np.full(up.shape[:-1], size[0])
    if kind == int(kinds.mjGEOM_CAPSULE):
        return size[0] + size[1] * np.abs(up[..., 2])
    if kind == int(kinds.mjGEOM_CYLINDER):
        return size[0] * np.hypot(up[..., 0], up[..., 1]) + size[1] * np.abs(up[..., 2])
    if kind == int(kinds.mjGEOM_ELLIPSOID):
        return np.linalg.norm(size * up, axis=-1)
    if kind == int(kinds.mjGEOM_BOX):
        return np.abs(up) @ size
    if kind == int(kinds.mjGEOM_MESH):
        mesh = int(model.geom_dataid[geom])
        start, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
        return -(up @ model.mesh_vert[start : start + count].T).min(axis=-1)
    return np.full(up.shape[:-1], model.geom_rbound[geom])
