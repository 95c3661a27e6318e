"""Operations on clips: reorder joints, resample, cut, mirror."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from st_rl.datasets.clip import Bodies, Feet, MotionClip, MotionError, list_names
from st_rl.modules.symmetry import joint_mirror
from st_rl.utils.config import nearest_name
from st_rl.utils.tensors import rotations
from st_rl.utils.tensors.splines import evaluate_spline

# Signs of positions, angular velocities and quaternions (w, x, y, z) mirrored at y = 0.
_VECTOR_SIGNS = np.array([1.0, -1.0, 1.0])
_PSEUDOVECTOR_SIGNS = np.array([-1.0, 1.0, -1.0])
_QUATERNION_SIGNS = np.array([1.0, -1.0, 1.0, -1.0])
Map = Callable[[np.ndarray], np.ndarray]
Parts = TypeVar("Parts", Feet, Bodies)


def reorder_joints(clip: MotionClip, joint_names: Sequence[str]) -> MotionClip:
    """The clip with its joints in the order of `joint_names`, without the others.

    MotionError for a joint that the clip lacks, with the nearest name that it has.
    """
    missing = [name for name in joint_names if name not in clip.joint_names]
    if missing:
        near = nearest_name(missing[0], clip.joint_names)
        hint = f" (nearest to '{missing[0]}': '{near}')" if near else ""
        raise MotionError(
            clip.where,
            "joint_names",
            f"lack {list_names(missing)}; the clip has {list_names(clip.joint_names)}{hint}",
            "use a clip of this robot, or name the joints of the file, in its order, with joint_names",
        )
    columns = [clip.joint_names.index(name) for name in joint_names]
    return replace(
        clip,
        joint_names=tuple(joint_names),
        joint_pos=clip.joint_pos[:, columns],
        joint_vel=clip.joint_vel[:, columns],
    )


def resample(clip: MotionClip, fps: float) -> MotionClip:
    """The clip at another frame rate, by cubic splines through its frames.

    Velocities that the file lacked (`clip.estimated`) are the derivatives of the splines, others are interpolated. It
    starts with the same frame and ends with the last new frame within the clip.
    """
    if not (np.isfinite(fps) and fps > 0):
        raise MotionError(clip.where, "fps", f"is {fps}", "give the frames per second, a positive number")
    num_frames = int(np.floor(clip.duration * fps * (1.0 + 1e-9) + 1e-6)) + 1
    if num_frames < 2:
        raise MotionError(
            clip.where, "fps", f"of {fps:g} leaves one frame of {clip.duration:g} s", "choose a higher frame rate"
        )
    time = np.minimum(np.arange(num_frames) * (clip.fps / fps), clip.num_frames - 1)

    def interpolate(values: np.ndarray) -> np.ndarray:
        return evaluate_spline(values, time)[0]

    def interpolate_rotations(quats: np.ndarray) -> np.ndarray:
        return rotations.remove_sign_flips(rotations.normalize(interpolate(quats)))

    resampled = replace(_map_frames(clip, interpolate, interpolate, interpolate_rotations), fps=float(fps))
    return _differentiate_estimated(clip, resampled, time)


def _differentiate_estimated(clip: MotionClip, resampled: MotionClip, time: np.ndarray) -> MotionClip:
    """The resampled clip with the derivatives of the splines of `clip` where velocities are estimated."""

    def linear(values: np.ndarray) -> np.ndarray:
        return clip.fps * evaluate_spline(values, time)[1]

    def angular(quats: np.ndarray) -> np.ndarray:
        quats, rates = evaluate_spline(quats, time)
        # The length of an interpolated quaternion does not matter to the vector part.
        product = rotations.multiply(rates, rotations.conjugate(quats))[..., 1:]
        return 2.0 * clip.fps * product / (quats**2).sum(axis=-1, keepdims=True)

    changes: dict[str, np.ndarray | Feet | Bodies] = {}
    if "joint_vel" in clip.estimated:
        changes["joint_vel"] = linear(clip.joint_pos)
    if "root_lin_vel" in clip.estimated:
        changes["root_lin_vel"] = linear(clip.root_pos)
    if "root_ang_vel" in clip.estimated:
        changes["root_ang_vel"] = angular(clip.root_rot)
    if clip.feet is not None and resampled.feet is not None and "feet.vel" in clip.estimated:
        changes["feet"] = replace(resampled.feet, vel=linear(clip.feet.pos))
    if clip.bodies is not None and resampled.bodies is not None:
        bodies = resampled.bodies
        if "bodies.lin_vel" in clip.estimated:
            bodies = replace(bodies, lin_vel=linear(clip.bodies.pos))
        if "bodies.ang_vel" in clip.estimated:
            bodies = replace(bodies, ang_vel=angular(clip.bodies.rot))
        changes["bodies"] = bodies
    return replace(resampled, **changes)


def cut(clip: MotionClip, start_s: float = 0.0, end_s: float | None = None) -> MotionClip:
    """The frames from `start_s` to `end_s`, both included."""
    first = round(start_s * clip.fps)
    last = clip.num_frames - 1 if end_s is None else round(end_s * clip.fps)
    if not 0 <= first < last < clip.num_frames:
        raise MotionError(
            clip.where,
            "the cut",
            f"from {start_s:g} to {'the end' if end_s is None else f'{end_s:g} s'} leaves less than two frames of it",
            f"choose times between 0 and {clip.duration:g} s",
        )

    def take(values: np.ndarray) -> np.ndarray:
        return values[first : last + 1]

    return _map_frames(clip, take, take, take)


def _map_frames(
    clip: MotionClip, joints: Map, vectors: Map, rotations: Map, pseudovectors: Map | None = None
) -> MotionClip:
    """The clip with all arrays `(F, ...)` replaced, by kind; angular velocities are vectors by default."""
    feet, bodies, pseudovectors = clip.feet, clip.bodies, pseudovectors or vectors
    if feet is not None:
        feet = Feet(feet.names, vectors(feet.pos), vectors(feet.vel))
    if bodies is not None:
        pos, rot, lin_vel = vectors(bodies.pos), rotations(bodies.rot), vectors(bodies.lin_vel)
        bodies = Bodies(bodies.names, pos, rot, lin_vel, pseudovectors(bodies.ang_vel))
    return replace(
        clip,
        joint_pos=joints(clip.joint_pos),
        joint_vel=joints(clip.joint_vel),
        root_pos=vectors(clip.root_pos),
        root_rot=rotations(clip.root_rot),
        root_lin_vel=vectors(clip.root_lin_vel),
        root_ang_vel=pseudovectors(clip.root_ang_vel),
        feet=feet,
        bodies=bodies,
    )


def mirror(clip: MotionClip, signs: Mapping[str, int] | None = None) -> MotionClip:
    """The clip mirrored at the plane y = 0; mirroring twice gives the original.

    Left and right joints, feet and bodies are swapped by name. `signs` maps patterns of joint names to 1 or -1 where
    the names do not tell whether an angle changes sign (`st_rl.modules.symmetry.JOINT_SIGNS`).
    """
    try:
        joints = joint_mirror(clip.joint_names, signs)
        swapped = replace(clip, feet=_swap_sides(clip.feet), bodies=_swap_sides(clip.bodies))
    except ValueError as error:
        raise MotionError(
            clip.where, "names", f"have no mirror image: {error}", "rename them, or give signs"
        ) from error
    return mirror_joints(swapped, joints.permutation.numpy(), joints.signs.numpy())


def mirror_joints(clip: MotionClip, partners: Sequence[int] | np.ndarray, signs: ArrayLike) -> MotionClip:
    """The clip mirrored at the plane y = 0, with joint angles `signs[j] * joint_pos[:, partners[j]]`.

    Feet and bodies are mirrored in place: the names of left and right stay where they are.
    """
    order, sign = np.asarray(partners), np.asarray(signs, dtype=np.float64)
    return _map_frames(
        clip,
        lambda angles: angles[:, order] * sign,
        lambda vectors: vectors * _VECTOR_SIGNS,
        lambda quats: quats * _QUATERNION_SIGNS,
        lambda vectors: vectors * _PSEUDOVECTOR_SIGNS,
    )


def _swap_sides(parts: Parts | None) -> Parts | None:
    """Feet or bodies with left and right exchanged by name."""
    if parts is None:
        return None
    partners = joint_mirror(parts.names, {"": 1}).permutation.numpy()
    return replace(parts, **{name: array[:, partners] for name, array in vars(parts).items() if name != "names"})
