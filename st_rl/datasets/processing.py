"""Changes of a clip: order of joints, frame rate, length, left and right."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from st_rl.datasets.clip import Bodies, Feet, MotionClip, MotionError, make_clip
from st_rl.modules.symmetry import joint_mirror
from st_rl.utils import rotations
from st_rl.utils.config import nearest_name


def reorder_joints(clip: MotionClip, joint_names: Sequence[str]) -> MotionClip:
    """The clip with its joints in the order of `joint_names`; further joints of the clip are left out.

    MotionError for a joint that the clip does not have, with the nearest name that it has.
    """
    missing = [name for name in joint_names if name not in clip.joint_names]
    if missing:
        near = nearest_name(missing[0], clip.joint_names)
        hint = f" (nearest to '{missing[0]}': '{near}')" if near else ""
        raise MotionError(
            clip.where,
            "joint_names",
            f"lack {', '.join(missing)}; the clip has {', '.join(clip.joint_names)}{hint}",
            "name the joints of the file, in its order, with joint_names, as the robot calls them",
        )
    columns = [clip.joint_names.index(name) for name in joint_names]
    return replace(
        clip,
        joint_names=tuple(joint_names),
        joint_pos=clip.joint_pos[:, columns],
        joint_vel=clip.joint_vel[:, columns],
    )


def resample(clip: MotionClip, fps: float) -> MotionClip:
    """The clip at another frame rate, blended between frames: rotations by the short arc, the rest linearly.

    It begins with the same frame and ends at the last new frame that lies within the clip.
    """
    if not (np.isfinite(fps) and fps > 0):
        raise MotionError(clip.where, "fps", f"is {fps}", "give the frames a second, a positive number")
    num_frames = int(np.floor(clip.duration * fps * (1.0 + 1e-9) + 1e-6)) + 1
    if num_frames < 2:
        raise MotionError(
            clip.where, "fps", f"of {fps:g} leaves one frame of {clip.duration:g} s", "choose a higher frame rate"
        )
    place = np.minimum(np.arange(num_frames) * (clip.fps / fps), clip.num_frames - 1)
    low = np.minimum(place.astype(int), clip.num_frames - 2)
    share = place - low

    def blend(values: np.ndarray) -> np.ndarray:
        weight = share.reshape(-1, *[1] * (values.ndim - 1))
        return (1.0 - weight) * values[low] + weight * values[low + 1]

    def turn(quats: np.ndarray) -> np.ndarray:
        weight = np.broadcast_to(share.reshape(-1, *[1] * (quats.ndim - 2)), (num_frames, *quats.shape[1:-1]))
        return rotations.slerp(quats[low], quats[low + 1], weight)

    feet, bodies = clip.feet, clip.bodies
    made = make_clip(
        clip.name,
        fps,
        clip.joint_names,
        blend(clip.joint_pos),
        blend(clip.root_pos),
        turn(clip.root_rot),
        joint_vel=blend(clip.joint_vel),
        root_lin_vel=blend(clip.root_lin_vel),
        root_ang_vel=blend(clip.root_ang_vel),
        feet=(feet.names, blend(feet.pos), blend(feet.vel)) if feet is not None else None,
        bodies=(bodies.names, blend(bodies.pos), turn(bodies.rot), blend(bodies.lin_vel), blend(bodies.ang_vel))
        if bodies is not None
        else None,
        weight=clip.weight,
        source=clip.source,
    )
    return replace(made, estimated=clip.estimated)


def cut(clip: MotionClip, start_s: float = 0.0, end_s: float | None = None) -> MotionClip:
    """The frames of the clip from `start_s` to `end_s`, both included."""
    first = round(start_s * clip.fps)
    last = clip.num_frames - 1 if end_s is None else round(end_s * clip.fps)
    if not 0 <= first < last < clip.num_frames:
        raise MotionError(
            clip.where,
            "the cut",
            f"from {start_s:g} to {'the end' if end_s is None else f'{end_s:g} s'} leaves less than two frames of it",
            f"choose times between 0 and {clip.duration:g} s",
        )
    rows = slice(first, last + 1)
    feet, bodies = clip.feet, clip.bodies
    return replace(
        clip,
        **{name: getattr(clip, name)[rows] for name in _SEQUENCES},
        feet=Feet(feet.names, feet.pos[rows], feet.vel[rows]) if feet is not None else None,
        bodies=Bodies(bodies.names, *(getattr(bodies, name)[rows] for name in ("pos", "rot", "lin_vel", "ang_vel")))
        if bodies is not None
        else None,
    )


_SEQUENCES = ("joint_pos", "joint_vel", "root_pos", "root_rot", "root_lin_vel", "root_ang_vel")


def mirror(clip: MotionClip, signs: Mapping[str, int] | None = None) -> MotionClip:
    """The clip as a mirror at the plane y = 0 shows it; mirroring twice gives the clip back.

    Left and right joints, feet and bodies change places by their names. `signs` maps patterns of joint names to 1 or
    -1 where the names do not tell whether an angle changes sign (`st_rl.modules.symmetry.JOINT_SIGNS`).
    """
    try:
        order, sign = mirrored_joints(clip.joint_names, signs)
        feet = None if clip.feet is None else _mirrored_feet(clip.feet)
        bodies = None if clip.bodies is None else _mirrored_bodies(clip.bodies)
    except ValueError as error:
        raise MotionError(
            clip.where, "names", f"have no mirror image: {error}", "rename them, or give signs"
        ) from error
    return replace(
        clip,
        joint_pos=clip.joint_pos[:, order] * sign,
        joint_vel=clip.joint_vel[:, order] * sign,
        root_pos=clip.root_pos * _VECTOR,
        root_rot=clip.root_rot * _ROTATION,
        root_lin_vel=clip.root_lin_vel * _VECTOR,
        root_ang_vel=clip.root_ang_vel * _PSEUDOVECTOR,
        feet=feet,
        bodies=bodies,
    )


def _mirrored_feet(feet: Feet) -> Feet:
    places = other_side(feet.names)
    return Feet(feet.names, feet.pos[:, places] * _VECTOR, feet.vel[:, places] * _VECTOR)


def _mirrored_bodies(bodies: Bodies) -> Bodies:
    places = other_side(bodies.names)
    pos, rot = bodies.pos[:, places] * _VECTOR, bodies.rot[:, places] * _ROTATION
    return Bodies(
        bodies.names, pos, rot, bodies.lin_vel[:, places] * _VECTOR, bodies.ang_vel[:, places] * _PSEUDOVECTOR
    )


def mirrored_joints(names: Sequence[str], signs: Mapping[str, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Which joint's angle each joint `(J,)` has in the mirror, and with which sign `(J,)`."""
    joints = joint_mirror(names, signs)
    return joints.permutation.numpy(), joints.signs.numpy().astype(np.float64)


def other_side(names: Sequence[str]) -> np.ndarray:
    """For every name the place of its left-right partner, or its own."""
    return joint_mirror(names, {"": 1}).permutation.numpy()


# How the mirror at y = 0 changes positions, angular velocities and quaternions w, x, y, z.
_VECTOR = np.array([1.0, -1.0, 1.0])
_PSEUDOVECTOR = np.array([-1.0, 1.0, -1.0])
_ROTATION = np.array([1.0, -1.0, 1.0, -1.0])
