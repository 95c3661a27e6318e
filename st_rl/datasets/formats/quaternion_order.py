"""Finds the order of the quaternions in a file, x, y, z, w or w, x, y, z, from the posture of the root."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from st_rl.datasets.checks import MIN_UPRIGHTNESS, find_posture_problems, root_uprightness
from st_rl.datasets.clip import MotionClip
from st_rl.utils.tensors import rotations
from st_rl.utils.tensors.rotations import WXYZ_TO_XYZW, XYZW_TO_WXYZ

QuatOrder = Literal["xyzw", "wxyz"]
ORDERS: tuple[QuatOrder, ...] = get_args(QuatOrder)
TO_WXYZ: dict[QuatOrder, list[int]] = {"xyzw": XYZW_TO_WXYZ, "wxyz": [0, 1, 2, 3]}
"""Columns that reorder quaternions of each order as w, x, y, z."""
# The other order is taken if the root is more upright by this cosine; a real lean to the side stays below it.
_MARGIN = 0.25
# Slower clips do not tell forward from backward, m/s.
_MIN_SPEED = 0.1


def read_in_order(
    read: Callable[[QuatOrder], MotionClip], documented: QuatOrder, given: QuatOrder | None
) -> MotionClip:
    """The clip of a file, read in the order that is given, else in the one in which its root stands upright.

    The order that the format documents is kept unless the other is clearly more upright. A note says so if another
    one is taken, if the root is upright in neither, or if both are upright and only the other one moves forward.
    """
    if given is not None:
        clip = read(given)
        return replace(clip, quat_order=given, notes=(*clip.notes, *find_posture_problems(clip)))
    other: QuatOrder = "wxyz" if documented == "xyzw" else "xyzw"
    clips = {documented: read(documented), other: read(other)}
    upright = {order: root_uprightness(clip) for order, clip in clips.items()}
    is_other = upright[other] >= MIN_UPRIGHTNESS and upright[other] > upright[documented] + _MARGIN
    order = other if is_other else documented
    note = None
    if is_other:
        note = (
            f"quaternions are read as {_spell(order)}, in which the root is upright (cosine of its tilt "
            f"{upright[order]:.2f}, as {_spell(documented)} {upright[documented]:.2f}); quat_order overrides this"
        )
    elif upright[order] < MIN_UPRIGHTNESS:
        note = (
            f"the root is not upright, whether quaternions are {_spell(order)} (cosine of its tilt "
            f"{upright[order]:.2f}) or {_spell(other)} ({upright[other]:.2f}); they are read as {_spell(order)}"
        )
    elif upright[other] >= MIN_UPRIGHTNESS and _moves_forward(clips[other]) and _moves_forward(clips[order], -1.0):
        note = (
            f"quaternions are read as {_spell(order)}, and the root moves backward; as {_spell(other)} it is upright, "
            "too, and moves forward: quat_order selects one"
        )
    clip = clips[order]
    return replace(clip, quat_order=order, notes=(*clip.notes, *([note] if note else [])))


def swap_order(clip: MotionClip) -> MotionClip:
    """The clip as if the quaternions of its file had the other order; angular velocities are estimated again."""
    in_file = clip.root_rot if clip.quat_order == "wxyz" else clip.root_rot[:, WXYZ_TO_XYZW]
    other: QuatOrder = "xyzw" if clip.quat_order == "wxyz" else "wxyz"
    root_rot = in_file[:, TO_WXYZ[other]]
    root_ang_vel = rotations.angular_velocity(root_rot, 1.0 / clip.fps)
    return replace(clip, root_rot=root_rot, root_ang_vel=root_ang_vel, quat_order=other)


def _spell(order: str) -> str:
    return ", ".join(order)


def _moves_forward(clip: MotionClip, sign: float = 1.0) -> bool:
    """Whether the root travels along its x axis, or against it with a `sign` of -1, most of the time."""
    heading = rotations.rotate(clip.root_rot, np.array([1.0, 0.0, 0.0]))[:, :2]
    velocity = clip.root_lin_vel[:, :2]
    speed = float(np.linalg.norm(velocity, axis=1).mean())
    return speed > _MIN_SPEED and sign * float((heading * velocity).sum(axis=1).mean()) > 0.5 * speed
