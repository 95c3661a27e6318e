"""Squat, wave, kick and turn of a biped: keyframes, inverse kinematics, and a center of mass above the feet."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from st_rl.datasets.clip import MotionClip, linear_velocity, make_clip
from st_rl.datasets.gaits import BipedGeometry
from st_rl.datasets.gaits.biped import rotation_matrix, solve_leg_joints
from st_rl.datasets.processing import resample
from st_rl.sim.motions.geometry import biped_geometry
from st_rl.sim.require import mujoco
from st_rl.sim.robots import Robot
from st_rl.sim.robots.model_queries import pose_data
from st_rl.utils.tensors import rotations

# Joints of an arm, in the order of the keyframes.
_ARM_JOINTS = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow")
# Frames per second at which poses are computed, and differentiated to velocities.
_MIN_FINE_FPS = 200.0
# Largest distance, m, of the center of mass from its planned place, and the most corrections of the base to reach it.
_COM_TOLERANCE, _MAX_CORRECTIONS = 1e-7, 50
# A foot that steps moves horizontally in this part of its time, so that it neither leaves nor meets the ground sliding.
_STEP_START, _STEP_END = 0.15, 0.85


class FootPose(NamedTuple):
    """A foot relative to where it stands at the beginning, in the world frame."""

    x: float = 0.0
    """Forward, m."""
    y: float = 0.0
    """To the left, m."""
    z: float = 0.0
    """Up, m."""
    yaw: float = 0.0
    """To the left, rad."""
    pitch: float = 0.0
    """Toes down, rad."""


class Keyframe(NamedTuple):
    """A pose in which the robot is at rest, relative to the standing pose."""

    seconds: float
    """Time since the keyframe before."""
    left_load: float = 0.5
    """Fraction of the weight on the left foot: the center of mass is above that point between the feet."""
    lower: float = 0.0
    """Height of the base below standing, m."""
    lean: float = 0.0
    """Pitch of the base, forward, rad."""
    heading: float = 0.0
    """Yaw of the base, to the left, rad."""
    left_foot: FootPose = FootPose()
    right_foot: FootPose = FootPose()
    left_arm: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    """Shoulder pitch, roll and yaw, elbow, rad, added to the default pose."""
    right_arm: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    lift: tuple[float, float] = (0.0, 0.0)
    """Height of the arc of the left and the right foot on the way to this keyframe, m."""


def _squat() -> list[Keyframe]:
    forward = (-1.0, 0.0, 0.0, 0.35)
    low = Keyframe(1.0, lower=0.2, lean=0.35, left_arm=forward, right_arm=forward)
    return [Keyframe(0.2), low, low._replace(seconds=0.3), Keyframe(1.0), Keyframe(0.2)]


def _wave() -> list[Keyframe]:
    """The right hand is raised beside the head and waves three times, from the elbow."""
    inside = Keyframe(0.3, right_arm=(-0.2, -1.5, -1.4, -1.25))
    outside = inside._replace(right_arm=(-0.2, -1.5, -1.4, -0.35))
    raised = outside._replace(seconds=0.9)
    return [Keyframe(0.2), raised, *[inside, outside] * 3, Keyframe(0.9), Keyframe(0.2)]


def _kick() -> list[Keyframe]:
    """The left foot kicks forward while the robot stands on the right one."""
    on_right = Keyframe(0.9, left_load=0.1, lower=0.01)
    raised = on_right._replace(seconds=0.4, left_foot=FootPose(z=0.08))
    back = raised._replace(
        seconds=0.4,
        left_foot=FootPose(x=-0.16, z=0.14, pitch=0.5),
        left_arm=(-0.4, 0.1, 0.0, 0.0),
        right_arm=(0.3, -0.1, 0.0, 0.0),
    )
    kicked = back._replace(
        seconds=0.42,
        left_foot=FootPose(x=0.42, z=0.24, pitch=-0.7),
        left_arm=(0.4, 0.1, 0.0, 0.0),
        right_arm=(-0.4, -0.1, 0.0, 0.0),
    )
    lowered = raised._replace(seconds=0.6)
    return [
        Keyframe(0.2),
        on_right,
        raised,
        back,
        kicked,
        lowered,
        on_right._replace(seconds=0.4),
        Keyframe(0.9),
        Keyframe(0.2),
    ]


def _turn(feet: np.ndarray, angle: float = np.pi / 2, num_steps: int = 2) -> list[Keyframe]:
    """Steps on the spot, the left foot first, until feet that stand at `(2, 2)` have turned to the left by `angle`."""
    step, centre = angle / num_steps, feet.mean(axis=0)

    def turned(foot: int, yaw: float) -> FootPose:
        shift = rotation_matrix(2, np.array(yaw))[:2, :2] @ (feet[foot] - centre) + centre - feet[foot]
        return FootPose(x=float(shift[0]), y=float(shift[1]), yaw=yaw)

    frames = [Keyframe(0.2)]
    for number in range(num_steps):
        before, after = number * step, (number + 1) * step
        on_right = frames[-1]._replace(seconds=1.1 if number else 0.8, left_load=0.1, lift=(0.0, 0.0))
        left = on_right._replace(
            seconds=0.5, left_foot=turned(0, after), heading=0.5 * (before + after), lift=(0.06, 0.0)
        )
        on_left = left._replace(seconds=1.1, left_load=0.9, lift=(0.0, 0.0))
        right = on_left._replace(seconds=0.5, right_foot=turned(1, after), heading=after, lift=(0.0, 0.06))
        frames += [on_right, left, on_left, right]
    standing = frames[-1]._replace(seconds=0.8, left_load=0.5, lift=(0.0, 0.0))
    return [*frames, standing, standing._replace(seconds=0.2)]


STANDING_MOTIONS = ("squat", "wave", "kick", "turn")
"""Motions that begin and end at rest in the standing pose."""


def make_standing_motion(robot: Robot, name: str, fps: float = 50.0) -> MotionClip:
    """A clip of one of `STANDING_MOTIONS` for a biped like the built-in humanoid; ValueError for another robot.

    Feet on the ground are flat and still. The center of mass is above a point between the feet, that of the foot on
    the ground while the other one is in the air, so that a robot can follow slowly enough accelerated keyframes.
    """
    if not fps > 0:
        raise ValueError(f"fps is {fps}; a motion needs more than 0")
    geometry, arms = biped_geometry(robot), _find_arms(robot)
    base = robot.require_locomotion("a motion")
    data = pose_data(robot.model, robot.default_qpos)
    feet = np.stack([data.geom(foot).xpos for foot in geometry.foot_names])
    standing = np.array([0.0, 0.0, data.xpos[base.body, 2] + geometry.foot_height - feet[:, 2].mean()])
    feet[:, :2] -= data.xpos[base.body, :2]
    feet[:, 2] = geometry.foot_height
    keyframes = {"squat": _squat, "wave": _wave, "kick": _kick, "turn": lambda: _turn(feet[:, :2])}[name]()
    fine_fps = fps * np.ceil(_MIN_FINE_FPS / fps)
    tracks = _interpolate(keyframes, feet, geometry.centre_of_mass[:2], fine_fps)
    joints = np.tile(geometry.default_pose, (len(tracks.com), 1))
    joints[:, arms] += tracks.arms
    position = _place_base(robot, geometry, tracks, joints, standing)
    dt = 1.0 / fine_fps
    clip = make_clip(
        name,
        fine_fps,
        geometry.joint_names,
        joints,
        position,
        tracks.rotation,
        joint_vel=linear_velocity(joints, dt),
        root_lin_vel=linear_velocity(position, dt),
        root_ang_vel=rotations.angular_velocity(tracks.rotation, dt),
        feet=(geometry.foot_names, tracks.feet, linear_velocity(tracks.feet, dt)),
    )
    return resample(clip, fps)


class _Tracks(NamedTuple):
    """What the keyframes say about `F` frames."""

    com: np.ndarray
    """`(F, 2)` center of mass in the world, m"""
    lower: np.ndarray
    """`(F,)` m"""
    rotation: np.ndarray
    """`(F, 4)` of the base, w, x, y, z"""
    feet: np.ndarray
    """`(F, 2, 3)` centers of the feet, m"""
    foot_rotations: np.ndarray
    """`(F, 2, 3, 3)`"""
    arms: np.ndarray
    """`(F, 8)` rad"""


def _find_arms(robot: Robot) -> list[int]:
    """Indices of the joints of the left and the right arm; ValueError if one is missing."""
    names = [f"{side}_{part}_joint" for side in ("left", "right") for part in _ARM_JOINTS]
    missing = [name for name in names if name not in robot.joint_names]
    if missing:
        raise ValueError(
            f"{robot.path} has no joint {', '.join(missing)}: {', '.join(STANDING_MOTIONS)} need arms with the joints "
            "of the built-in humanoid; record a policy instead"
        )
    return [robot.joint_names.index(name) for name in names]


def _interpolate(keyframes: Sequence[Keyframe], feet: np.ndarray, com: np.ndarray, fps: float) -> _Tracks:
    """Polynomials of fifth order from keyframe to keyframe, at rest and without acceleration in each.

    `feet` `(2, 3)` are the centers of the feet, `com` `(2,)` is the center of mass in the standing pose.
    """
    ends = np.cumsum([frame.seconds for frame in keyframes])
    time = np.arange(int(np.floor(ends[-1] * fps + 1e-6)) + 1) / fps
    after = np.minimum(np.searchsorted(ends, time, side="left"), len(keyframes) - 1)
    progress = 1.0 - (ends[after] - time) / np.array([frame.seconds for frame in keyframes])[after]

    def follow(values: ArrayLike, fraction: np.ndarray = progress) -> np.ndarray:
        rows = np.array(values, dtype=np.float64)
        blend = _smooth_step(fraction).reshape(-1, *[1] * (rows.ndim - 1))
        before = rows[np.maximum(after - 1, 0)]
        return before + blend * (rows[after] - before)

    lift = np.array([frame.lift for frame in keyframes])[after]
    delayed = (progress - _STEP_START) / (_STEP_END - _STEP_START)
    poses = [[frame.left_foot, frame.right_foot] for frame in keyframes]
    moved = np.where(lift[..., None] > 0.0, follow(poses, delayed), follow(poses))
    centers = feet + moved[..., :3]
    centers[..., 2] += lift * 64.0 * (progress * (1.0 - progress))[:, None] ** 3
    lean, heading = follow([frame.lean for frame in keyframes]), follow([frame.heading for frame in keyframes])
    zero = np.zeros_like(lean)
    rotation = rotations.multiply(
        rotations.from_rotation_vector(np.stack([zero, zero, heading], axis=1)),
        rotations.from_rotation_vector(np.stack([zero, lean, zero], axis=1)),
    )
    return _Tracks(
        com=follow(_plan_com(keyframes, feet, com)),
        lower=follow([frame.lower for frame in keyframes]),
        rotation=rotation,
        feet=centers,
        foot_rotations=rotation_matrix(2, moved[..., 3]) @ rotation_matrix(1, moved[..., 4]),
        arms=follow([(*frame.left_arm, *frame.right_arm) for frame in keyframes]),
    )


def _plan_com(keyframes: Sequence[Keyframe], feet: np.ndarray, com: np.ndarray) -> np.ndarray:
    """The centers of mass `(K, 2)`: between the feet by their loads, displaced as in the standing pose.

    A foot in the air counts where it was last on the ground.
    """
    places, found = feet[:, :2].copy(), []
    for frame in keyframes:
        for foot, pose in enumerate((frame.left_foot, frame.right_foot)):
            if pose.z == 0.0:
                places[foot] = feet[foot, :2] + [pose.x, pose.y]
        offset = rotation_matrix(2, np.array(frame.heading))[:2, :2] @ (com - feet[:, :2].mean(axis=0))
        found.append(frame.left_load * places[0] + (1.0 - frame.left_load) * places[1] + offset)
    return np.array(found)


def _smooth_step(fraction: np.ndarray) -> np.ndarray:
    """From 0 to 1 with two zero derivatives at both ends."""
    x = np.clip(fraction, 0.0, 1.0)
    return x**3 * (10.0 - 15.0 * x + 6.0 * x**2)


def _place_base(
    robot: Robot, geometry: BipedGeometry, tracks: _Tracks, joints: np.ndarray, standing: np.ndarray
) -> np.ndarray:
    """Positions `(F, 3)` of the base with the center of mass as planned; writes the leg joints into `joints`."""
    base = robot.require_locomotion("a motion")
    to_base = np.linalg.inv(_to_matrix(tracks.rotation))[:, None]
    ankles = tracks.feet - tracks.foot_rotations @ geometry.foot_centre
    position = np.tile(standing, (len(joints), 1))
    position[:, 2] -= tracks.lower
    qpos = np.tile(robot.default_qpos, (len(joints), 1))
    qpos[:, base.qpos + 3 : base.qpos + 7] = tracks.rotation
    for _ in range(_MAX_CORRECTIONS):
        local = (to_base @ (ankles - position[:, None])[..., None])[..., 0]
        legs = solve_leg_joints(geometry, local, to_base @ tracks.foot_rotations)
        joints[:, geometry.legs.reshape(-1)] = legs.reshape(len(joints), -1)
        qpos[:, base.qpos : base.qpos + 3], qpos[:, list(robot.qpos_indices)] = position, joints
        error = tracks.com - _centers_of_mass(robot, base.body, qpos)[:, :2]
        if np.abs(error).max() < _COM_TOLERANCE:
            return position
        position[:, :2] += error
    raise ValueError(f"{robot.path} does not balance in this motion: make it for a robot like the built-in humanoid")


def _centers_of_mass(robot: Robot, body: int, qpos: np.ndarray) -> np.ndarray:
    """Centers of mass `(F, 3)` of the robot in positions `(F, nq)`."""
    data, found = mujoco.MjData(robot.model), np.empty((len(qpos), 3))
    for row, data.qpos[:] in zip(found, qpos):
        mujoco.mj_kinematics(robot.model, data)
        mujoco.mj_comPos(robot.model, data)
        row[:] = data.subtree_com[body]
    return found


def _to_matrix(quats: np.ndarray) -> np.ndarray:
    """Rotation matrices `(F, 3, 3)` of quaternions `(F, 4)`."""
    return np.stack([rotations.rotate(quats, axis) for axis in np.eye(3)], axis=-1)
