"""Common parts of the gaits of all legged robots: foot trajectories, periodic base motion, a clip of poses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from st_rl.datasets.clip import MotionClip, make_clip
from st_rl.utils.tensors import rotations

GRAVITY = 9.81
# Samples of a stride at which the base's dynamics is computed, and number of harmonics of its motion.
_NUM_SAMPLES, _NUM_HARMONICS = 512, 12
# Half the step of the central differences that give velocities, s.
_HALF_STEP = 1.0e-4


@dataclass(frozen=True)
class Gait:
    """How a robot moves its feet; a quadruped's in the order front right, front left, rear right, rear left."""

    offsets: tuple[float, ...]
    """Phase of each foot, in strides."""
    period_s: float = 0.32
    """Seconds per stride."""
    stance_fraction: float = 0.55
    """Fraction of a stride that a foot spends on the ground."""
    swing_height: float = 0.06
    """Height of the sole in the middle of a swing, m."""
    base_height: float = 0.27
    """Mean height of the base, m."""
    track: float = 1.0
    """Lateral distance of the feet from the middle, relative to straight legs."""


class Pose(NamedTuple):
    """A robot at `F` times."""

    joints: np.ndarray
    """`(F, J)` rad"""
    position: np.ndarray
    """`(F, 3)` of the base, m"""
    rotation: np.ndarray
    """`(F, 4)` of the base, w, x, y, z"""
    feet: np.ndarray
    """`(F, K, 3)` in the world, m"""


def make_gait_clip(
    name: str,
    fps: float,
    strides: int,
    period_s: float,
    joint_names: tuple[str, ...],
    foot_names: tuple[str, ...],
    pose_at: Callable[[np.ndarray], Pose],
) -> MotionClip:
    """A clip of the poses that `pose_at` gives for times `(F,)`, with velocities by central differences."""
    for what, value in (("fps", fps), ("strides", strides)):
        if not value > 0:
            raise ValueError(f"{what} is {value}; a gait needs more than 0")
    time = np.arange(round(strides * period_s * fps) + 1) / fps
    before, now, after = (pose_at(time + shift) for shift in (-_HALF_STEP, 0.0, _HALF_STEP))
    turn = rotations.multiply(after.rotation, rotations.conjugate(before.rotation))
    return make_clip(
        name,
        fps,
        joint_names,
        now.joints,
        now.position,
        now.rotation,
        joint_vel=(after.joints - before.joints) / (2 * _HALF_STEP),
        root_lin_vel=(after.position - before.position) / (2 * _HALF_STEP),
        root_ang_vel=rotations.to_rotation_vector(turn) / (2 * _HALF_STEP),
        feet=(foot_names, now.feet, (after.feet - before.feet) / (2 * _HALF_STEP)),
    )


def foot_phases(gait: Gait, time: np.ndarray) -> np.ndarray:
    """Phase of each foot `(F, K)` in its stride, from 0 to 1; it is in stance below the stance fraction."""
    return np.mod(time[:, None] / gait.period_s + np.array(gait.offsets), 1.0)


def foot_trajectory(gait: Gait, speed: float, time: np.ndarray, centre: np.ndarray, height: float) -> np.ndarray:
    """Feet `(F, K, 3)` in the world: fixed on the ground in stance, an arc forward in swing.

    `centre` `(K, 2)` is where each foot is on average in the base frame, `height` its height in stance.
    """
    phase, fraction = foot_phases(gait, time), gait.stance_fraction
    length = speed * fraction * gait.period_s
    swing = np.clip((phase - fraction) / (1.0 - fraction), 0.0, 1.0)
    # A cubic that leaves and meets the ground with the speed of the ground relative to the base.
    slope = -speed * (1.0 - fraction) * gait.period_s
    back_to_front = -0.5 * length + swing**2 * (3.0 - 2.0 * swing) * length
    back_to_front += slope * swing * (1.0 - swing) * (1.0 - 2.0 * swing)
    feet = np.empty((*phase.shape, 3))
    forward = np.where(phase < fraction, (0.5 - phase / fraction) * length, back_to_front)
    feet[..., 0] = speed * time[:, None] + centre[:, 0] + forward
    feet[..., 1] = centre[:, 1]
    feet[..., 2] = height + 16.0 * gait.swing_height * (swing * (1.0 - swing)) ** 2
    return feet


def stride_samples(gait: Gait) -> np.ndarray:
    """Times `(S,)` over one stride at which the dynamics of the base is computed."""
    return np.arange(_NUM_SAMPLES) * gait.period_s / _NUM_SAMPLES


def periodic_response(
    samples: np.ndarray, period: float, time: np.ndarray, transfer: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """The periodic response `(F, D)` of a linear system to an input `(S, D)` sampled over one period.

    `transfer` gives the real gain for angular frequencies `(H,)` in rad/s, the first one zero.
    """
    coefficients = np.fft.rfft(samples, axis=0)[: _NUM_HARMONICS + 1] / len(samples)
    coefficients[1:] *= 2.0
    rates = 2.0 * np.pi * np.arange(_NUM_HARMONICS + 1) / period
    return np.real(np.exp(1j * time[:, None] * rates) @ (coefficients * transfer(rates)[:, None]))


def knee_angle(reach: np.ndarray, upper: float, lower: float, is_reachable: np.ndarray | bool = True) -> np.ndarray:
    """Angle between two links of a leg that span the distance `reach`; ValueError for a foot that is out of reach."""
    if not (is_reachable & (reach <= upper + lower) & (reach >= abs(upper - lower))).all():
        raise ValueError(
            f"a foot is out of reach: {reach.max():.3f} m from its hip, legs are {upper + lower:.3f} m long; "
            "walk slower, with shorter strides, or lower"
        )
    return np.arccos(np.clip((reach**2 - upper**2 - lower**2) / (2 * upper * lower), -1.0, 1.0))
