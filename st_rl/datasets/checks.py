"""Checks of clips that need no robot: posture of the root, and velocities against positions."""

import numpy as np

from st_rl.datasets.clip import MotionClip, linear_velocity
from st_rl.utils.tensors import rotations

MIN_UPRIGHTNESS = 0.5
"""Cosine of the tilt from which on a root counts as upright: 60 degrees."""
# Slower motion, in rad/s or m/s, is not compared.
_MIN_SPEED = 0.05
# Stored velocities with a smaller cosine to the derivative of the positions belong to another motion.
_MIN_COSINE = 0.5
# Coarse sampling changes the ratio a little, a wrong frame rate by a factor.
_RATIO_RANGE = (0.75, 1.33)


def root_uprightness(clip: MotionClip) -> float:
    """Mean cosine of the root's tilt, where its height is in the upper quarter: falls and crawling are left out."""
    height = clip.root_pos[:, 2]
    w, x, y, z = clip.root_rot[height >= np.quantile(height, 0.75)].T
    return float((w * w + z * z - x * x - y * y).mean())


def find_posture_problems(clip: MotionClip) -> tuple[str, ...]:
    """A sentence if the root is not upright."""
    upright = root_uprightness(clip)
    if upright >= MIN_UPRIGHTNESS:
        return ()
    return (f"the root is not upright (cosine of its tilt {upright:.2f}): check the order of the quaternions",)


def find_velocity_problems(clip: MotionClip) -> list[str]:
    """A line for each stored velocity that differs from the finite differences of its positions by a factor."""
    dt = 1.0 / clip.fps
    pairs = {
        "joint_vel": (clip.joint_vel, linear_velocity(clip.joint_pos, dt)),
        "root_lin_vel": (clip.root_lin_vel, linear_velocity(clip.root_pos, dt)),
        "root_ang_vel": (clip.root_ang_vel, rotations.angular_velocity(clip.root_rot, dt)),
    }
    found = [_compare(name, *pair, clip.fps) for name, pair in pairs.items() if name not in clip.estimated]
    return [line for line in found if line is not None]


def _compare(name: str, stored: np.ndarray, measured: np.ndarray, fps: float) -> str | None:
    """What is wrong with stored velocities `(F, W)`, given derivatives `(F, W)` of positions; None if they agree."""
    stored_rms, measured_rms = (float(np.sqrt((values**2).mean())) for values in (stored, measured))
    if max(stored_rms, measured_rms) < _MIN_SPEED:
        return None
    if stored_rms < 1e-3 * measured_rms:
        return f"{name} is zero, but the positions change"
    cosine = cosine_similarity(stored, measured)
    if cosine < _MIN_COSINE:
        return f"{name} does not agree with the finite differences of the positions (correlation {cosine:.2f})"
    ratio = measured_rms / stored_rms
    if _RATIO_RANGE[0] < ratio < _RATIO_RANGE[1]:
        return None
    return f"positions move {ratio:.2f} times as fast as {name}: wrong fps? It fits {fps / ratio:.3g} frames per second"


def cosine_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle between two arrays of one shape; 0 if one of them is zero."""
    return float((a * b).sum() / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))
