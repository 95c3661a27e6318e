"""Legs of three joints (hip sideways, thigh and calf forward and back): where the foot is, and how to put it there."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class QuadrupedGeometry:
    """What the kinematics of a quadruped with `K` such legs needs to know; lengths in m, x forward, y left, z up."""

    joint_names: tuple[str, ...]
    """`3 K` joints, leg by leg: hip, thigh, calf."""
    foot_names: tuple[str, ...]
    """`K` feet."""
    hips: np.ndarray
    """`(K, 3)` position of each hip joint in the frame of the base."""
    sideways: np.ndarray
    """`(K,)` from hip joint to thigh joint, to the left."""
    thigh: float
    """From thigh joint to calf joint."""
    calf: float
    """From calf joint to foot."""
    foot_radius: float
    """Height of a foot's centre when it stands."""
    gyration: tuple[float, float]
    """Radii of gyration of the whole robot about its x and y axes."""


def foot_positions(geometry: QuadrupedGeometry, joints: np.ndarray) -> np.ndarray:
    """Feet `(..., K, 3)` in the frame of the base for joint angles `(..., 3 K)`."""
    hip, thigh, calf = np.moveaxis(joints.reshape(*joints.shape[:-1], -1, 3), -1, 0)
    forward = -geometry.thigh * np.sin(thigh) - geometry.calf * np.sin(thigh + calf)
    down = geometry.thigh * np.cos(thigh) + geometry.calf * np.cos(thigh + calf)
    left = geometry.sideways * np.cos(hip) + down * np.sin(hip)
    up = geometry.sideways * np.sin(hip) - down * np.cos(hip)
    return geometry.hips + np.stack([forward, left, up], axis=-1)


def joint_angles(geometry: QuadrupedGeometry, feet: np.ndarray) -> np.ndarray:
    """Joint angles `(..., 3 K)` that put the feet at `(..., K, 3)` in the frame of the base, knees backward.

    ValueError for a foot that is out of reach.
    """
    x, y, z = np.moveaxis(feet - geometry.hips, -1, 0)
    side = geometry.sideways
    drop_squared = y**2 + z**2 - side**2
    longest, shortest = geometry.thigh + geometry.calf, abs(geometry.thigh - geometry.calf)
    reach = np.sqrt(np.maximum(x**2 + drop_squared, 0.0))
    if (drop_squared < 0).any() or (reach > longest).any() or (reach < shortest).any():
        raise ValueError(
            f"a foot is out of reach: {reach.max():.3f} m from its thigh joint, legs are {longest:.3f} m long; "
            "walk slower, with shorter strides, or lower"
        )
    drop = np.sqrt(drop_squared)
    hip = np.arctan2(y, -z) - np.arctan2(side, drop)
    cosine = (reach**2 - geometry.thigh**2 - geometry.calf**2) / (2 * geometry.thigh * geometry.calf)
    calf = -np.arccos(np.clip(cosine, -1.0, 1.0))
    thigh = np.arctan2(-x, drop) - np.arctan2(
        geometry.calf * np.sin(calf), geometry.thigh + geometry.calf * np.cos(calf)
    )
    return np.stack([hip, thigh, calf], axis=-1).reshape(*feet.shape[:-2], -1)
