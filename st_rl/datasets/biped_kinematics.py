"""Legs of six joints (hip pitch, roll and yaw, knee, ankle pitch and roll): how to put a foot somewhere."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class BipedGeometry:
    """What the kinematics of a biped needs to know; lengths in m, x forward, y left, z up, the left leg first."""

    joint_names: tuple[str, ...]
    """All `J` joints of the robot."""
    default_pose: np.ndarray
    """`(J,)` where joints are that no motion moves."""
    legs: np.ndarray
    """`(2, 6)` places of the leg's joints among them: hip pitch, roll and yaw, knee, ankle pitch and roll."""
    shoulders: tuple[int, ...]
    """Places of the joints that swing the left and the right arm; empty for a robot without arms."""
    foot_names: tuple[str, str]
    """The feet."""
    hips: np.ndarray
    """`(2, 3)` position of the hips in the frame of the base."""
    thigh: float
    """From hip to knee."""
    shin: float
    """From knee to ankle."""
    foot_centre: np.ndarray
    """`(3,)` middle of the foot's shape, from the ankle, in the frame of the foot."""
    foot_height: float
    """Height of that middle above the ground when the foot stands."""
    centre_of_mass: np.ndarray
    """`(3,)` of the whole robot in the default pose, in the frame of the base."""


def leg_angles(geometry: BipedGeometry, ankles: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    """Joint angles `(..., 2, 6)` that put the ankles at `(..., 2, 3)` and turn the feet by `(..., 2, 3, 3)`.

    Both are in the frame of the base; knees bend backward. ValueError for an ankle that is out of reach.
    """
    to_ankle = ankles - geometry.hips
    reach = np.linalg.norm(to_ankle, axis=-1)
    longest, shortest = geometry.thigh + geometry.shin, abs(geometry.thigh - geometry.shin)
    if (reach > longest).any() or (reach < shortest).any():
        raise ValueError(
            f"a foot is out of reach: its ankle is {reach.max():.3f} m from the hip, legs are {longest:.3f} m long; "
            "walk slower, with shorter strides, or lower"
        )
    cosine = (reach**2 - geometry.thigh**2 - geometry.shin**2) / (2 * geometry.thigh * geometry.shin)
    knee = np.arccos(np.clip(cosine, -1.0, 1.0))
    # Seen from the foot, the leg lies in the plane of the pitch joints: the ankle rolls until it does.
    x, y, z = np.moveaxis(np.einsum("...ji,...j->...i", rotations, to_ankle), -1, 0)
    ankle_roll = np.arctan2(-y, -z)
    in_plane = np.sin(ankle_roll) * y + np.cos(ankle_roll) * z
    bent = np.arctan2(geometry.shin * np.sin(knee), geometry.thigh + geometry.shin * np.cos(knee))
    ankle_pitch = bent - np.arctan2(-x, -in_plane) - knee
    hip = rotations @ _about_x(-ankle_roll) @ _about_y(-(knee + ankle_pitch))
    hip_roll = np.arcsin(np.clip(-hip[..., 1, 2], -1.0, 1.0))
    hip_yaw = np.arctan2(hip[..., 1, 0], hip[..., 1, 1])
    hip_pitch = np.arctan2(hip[..., 0, 2], hip[..., 2, 2])
    return np.stack([hip_pitch, hip_roll, hip_yaw, knee, ankle_pitch, ankle_roll], axis=-1)


def _about_x(angle: np.ndarray) -> np.ndarray:
    """Rotation matrices `(..., 3, 3)`."""
    one, zero, cosine, sine = np.ones_like(angle), np.zeros_like(angle), np.cos(angle), np.sin(angle)
    rows = ((one, zero, zero), (zero, cosine, -sine), (zero, sine, cosine))
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _about_y(angle: np.ndarray) -> np.ndarray:
    """Rotation matrices `(..., 3, 3)`."""
    one, zero, cosine, sine = np.ones_like(angle), np.zeros_like(angle), np.cos(angle), np.sin(angle)
    rows = ((cosine, zero, sine), (zero, one, zero), (-sine, zero, cosine))
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
