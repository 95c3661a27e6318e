"""A walk on two legs without a recording: feet that step, and a body that an inverted pendulum carries over them."""

from dataclasses import dataclass

import numpy as np

from st_rl.datasets.biped_kinematics import BipedGeometry, leg_angles
from st_rl.datasets.clip import MotionClip, make_clip
from st_rl.datasets.gaits import GRAVITY, foot_phases, foot_steps

# Points of a stride at which the load of the feet is summed, and harmonics that are kept of it.
_SAMPLES, _HARMONICS = 512, 12
# Half the time over which a velocity is taken from positions, s.
_INSTANT = 1.0e-4


@dataclass(frozen=True)
class BipedGait:
    """How a biped moves its feet, the left one first, and its arms."""

    offsets: tuple[float, float] = (0.0, 0.5)
    """Phase of each foot, in strides."""
    period_s: float = 0.8
    """Seconds of a stride."""
    stance_share: float = 0.6
    """Share of a stride that a foot spends on the ground."""
    swing_height: float = 0.06
    """Height of the sole in the middle of a swing, m."""
    base_height: float = 0.66
    """Height of the base, m."""
    track: float = 0.85
    """Distance of the feet from the middle, sideways, as a share of that of the hips."""
    arm_swing: float = 0.5
    """How far arms swing against the legs for each m/s, rad."""


BIPED_GAITS = {"walk": BipedGait()}
"""Gaits by name."""


def make_biped_gait(
    geometry: BipedGeometry,
    name: str,
    speed: float,
    fps: float = 50.0,
    strides: int = 3,
    gait: BipedGait | None = None,
) -> MotionClip:
    """A clip of whole strides at a constant forward speed in m/s, the first frame again at the end of the last stride.

    Feet stand flat and still and swing forward in an arc. The centre of mass, at a constant height, moves as an
    inverted pendulum over the point where the feet carry it, so that a robot can follow. `gait` is by default the one
    that `name` says.
    """
    for what, value in (("fps", fps), ("strides", strides)):
        if not value > 0:
            raise ValueError(f"{what} is {value}; a gait needs more than 0")
    gait = BIPED_GAITS[name] if gait is None else gait
    time = np.arange(round(strides * gait.period_s * fps) + 1) / fps
    position = _base(geometry, gait, speed, time)
    before, after = (_moment(geometry, gait, speed, time + shift) for shift in (-_INSTANT, _INSTANT))
    now = _moment(geometry, gait, speed, time)
    upright = np.tile([1.0, 0.0, 0.0, 0.0], (len(time), 1))
    return make_clip(
        f"{name}_{speed:g}",
        fps,
        geometry.joint_names,
        now[0],
        position,
        upright,
        joint_vel=(after[0] - before[0]) / (2 * _INSTANT),
        root_lin_vel=(after[1] - before[1]) / (2 * _INSTANT),
        root_ang_vel=np.zeros_like(position),
        feet=(geometry.foot_names, now[2], (after[2] - before[2]) / (2 * _INSTANT)),
    )


def _moment(
    geometry: BipedGeometry, gait: BipedGait, speed: float, time: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Joints `(F, J)`, position of the base `(F, 3)` and middles of the feet `(F, 2, 3)` in the world."""
    base, feet = _base(geometry, gait, speed, time), _feet(geometry, gait, speed, time)
    ankles = feet - geometry.foot_centre - base[:, None]
    flat = np.broadcast_to(np.eye(3), (*ankles.shape[:-1], 3, 3))
    joints = np.tile(geometry.default_pose, (len(time), 1))
    joints[:, geometry.legs.reshape(-1)] = leg_angles(geometry, ankles, flat).reshape(len(time), -1)
    # A foot is farthest forward where its stance begins; then its arm is farthest back.
    swing = gait.arm_swing * speed * np.cos(2.0 * np.pi * foot_phases(gait, time))
    for side, shoulder in enumerate(geometry.shoulders):
        joints[:, shoulder] += swing[:, side]
    return joints, base, feet


def _feet(geometry: BipedGeometry, gait: BipedGait, speed: float, time: np.ndarray) -> np.ndarray:
    """Middles of the feet `(F, 2, 3)` in the world: still on the ground in stance, in an arc forward in swing."""
    forward, height = foot_steps(gait, speed, foot_phases(gait, time))
    feet = np.empty((*forward.shape, 3))
    # On average below the centre of mass, as nothing else would carry it.
    feet[..., 0] = speed * time[:, None] + geometry.centre_of_mass[0] + forward
    feet[..., 1] = gait.track * geometry.hips[:, 1]
    feet[..., 2] = geometry.foot_height + height
    return feet


def _base(geometry: BipedGeometry, gait: BipedGait, speed: float, time: np.ndarray) -> np.ndarray:
    """Position `(F, 3)` of the base, which sways over the feet and hurries and lingers between steps."""
    moment = np.arange(_SAMPLES) * gait.period_s / _SAMPLES
    load = _loads(gait, foot_phases(gait, moment))
    feet = _feet(geometry, gait, speed, moment)
    pressure = (load[..., None] * feet[..., :2]).sum(axis=1)
    pressure[:, 0] -= speed * moment + geometry.centre_of_mass[0]
    height = gait.base_height + geometry.centre_of_mass[2]
    sway = _pendulum(pressure, gait.period_s, GRAVITY / height, time)
    level = np.full_like(time, gait.base_height)
    return np.stack([speed * time + sway[:, 0], sway[:, 1], level], axis=1)


def _loads(gait: BipedGait, phase: np.ndarray) -> np.ndarray:
    """Share of the weight `(F, 2)` on each foot; it goes over from one to the other while both stand."""
    together = gait.stance_share - 0.5
    return np.clip(np.minimum(phase, gait.stance_share - phase) / together, 0.0, 1.0)


def _pendulum(pressure: np.ndarray, period: float, stiffness: float, time: np.ndarray) -> np.ndarray:
    """The periodic motion `(F, D)` of an inverted pendulum over points of pressure `(S, D)`, sampled over one period.

    Its acceleration is `stiffness` times its distance from the point of pressure.
    """
    coefficients = np.fft.rfft(pressure, axis=0)[: _HARMONICS + 1] / len(pressure)
    rates = 2.0 * np.pi * np.arange(_HARMONICS + 1) / period
    shares = coefficients * (stiffness / (stiffness + rates**2))[:, None]
    shares[1:] *= 2.0
    return np.real(np.exp(1j * time[:, None] * rates) @ shares)
