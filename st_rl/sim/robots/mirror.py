"""The left-right symmetry of a robot, measured on its model: partner and sign of each joint."""

from typing import NamedTuple

import numpy as np

from st_rl.sim.require import MjData, MjModel, mujoco

# Tolerance of a mirrored position relative to the size of the robot, and of the cosine between axes.
_PLACE_TOLERANCE = 0.02
_AXIS_TOLERANCE = 0.05


class Mirror(NamedTuple):
    """Mirrored joints: `mirrored[i] = signs[i] * x[joints[i]]`."""

    joints: tuple[int, ...]
    """Index of each joint's partner on the other side, or of the joint itself."""
    signs: tuple[int, ...]
    """1 if the partner has the same angle, -1 for the opposite."""
    feet: tuple[int, ...]
    """Index of each foot's partner."""


def find_mirror(model: MjModel, data: MjData, base: int, joints: list[int], feet: list[int]) -> Mirror:
    """Find partners by positions and axes, not by names, in the pose of `data`, which must be symmetric.

    The x-z plane of the body `base` is the mirror, `joints` are ids of hinge and slide joints, `feet` ids of geoms.
    ValueError with its name for a joint or a foot without a partner.
    """
    rotation = data.xmat[base].reshape(3, 3)
    anchors = (data.xanchor[joints] - data.xpos[base]) @ rotation
    axes = data.xaxis[joints] @ rotation
    soles = (data.geom_xpos[feet] - data.xpos[base]) @ rotation
    size = float(np.ptp(np.concatenate([anchors, soles]), axis=0).max()) if joints else 0.0
    # A rotation axis is a pseudovector.
    turns = model.jnt_type[joints] == int(mujoco.mjtJoint.mjJNT_HINGE)
    mirrored_axes = axes * np.where(turns[:, None], [-1, 1, -1], [1, -1, 1])
    alignment = mirrored_axes @ axes.T
    distance = _distances(anchors) + np.where(np.abs(alignment) > 1 - _AXIS_TOLERANCE, 0.0, np.inf)
    distance[turns[:, None] != turns[None]] = np.inf
    tolerance = _PLACE_TOLERANCE * size
    partners = _pair(distance, tolerance, [model.joint(j).name for j in joints], "joint")
    signs = [int(np.sign(alignment[i, partner])) for i, partner in enumerate(partners)]
    foot_partners = _pair(_distances(soles), tolerance, [model.geom(g).name for g in feet], "foot")
    return Mirror(tuple(partners), tuple(signs), tuple(foot_partners))


def _distances(places: np.ndarray) -> np.ndarray:
    """`(K, K)` distance of each mirrored position `(K, 3)` from each position."""
    return np.linalg.norm((places * [1, -1, 1])[:, None] - places[None], axis=2)


def _pair(distance: np.ndarray, tolerance: float, names: list[str], kind: str) -> list[int]:
    """The nearest partner of each; ValueError if there is none or partners do not agree."""
    partners = [int(row.argmin()) for row in distance]
    for i, partner in enumerate(partners):
        if distance[i, partner] > tolerance or partners[partner] != i:
            raise ValueError(
                f"{kind} '{names[i]}' has no mirror image on the other side of the robot: do without symmetry_cfg"
            )
    return partners
