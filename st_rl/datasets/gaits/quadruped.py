"""Trot, pace and bound of a quadruped with legs of three joints: hip (roll), thigh and calf (pitch)."""

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
from st_rl.utils.tensors import rotations

QUADRUPED_GAITS = {
    "trot": Gait((0.0, 0.5, 0.5, 0.0)),
    "pace": Gait((0.0, 0.5, 0.0, 0.5), stance_fraction=0.6, track=0.65),
    "bound": Gait((0.0, 0.0, 0.5, 0.5), stance_fraction=0.6),
}
"""Gaits by name: diagonal, lateral and fore-aft pairs of feet move together."""


@dataclass(frozen=True, eq=False)
class QuadrupedGeometry:
    """Geometry of a quadruped with `K` legs; lengths in m, x forward, y left, z up."""

    joint_names: tuple[str, ...]
    """`3 K` joints, leg by leg: hip, thigh, calf."""
    foot_names: tuple[str, ...]
    """`K` feet."""
    hips: np.ndarray
    """`(K, 3)` position of each hip joint in the base frame."""
    thigh_offset: np.ndarray
    """`(K,)` from hip joint to thigh joint, to the left."""
    thigh: float
    """From thigh joint to calf joint."""
    calf: float
    """From calf joint to foot."""
    foot_radius: float
    """Height of a foot's centre in stance."""
    gyration: tuple[float, float]
    """Radii of gyration of the whole robot about its x and y axes."""


def make_quadruped_gait(
    geometry: QuadrupedGeometry, name: str, speed: float, fps: float = 50.0, strides: int = 3, gait: Gait | None = None
) -> MotionClip:
    """A clip of whole strides at a constant forward speed in m/s; the last frame repeats the first.

    Height, roll and pitch of the base follow from gravity and the loads of the stance feet on a rigid body, so that a
    robot can track the clip. `gait` defaults to `QUADRUPED_GAITS[name]`.
    """
    gait = QUADRUPED_GAITS[name] if gait is None else gait

    def pose_at(time: np.ndarray) -> Pose:
        position, rotation = _base_motion(geometry, gait, speed, time)
        feet = _foot_positions(geometry, gait, speed, time)
        local = rotations.rotate_inverse(rotation[:, None], feet - position[:, None])
        return Pose(solve_leg_joints(geometry, local), position, rotation, feet)

    names = geometry.joint_names, geometry.foot_names
    return make_gait_clip(f"{name}_{speed:g}", fps, strides, gait.period_s, *names, pose_at)


def solve_leg_joints(geometry: QuadrupedGeometry, feet: np.ndarray) -> np.ndarray:
    """Joint angles `(..., 3 K)` that put the feet at `(..., K, 3)` in the base frame, knees backward.

    ValueError for a foot that is out of reach.
    """
    x, y, z = np.moveaxis(feet - geometry.hips, -1, 0)
    drop_squared = y**2 + z**2 - geometry.thigh_offset**2
    reach = np.sqrt(np.maximum(x**2 + drop_squared, 0.0))
    calf = -knee_angle(reach, geometry.thigh, geometry.calf, drop_squared >= 0)
    drop = np.sqrt(drop_squared)
    hip = np.arctan2(y, -z) - np.arctan2(geometry.thigh_offset, drop)
    bend = np.arctan2(geometry.calf * np.sin(calf), geometry.thigh + geometry.calf * np.cos(calf))
    thigh = np.arctan2(-x, drop) - bend
    return np.stack([hip, thigh, calf], axis=-1).reshape(*feet.shape[:-2], -1)


def _foot_positions(geometry: QuadrupedGeometry, gait: Gait, speed: float, time: np.ndarray) -> np.ndarray:
    """Feet `(F, K, 3)` in the world."""
    lateral = gait.track * (geometry.hips[:, 1] + geometry.thigh_offset)
    centre = np.stack([geometry.hips[:, 0], lateral], axis=1)
    return foot_trajectory(gait, speed, time, centre, geometry.foot_radius)


def _base_motion(
    geometry: QuadrupedGeometry, gait: Gait, speed: float, time: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Position `(F, 3)` and rotation `(F, 4)` of the base."""
    moment = stride_samples(gait)
    phase = foot_phases(gait, moment)
    load = np.where(phase < gait.stance_fraction, np.sin(np.pi * phase / gait.stance_fraction), 0.0)
    load /= load.sum(axis=1).mean()  # fractions of the weight
    feet = _foot_positions(geometry, gait, speed, moment)
    forward, left = feet[..., 0] - speed * moment[:, None], feet[..., 1]
    about_x, about_y = geometry.gyration
    accelerations = np.stack(
        [load.sum(axis=1), (load * left).sum(axis=1) / about_x**2, -(load * forward).sum(axis=1) / about_y**2], axis=1
    )
    up, roll, pitch = periodic_response(GRAVITY * accelerations, gait.period_s, time, _integrate_twice).T
    zero = np.zeros_like(time)
    position = np.stack([speed * time, zero, gait.base_height + up], axis=1)
    rolled = rotations.from_rotation_vector(np.stack([roll, zero, zero], axis=1))
    pitched = rotations.from_rotation_vector(np.stack([zero, pitch, zero], axis=1))
    return position, rotations.multiply(pitched, rolled)


def _integrate_twice(rates: np.ndarray) -> np.ndarray:
    """Gain `(H,)` from acceleration to position; zero for the mean, which a periodic motion cannot have."""
    return np.concatenate([[0.0], -1.0 / rates[1:] ** 2])
