"""Reference motions without a recording: a quadruped's trot, pace and bound from foot trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from st_rl.datasets.clip import MotionClip, make_clip
from st_rl.datasets.leg_kinematics import QuadrupedGeometry, joint_angles
from st_rl.utils import rotations

GRAVITY = 9.81
# Points of a stride at which the load of the feet is summed, and harmonics that are kept of it.
_SAMPLES, _HARMONICS = 512, 12
# Half the time over which a velocity is taken from positions, s.
_INSTANT = 1.0e-4


class Stepping(Protocol):
    """What the steps of any number of feet depend on."""

    @property
    def offsets(self) -> Sequence[float]:
        """Phase of each foot, in strides."""
        ...

    @property
    def period_s(self) -> float:
        """Seconds of a stride."""
        ...

    @property
    def stance_share(self) -> float:
        """Share of a stride that a foot spends on the ground."""
        ...

    @property
    def swing_height(self) -> float:
        """Height of the sole in the middle of a swing, m."""
        ...


@dataclass(frozen=True)
class Gait:
    """How a quadruped moves its feet; they are in the order front right, front left, rear right, rear left."""

    offsets: tuple[float, float, float, float]
    """Phase of each foot, in strides."""
    period_s: float = 0.32
    """Seconds of a stride."""
    stance_share: float = 0.55
    """Share of a stride that a foot spends on the ground."""
    swing_height: float = 0.06
    """Height of the sole in the middle of a swing, m."""
    base_height: float = 0.27
    """Mean height of the base, m."""
    track: float = 1.0
    """Distance of the feet from the middle, sideways, as a share of that of straight legs."""


GAITS = {
    "trot": Gait((0.0, 0.5, 0.5, 0.0)),
    "pace": Gait((0.0, 0.5, 0.0, 0.5), stance_share=0.6, track=0.65),
    "bound": Gait((0.0, 0.0, 0.5, 0.5), stance_share=0.6),
}
"""Gaits by name: diagonal, lateral and fore-aft pairs of feet move together."""


def make_gait(
    geometry: QuadrupedGeometry, name: str, speed: float, fps: float = 50.0, strides: int = 3, gait: Gait | None = None
) -> MotionClip:
    """A clip of whole strides at a constant forward speed in m/s, the first frame again at the end of the last stride.

    The base bobs, rolls and pitches as gravity and the loads of the standing feet make a rigid body move, so that a
    robot can follow it. `gait` is by default the one that `name` says.
    """
    for what, value in (("fps", fps), ("strides", strides)):
        if not value > 0:
            raise ValueError(f"{what} is {value}; a gait needs more than 0")
    gait = GAITS[name] if gait is None else gait
    num_frames = round(strides * gait.period_s * fps) + 1
    time = np.arange(num_frames) / fps

    def joints_at(moment: np.ndarray) -> np.ndarray:
        position, rotation = _base(geometry, gait, speed, moment)
        local = rotations.rotate_inverse(rotation[:, None], _feet(geometry, gait, speed, moment) - position[:, None])
        return joint_angles(geometry, local)

    position, rotation = _base(geometry, gait, speed, time)
    before, after = (_base(geometry, gait, speed, time + shift) for shift in (-_INSTANT, _INSTANT))
    turn = rotations.multiply(after[1], rotations.conjugate(before[1]))
    feet = [_feet(geometry, gait, speed, time + shift) for shift in (-_INSTANT, 0.0, _INSTANT)]
    return make_clip(
        f"{name}_{speed:g}",
        fps,
        geometry.joint_names,
        joints_at(time),
        position,
        rotation,
        joint_vel=(joints_at(time + _INSTANT) - joints_at(time - _INSTANT)) / (2 * _INSTANT),
        root_lin_vel=(after[0] - before[0]) / (2 * _INSTANT),
        root_ang_vel=rotations.to_rotation_vector(turn) / (2 * _INSTANT),
        feet=(geometry.foot_names, feet[1], (feet[2] - feet[0]) / (2 * _INSTANT)),
    )


def foot_phases(gait: Stepping, time: np.ndarray) -> np.ndarray:
    """Place of each foot `(F, K)` in its stride, from 0 to 1; it stands while that is below the stance share."""
    return np.mod(time[:, None] / gait.period_s + np.array(gait.offsets), 1.0)


def _feet(geometry: QuadrupedGeometry, gait: Gait, speed: float, time: np.ndarray) -> np.ndarray:
    """Feet `(F, K, 3)` in the world: still on the ground in stance, in an arc forward in swing."""
    phase = foot_phases(gait, time)
    forward, height = foot_steps(gait, speed, phase)
    middle = np.stack([geometry.hips[:, 0], gait.track * (geometry.hips[:, 1] + geometry.sideways)], axis=1)
    feet = np.empty((*phase.shape, 3))
    feet[..., 0] = speed * time[:, None] + middle[:, 0] + forward
    feet[..., 1] = middle[:, 1]
    feet[..., 2] = geometry.foot_radius + height
    return feet


def foot_steps(gait: Stepping, speed: float, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far each foot `(F, K)` is before the middle of its step, and how high."""
    share = gait.stance_share
    length = speed * share * gait.period_s
    swing = np.clip((phase - share) / (1.0 - share), 0.0, 1.0)
    # A cubic that leaves and meets the ground with the speed of the ground under the robot.
    slope = -speed * (1.0 - share) * gait.period_s
    back_to_front = -0.5 * length + swing**2 * (3.0 - 2.0 * swing) * length
    back_to_front += slope * swing * (1.0 - swing) * (1.0 - 2.0 * swing)
    forward = np.where(phase < share, (0.5 - phase / share) * length, back_to_front)
    return forward, 16.0 * gait.swing_height * (swing * (1.0 - swing)) ** 2


def _base(geometry: QuadrupedGeometry, gait: Gait, speed: float, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position `(F, 3)` and rotation `(F, 4)` of the base."""
    moment = np.arange(_SAMPLES) * gait.period_s / _SAMPLES
    phase = foot_phases(gait, moment)
    load = np.where(phase < gait.stance_share, np.sin(np.pi * phase / gait.stance_share), 0.0)
    load /= load.sum(axis=1).mean()  # shares of the weight
    lever = _feet(geometry, gait, speed, moment)
    forward, left = lever[..., 0] - speed * moment[:, None], lever[..., 1]
    about_x, about_y = geometry.gyration
    accelerations = np.stack(
        [load.sum(axis=1), (load * left).sum(axis=1) / about_x**2, -(load * forward).sum(axis=1) / about_y**2], axis=1
    )
    up, roll, pitch = _integrate_twice(GRAVITY * accelerations, gait.period_s, time).T
    zero = np.zeros_like(time)
    position = np.stack([speed * time, zero, gait.base_height + up], axis=1)
    rolled = rotations.from_rotation_vector(np.stack([roll, zero, zero], axis=1))
    pitched = rotations.from_rotation_vector(np.stack([zero, pitch, zero], axis=1))
    return position, rotations.multiply(pitched, rolled)


def _integrate_twice(acceleration: np.ndarray, period: float, time: np.ndarray) -> np.ndarray:
    """The periodic motion `(F, D)` around zero whose second derivative is `(S, D)`, sampled over one period.

    The mean of the acceleration drops out: a gait that needs one would not come back to where it started.
    """
    coefficients = np.fft.rfft(acceleration, axis=0)[1 : _HARMONICS + 1] * 2.0 / len(acceleration)
    rates = 2.0 * np.pi * np.arange(1, _HARMONICS + 1) / period
    waves = np.exp(1j * time[:, None] * rates)
    return np.real(waves @ (coefficients / -(rates[:, None] ** 2)))
