"""The left-right symmetry of a robot, measured on its model: which joint is the mirror image of which, and its sign."""

from typing import NamedTuple

import numpy as np

from st_rl.sim.require import MjData, MjModel, require_mujoco

# A mirror image may be off by this share of the robot's size, and its axis by this much from parallel (cosine).
_PLACE_TOLERANCE = 0.02
_AXIS_TOLERANCE = 0.05


class Mirror(NamedTuple):
    """Where each joint's mirror image is: `mirrored[i] = signs[i] * x[joints[i]]`."""

    joints: tuple[int, ...]
    """Index of each joint's counterpart on the other side, its own in the middle."""
    signs: tuple[int, ...]
    """Whether the counterpart turns by the same or by the opposite angle."""
    feet: tuple[int, ...]
    """Index of each foot's counterpart."""


def find_mirror(model: MjModel, data: MjData, base: int, joints: list[int], feet: list[int]) -> Mirror:
    """Find the counterparts in the pose of `data`, from places and axes and not from names.

    Args:
        model: The `mujoco.MjModel`.
        data: Its data in a pose that is symmetric itself, after kinematics.
        base: Body whose forward-up plane is the mirror.
        joints: Ids of hinge and slide joints.
        feet: Ids of geoms.

    Raises:
        ValueError: A joint or a foot has no counterpart; the message names it.
    """
    rotation = data.xmat[base].reshape(3, 3)
    anchors = (data.xanchor[joints] - data.xpos[base]) @ rotation
    axes = data.xaxis[joints] @ rotation
    soles = (data.geom_xpos[feet] - data.xpos[base]) @ rotation
    size = float(np.ptp(np.concatenate([anchors, soles]), axis=0).max()) if joints else 0.0
    # An axis of rotation is mirrored against the way in which a direction is.
    turns = model.jnt_type[joints] == int(require_mujoco().mjtJoint.mjJNT_HINGE)
    mirrored_axes = axes * np.where(turns[:, None], [-1, 1, -1], [1, -1, 1])
    alignment = mirrored_axes @ axes.T
    distance = _distances(anchors) + np.where(np.abs(alignment) > 1 - _AXIS_TOLERANCE, 0.0, np.inf)
    distance[turns[:, None] != turns[None]] = np.inf
    joint_names, foot_names = (
        [element(i).name for i in ids] for element, ids in ((model.joint, joints), (model.geom, feet))
    )
    partners = _pair(distance, _PLACE_TOLERANCE * size, joint_names, "joint")
    signs = [int(np.sign(alignment[i, partner])) for i, partner in enumerate(partners)]
    return Mirror(
        tuple(partners), tuple(signs), tuple(_pair(_distances(soles), _PLACE_TOLERANCE * size, foot_names, "foot"))
    )


def _distances(places: np.ndarray) -> np.ndarray:
    """`(K, K)` distance of the mirror image of each place `(K, 3)` from each place."""
    return np.linalg.norm((places * [1, -1, 1])[:, None] - places[None], axis=2)


def _pair(distance: np.ndarray, tolerance: float, names: list[str], kind: str) -> list[int]:
    """The nearest counterpart of each; ValueError where there is none or pairs do not agree."""
    partners = [int(row.argmin()) for row in distance]
    for i, partner in enumerate(partners):
        if distance[i, partner] > tolerance or partners[partner] != i:
            raise ValueError(
                f"{kind} '{names[i]}' has no mirror image on the other side of the robot: do without symmetry_cfg"
            )
    return partners
