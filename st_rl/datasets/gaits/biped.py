"""Walk of a biped with legs of six joints: hip pitch, roll and yaw, knee, ankle pitch and roll."""

from dataclasses import dataclass

import numpy as np

from st_rl.datasets.clip import MotionClip
from st_rl.datasets.gaits.gait import (
    GRAVITY,
    Gait,
    Pose,
    foot_phases,
    foot_trajectory,
    knee_angle,
    make_gait_clip,
    periodic_response,
    stride_samples,
)


@dataclass(frozen=True)
class BipedGait(Gait):
    """How a biped moves its feet, the left one first, and its arms."""

    offsets: tuple[float, ...] = (0.0, 0.5)
    period_s: float = 0.8
    stance_fraction: float = 0.6
    base_height: float = 0.66
    track: float = 0.85
    arm_swing: float = 0.5
    """Amplitude of the arms, opposite to the legs, in rad per m/s."""


BIPED_GAITS = {"walk": BipedGait()}
"""Gaits by name."""


@dataclass(frozen=True, eq=False)
class BipedGeometry:
    """Geometry of a biped; lengths in m, x forward, y left, z up, the left leg first."""

    joint_names: tuple[str, ...]
    """All `J` joints of the robot."""
    default_pose: np.ndarray
    """`(J,)` positions of the joints that the gait does not move."""
    legs: np.ndarray
    """`(2, 6)` indices of the leg joints: hip pitch, roll and yaw, knee, ankle pitch and roll."""
    shoulders: tuple[int, ...]
    """Indices of the joints that swing the left and the right arm; empty for a robot without arms."""
    foot_names: tuple[str, str]
    hips: np.ndarray
    """`(2, 3)` position of the hips in the base frame."""
    thigh: float
    """From hip to knee."""
    shin: float
    """From knee to ankle."""
    foot_centre: np.ndarray
    """`(3,)` centre of the foot's geom, from the ankle, in the foot frame."""
    foot_height: float
    """Height of that centre above the ground in stance."""
    centre_of_mass: np.ndarray
    """`(3,)` of the whole robot in the default pose, in the base frame."""


def make_biped_gait(
    geometry: BipedGeometry,
    name: str,
    speed: float,
    fps: float = 50.0,
    strides: int = 3,
    gait: BipedGait | None = None,
) -> MotionClip:
    """A clip of whole strides at a constant forward speed in m/s; the last frame repeats the first.

    Feet stay flat. The centre of mass, at a constant height, moves as an inverted pendulum over the centre of pressure,
    so that a robot can track the clip. `gait` defaults to `BIPED_GAITS[name]`.
    """
    gait = BIPED_GAITS[name] if gait is None else gait

    def pose_at(time: np.ndarray) -> Pose:
        base, feet = _base_position(geometry, gait, speed, time), _foot_positions(geometry, gait, speed, time)
        ankles = feet - geometry.foot_centre - base[:, None]
        flat = np.broadcast_to(np.eye(3), (*ankles.shape[:-1], 3, 3))
        joints = np.tile(geometry.default_pose, (len(time), 1))
        joints[:, geometry.legs.reshape(-1)] = solve_leg_joints(geometry, ankles, flat).reshape(len(time), -1)
        # A foot is farthest forward where its stance begins; the arm on the same side is then farthest back.
        swing = gait.arm_swing * speed * np.cos(2.0 * np.pi * foot_phases(gait, time))
        for side, shoulder in enumerate(geometry.shoulders):
            joints[:, shoulder] += swing[:, side]
        return Pose(joints, base, np.tile([1.0, 0.0, 0.0, 0.0], (len(time), 1)), feet)

    names = geometry.joint_names, geometry.foot_names
    return make_gait_clip(f"{name}_{speed:g}", fps, strides, gait.period_s, *names, pose_at)


def solve_leg_joints(geometry: BipedGeometry, ankles: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    """Joint angles `(..., 2, 6)` for ankles at `(..., 2, 3)` and foot orientations `(..., 2, 3, 3)`.

    Both are in the base frame; knees bend backward. ValueError for an ankle that is out of reach.
    """
    to_ankle = ankles - geometry.hips
    knee = knee_angle(np.linalg.norm(to_ankle, axis=-1), geometry.thigh, geometry.shin)
    # In the foot frame, the ankle rolls until the leg lies in the plane of the pitch joints.
    x, y, z = np.moveaxis(np.einsum("...ji,...j->...i", rotations, to_ankle), -1, 0)
    ankle_roll = np.arctan2(-y, -z)
    in_plane = np.sin(ankle_roll) * y + np.cos(ankle_roll) * z
    bend = np.arctan2(geometry.shin * np.sin(knee), geometry.thigh + geometry.shin * np.cos(knee))
    ankle_pitch = bend - np.arctan2(-x, -in_plane) - knee
    hip = rotations @ rotation_matrix(0, -ankle_roll) @ rotation_matrix(1, -(knee + ankle_pitch))
    hip_roll = np.arcsin(np.clip(-hip[..., 1, 2], -1.0, 1.0))
    hip_yaw = np.arctan2(hip[..., 1, 0], hip[..., 1, 1])
    hip_pitch = np.arctan2(hip[..., 0, 2], hip[..., 2, 2])
    return np.stack([hip_pitch, hip_roll, hip_yaw, knee, ankle_pitch, ankle_roll], axis=-1)


def rotation_matrix(axis: int, angle: np.ndarray) -> np.ndarray:
    """Rotations `(..., 3, 3)` about a coordinate axis."""
    matrix = np.zeros((*angle.shape, 3, 3))
    after, last = (axis + 1) % 3, (axis + 2) % 3
    matrix[..., axis, axis] = 1.0
    matrix[..., after, after] = matrix[..., last, last] = np.cos(angle)
    matrix[..., last, after] = np.sin(angle)
    matrix[..., after, last] = -np.sin(angle)
    return matrix


def _foot_positions(geometry: BipedGeometry, gait: BipedGait, speed: float, time: np.ndarray) -> np.ndarray:
    """Centres of the feet `(F, 2, 3)` in the world, on average below the centre of mass."""
    lateral = gait.track * geometry.hips[:, 1]
    centre = np.stack([np.full_like(lateral, geometry.centre_of_mass[0]), lateral], axis=1)
    return foot_trajectory(gait, speed, time, centre, geometry.foot_height)


def _base_position(geometry: BipedGeometry, gait: BipedGait, speed: float, time: np.ndarray) -> np.ndarray:
    """Position `(F, 3)` of the base: an inverted pendulum over the centre of pressure, at a constant height."""
    moment = stride_samples(gait)
    phase = foot_phases(gait, moment)
    # The weight shifts from one foot to the other in double stance.
    double_stance = gait.stance_fraction - 0.5
    load = np.clip(np.minimum(phase, gait.stance_fraction - phase) / double_stance, 0.0, 1.0)
    feet = _foot_positions(geometry, gait, speed, moment)
    pressure = (load[..., None] * feet[..., :2]).sum(axis=1)
    pressure[:, 0] -= speed * moment + geometry.centre_of_mass[0]
    stiffness = GRAVITY / (gait.base_height + geometry.centre_of_mass[2])
    sway = periodic_response(pressure, gait.period_s, time, lambda rates: stiffness / (stiffness + rates**2))
    return np.stack([speed * time + sway[:, 0], sway[:, 1], np.full_like(time, gait.base_height)], axis=1)
