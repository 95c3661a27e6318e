"""Leg geometry of a robot for gait synthesis, read from its model."""

import re

import numpy as np

from st_rl.datasets.gaits import BipedGeometry, QuadrupedGeometry
from st_rl.sim.require import mujoco
from st_rl.sim.robots import Robot
from st_rl.sim.robots.model_queries import pose_data

# Hip, thigh, calf.
_QUADRUPED_LEG_AXES = [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
# Hip pitch, roll and yaw, knee, ankle pitch and roll.
_BIPED_LEG_AXES = [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 0]]
_SHOULDER_NAME = re.compile(r"shoulder.*pitch", re.IGNORECASE)


def quadruped_geometry(robot: Robot) -> QuadrupedGeometry:
    """Geometry of a quadruped with legs of hip (roll), thigh and calf (pitch); ValueError for another robot."""
    model = robot.model
    robot.require_locomotion("a motion")
    # In the order of a gait's offsets: front to rear, right before left.
    ordered = [robot.feet[place] for place in robot.feet_by_place]
    feet = np.array([model.geom(foot.name).id for foot in ordered])
    calves = model.geom_bodyid[feet]
    thighs = model.body_parentid[calves]
    hips = model.body_parentid[thighs]
    joints = model.body_jntadr[np.stack([hips, thighs, calves], axis=1)]
    below = np.concatenate([model.body_pos[calves][:, :2], model.geom_pos[feet][:, :2], model.body_pos[thighs][:, ::2]])
    lengths = np.stack([model.body_pos[calves][:, 2], model.geom_pos[feet][:, 2], [foot.radius for foot in ordered]])
    are_alike = len(feet) == 4 and np.allclose(lengths, lengths[:, :1])
    if not are_alike or not np.allclose(model.jnt_axis[joints], _QUADRUPED_LEG_AXES) or not np.allclose(below, 0.0):
        raise ValueError(
            f"{robot.path} is not a quadruped that gaits can be synthesized for: it needs four legs of the same "
            "lengths, with a hip joint about x, a thigh and a calf joint about y, each straight below the one before; "
            "record a policy instead"
        )
    about_x, about_y = _gyration(robot)
    return QuadrupedGeometry(
        joint_names=tuple(model.joint(joint).name for joint in joints.reshape(-1)),
        foot_names=tuple(foot.name for foot in ordered),
        hips=model.body_pos[hips].copy(),
        thigh_offset=model.body_pos[thighs][:, 1].copy(),
        thigh=float(-model.body_pos[calves][0, 2]),
        calf=float(-model.geom_pos[feet][0, 2]),
        foot_radius=ordered[0].radius,
        gyration=(about_x, about_y),
    )


def _gyration(robot: Robot) -> tuple[float, float]:
    """Radii of gyration of the robot about x and y through its centre of mass, in its default pose."""
    model = robot.model
    data = pose_data(model, robot.default_qpos)
    mujoco.mj_comPos(model, data)
    axes = data.ximat.reshape(-1, 3, 3)
    own = np.einsum("bij,bj,bkj->ik", axes[1:], model.body_inertia[1:], axes[1:])
    mass, arm = model.body_mass[1:], data.xipos[1:] - data.subtree_com[0]
    square = (mass * (arm**2).sum(axis=1)).sum() - (mass[:, None] * arm**2).sum(axis=0)
    about_x, about_y, _ = np.sqrt((np.diag(own) + square) / robot.mass)
    return float(about_x), float(about_y)


def biped_geometry(robot: Robot) -> BipedGeometry:
    """Geometry of a biped with legs of six joints like the humanoid; ValueError for another robot."""
    model = robot.model
    base = robot.require_locomotion("a walk").body
    # The left foot first.
    feet = sorted(robot.feet, key=lambda foot: -robot.foot_positions[robot.feet.index(foot), 1])
    geoms = np.array([model.geom(foot.name).id for foot in feet])
    bodies = _bodies_of_legs(robot, geoms)
    index = {int(joint): i for i, joint in enumerate(model.dof_jntid[list(robot.qvel_indices)])}
    joints = model.body_jntadr[bodies] if bodies is not None else None
    if bodies is None or joints is None or not _is_known_leg(robot, bodies, joints, geoms, index):
        raise ValueError(
            f"{robot.path} is not a biped that a walk can be synthesized for: it needs two legs with hip joints about "
            "y, x and z in one point, a knee about y straight below, and ankle joints about y and x in one point; "
            "record a policy instead"
        )
    data = pose_data(model, robot.default_qpos)
    mujoco.mj_comPos(model, data)
    rotation = data.xmat[base].reshape(3, 3)
    return BipedGeometry(
        joint_names=robot.joint_names,
        default_pose=robot.default_joint_pos.copy(),
        legs=np.vectorize(lambda joint: index[int(joint)])(joints),
        shoulders=_shoulders(robot),
        foot_names=(feet[0].name, feet[1].name),
        hips=model.body_pos[bodies[:, 0]].copy(),
        thigh=float(-model.body_pos[bodies[0, 3], 2]),
        shin=float(-model.body_pos[bodies[0, 4], 2]),
        foot_centre=model.geom_pos[geoms[0]].copy(),
        foot_height=feet[0].radius,
        centre_of_mass=(data.subtree_com[base] - data.xpos[base]) @ rotation,
    )


def _bodies_of_legs(robot: Robot, geoms: np.ndarray) -> np.ndarray | None:
    """Bodies `(2, 6)` from hip to foot; None unless there are two feet, six links below the base."""
    if len(geoms) != 2 or robot.free_joint is None:
        return None
    chains = []
    for geom in geoms:
        chain = [int(robot.model.geom_bodyid[geom])]
        while len(chain) < len(_BIPED_LEG_AXES):
            chain.append(int(robot.model.body_parentid[chain[-1]]))
        if int(robot.model.body_parentid[chain[-1]]) != robot.free_joint.body:
            return None
        chains.append(chain[::-1])
    return np.array(chains)


def _is_known_leg(
    robot: Robot, bodies: np.ndarray, joints: np.ndarray, geoms: np.ndarray, index: dict[int, int]
) -> bool:
    """Whether the legs are alike and of the one kind that has a solution here."""
    model = robot.model
    if (model.body_jntnum[bodies] != 1).any() or any(int(joint) not in index for joint in joints.reshape(-1)):
        return False
    offsets, shapes = model.body_pos[bodies], model.geom_pos[geoms]
    apart = np.concatenate([offsets[:, [1, 2, 5]].reshape(-1), offsets[:, [3, 4], :2].reshape(-1)])
    facts = (
        np.allclose(model.jnt_axis[joints], _BIPED_LEG_AXES),
        np.allclose(apart, 0.0) and np.allclose(model.jnt_pos[joints], 0.0),
        np.allclose(model.body_quat[bodies], [1, 0, 0, 0]),
        np.allclose(offsets[0, 3:], offsets[1, 3:]) and np.allclose(shapes[0], shapes[1]),
    )
    return all(facts)


def _shoulders(robot: Robot) -> tuple[int, ...]:
    """Places of the joints that swing the left and the right arm forward; empty unless there are two."""
    named = [place for place, name in enumerate(robot.joint_names) if _SHOULDER_NAME.search(name)]
    if len(named) != 2:
        return ()
    model = robot.model
    joints = model.dof_jntid[list(robot.qvel_indices)][named]
    sideways = model.body_pos[model.jnt_bodyid[joints], 1]
    return tuple(place for _, place in sorted(zip(-sideways, named)))
