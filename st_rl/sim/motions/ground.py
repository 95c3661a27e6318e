"""Where a robot touches the ground in a clip: heights of its geoms, sliding of its feet, clips put on the ground."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from st_rl.datasets.clip import MotionClip, MotionError, linear_velocity
from st_rl.datasets.processing import mirror_joints, reorder_joints
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.motions.kinematics import Kinematics
from st_rl.sim.require import MjData, MjModel, mujoco
from st_rl.sim.robots import Robot
from st_rl.sim.robots.model_queries import geom_extent, is_colliding, lowest_height, robot_geoms
from st_rl.utils.tensors import rotations

CONTACT_HEIGHT = 0.01
"""A foot below this height above the ground, m, counts as on the ground."""
# A hop of shorter duration than this window, s, keeps its height when a clip is put on the ground smoothly.
_WINDOW_S = 1.0
# An edge of a box that is tilted less, as a cosine, lies flat.
_FLAT = 0.05


@dataclass(frozen=True, eq=False)
class GroundHeights:
    """Heights above z = 0 of a robot with `K` feet in a clip of `F` frames, by forward kinematics."""

    foot_names: tuple[str, ...]
    """Bodies of the feet."""
    feet: np.ndarray
    """`(F, K)` lowest point of each foot, m"""
    foot_speed: np.ndarray
    """`(F, K)` horizontal speed of that point of the foot, m/s"""
    lowest: np.ndarray
    """`(F,)` lowest point of all colliding geoms of the robot, m"""
    lowest_geom: tuple[str, ...]
    """Geom, or its body, of that point in each frame."""


def measure_ground_heights(robot: Robot, clip: MotionClip) -> GroundHeights:
    """Heights of feet and geoms over the clip; MotionError if it lacks a joint of the robot."""
    model, data = robot.model, mujoco.MjData(robot.model)
    bodies = list(dict.fromkeys(int(model.geom_bodyid[model.geom(foot.name).id]) for foot in robot.feet))
    geoms = [geom for geom in robot_geoms(model) if is_colliding(model, geom)]
    soles = [[g for g in geoms if int(model.geom_bodyid[g]) == body] for body in bodies]
    others = [geom for geom in geoms if int(model.geom_bodyid[geom]) not in bodies]
    points, pos, rot, lowest, lowest_geom = [], [], [], [], []
    for data.qpos[:] in clip_to_qpos_qvel(robot, clip)[0]:
        mujoco.mj_kinematics(model, data)
        sole_points = [min((_lowest_point(model, data, g) for g in sole), key=lambda p: p[2]) for sole in soles]
        points.append(sole_points)
        pos.append(data.xpos[bodies])
        rot.append(data.xquat[bodies])
        heights = {model.body(body).name: point[2] for body, point in zip(bodies, sole_points)}
        near = [g for g in others if data.geom_xpos[g, 2] < model.geom_rbound[g]]
        heights |= {
            model.geom(g).name or model.body(model.geom_bodyid[g]).name: lowest_height(model, data, g) for g in near
        }
        name = min(heights, key=lambda key: heights[key])
        lowest.append(heights[name])
        lowest_geom.append(name)
    speed = _point_speed(np.array(points), np.array(pos), np.array(rot), 1.0 / clip.fps)
    names = tuple(model.body(body).name for body in bodies)
    return GroundHeights(names, np.array(points)[..., 2], speed, np.array(lowest), tuple(lowest_geom))


def lowest_heights(robot: Robot, qpos: np.ndarray) -> np.ndarray:
    """`(F,)` height of the lowest point of all colliding geoms above z = 0 in poses `qpos` `(F, nq)`, m."""
    model, base = robot.model, robot.require_locomotion("its height above the ground")
    geoms = [geom for geom in robot_geoms(model) if is_colliding(model, geom)]
    bodies = sorted({int(model.geom_bodyid[geom]) for geom in geoms})
    poses = Kinematics(model, base, bodies, dtype=torch.float64)(
        torch.as_tensor(qpos, dtype=torch.float64), torch.zeros(len(qpos), model.nv, dtype=torch.float64)
    )
    heights = []
    for geom in geoms:
        place = bodies.index(int(model.geom_bodyid[geom]))
        down, local = poses.rot[:, place, 2].numpy(), np.zeros(9)
        mujoco.mju_quat2Mat(local, model.geom_quat[geom])
        centre = poses.pos[:, place, 2].numpy() + down @ model.geom_pos[geom]
        heights.append(centre - geom_extent(model, geom, down @ local.reshape(3, 3)))
    return np.min(heights, axis=0)


def raise_from_ground(robot: Robot, qpos: np.ndarray) -> np.ndarray:
    """A copy of poses `(F, nq)`, raised where the robot is in the ground."""
    raised, base = qpos.copy(), robot.require_locomotion("its height above the ground")
    raised[:, base.qpos + 2] -= lowest_heights(robot, qpos).clip(max=0.0)
    return raised


def put_on_ground(robot: Robot, clip: MotionClip, is_smooth: bool = False) -> MotionClip:
    """The clip raised or lowered so that the lowest point of the feet touches z = 0; without feet and bodies.

    By a constant, or smoothly: by the lowest height within a second of each frame, averaged, which also removes a slow
    drift and keeps shorter hops. No foot is below the ground afterwards; vertical velocities follow.
    """
    height = measure_ground_heights(robot, clip).feet.min(axis=1)
    offset = np.full(clip.num_frames, height.min())
    if is_smooth:
        half = max(1, round(0.5 * _WINDOW_S * clip.fps))
        minimum = np.lib.stride_tricks.sliding_window_view(np.pad(height, half, mode="edge"), 2 * half + 1).min(axis=1)
        hann = np.hanning(2 * half + 3)[1:-1]
        offset = np.convolve(np.pad(minimum, half, mode="edge"), hann / hann.sum(), mode="valid")
        offset += (height - offset).min()
    root_pos, root_lin_vel = clip.root_pos.copy(), clip.root_lin_vel.copy()
    root_pos[:, 2] -= offset
    root_lin_vel[:, 2] -= linear_velocity(offset, 1.0 / clip.fps)
    return replace(clip, root_pos=root_pos, root_lin_vel=root_lin_vel, feet=None, bodies=None)


def mirror_on_robot(robot: Robot, clip: MotionClip) -> MotionClip:
    """The clip mirrored at y = 0 by the symmetry that is measured on the robot; without feet and bodies."""
    clip = replace(reorder_joints(clip, robot.joint_names), feet=None, bodies=None)
    try:
        found = robot.mirror()
    except ValueError as error:
        remedy = "st-rl motion convert CLIP OUT --mirror mirrors by the names of the joints"
        raise MotionError(clip.where, "the robot", f"has no left and right ({error})", remedy) from error
    return mirror_joints(clip, found.joints, found.signs)


def _lowest_point(model: MjModel, data: MjData, geom: int) -> np.ndarray:
    """World position `(3,)` of the lowest point of a geom; the middle of an edge or a face that lies flat."""
    kind, size = int(model.geom_type[geom]), model.geom_size[geom]
    matrix = data.geom_xmat[geom].reshape(3, 3)
    point = data.geom_xpos[geom].copy()
    side = np.where(np.abs(matrix[2]) > _FLAT, np.sign(matrix[2]), 0.0)
    if kind == int(mujoco.mjtGeom.mjGEOM_BOX):
        point -= matrix @ (size * side)
    elif kind == int(mujoco.mjtGeom.mjGEOM_CAPSULE):
        point -= matrix[:, 2] * size[1] * side[2]
    point[2] = lowest_height(model, data, geom)
    return point


def _point_speed(points: np.ndarray, pos: np.ndarray, rot: np.ndarray, dt: float) -> np.ndarray:
    """Horizontal speeds `(F, K)` of material points at `(F, K, 3)` of bodies at `(F, K, 3)` and `(F, K, 4)`."""
    ang_vel = rotations.angular_velocity(rotations.remove_sign_flips(rot), dt)
    velocity = linear_velocity(pos, dt) + np.cross(ang_vel, points - pos)
    return np.linalg.norm(velocity[..., :2], axis=-1)
