"""Operations on clips: reorder joints, resample, cut, mirror."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from st_rl.datasets.clip import Bodies, Feet, MotionClip, MotionError
from st_rl.modules.symmetry import joint_mirror
from st_rl.utils.config import nearest_name
from st_rl.utils.tensors import rotations

# Signs of positions, angular velocities and quaternions (w, x, y, z) mirrored at y = 0.
_VECTOR_SIGNS = np.array([1.0, -1.0, 1.0])
_PSEUDOVECTOR_SIGNS = np.array([-1.0, 1.0, -1.0])
_QUATERNION_SIGNS = np.array([1.0, -1.0, 1.0, -1.0])


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
    """The clip at another frame rate: rotations by slerp, all else by linear interpolation.

    It starts with the same frame and ends with the last new frame within the clip.
    """
    if not (np.isfinite(fps) and fps > 0):
        raise MotionError(clip.where, "fps", f"is {fps}", "give the frames per second, a positive number")
    num_frames = int(np.floor(clip.duration * fps * (1.0 + 1e-9) + 1e-6)) + 1
    if num_frames < 2:
        raise MotionError(
            clip.where, "fps", f"of {fps:g} leaves one frame of {clip.duration:g} s", "choose a higher frame rate"
        )
    position = np.minimum(np.arange(num_frames) * (clip.fps / fps), clip.num_frames - 1)
    low = np.minimum(position.astype(int), clip.num_frames - 2)
    blend = position - low

    def interpolate(values: np.ndarray) -> np.ndarray:
        weight = blend.reshape(-1, *[1] * (values.ndim - 1))
        return (1.0 - weight) * values[low] + weight * values[low + 1]

    def slerp(quats: np.ndarray) -> np.ndarray:
        weight = np.broadcast_to(blend.reshape(-1, *[1] * (quats.ndim - 2)), (num_frames, *quats.shape[1:-1]))
        return rotations.remove_sign_flips(rotations.normalize(rotations.slerp(quats[low], quats[low + 1], weight)))

    return replace(_map_frames(clip, interpolate, slerp), fps=float(fps))


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

    return _map_frames(clip, take, take)


def _map_frames(
    clip: MotionClip,
    map_values: Callable[[np.ndarray], np.ndarray],
    map_rotations: Callable[[np.ndarray], np.ndarray],
) -> MotionClip:
    """The clip with all arrays `(F, ...)` replaced, quaternions by `map_rotations`, others by `map_values`."""
    feet, bodies = clip.feet, clip.bodies
    if feet is not None:
        feet = Feet(feet.names, map_values(feet.pos), map_values(feet.vel))
    if bodies is not None:
        pos, rot = map_values(bodies.pos), map_rotations(bodies.rot)
        bodies = Bodies(bodies.names, pos, rot, map_values(bodies.lin_vel), map_values(bodies.ang_vel))
    return replace(
        clip,
        joint_pos=map_values(clip.joint_pos),
        joint_vel=map_values(clip.joint_vel),
        root_pos=map_values(clip.root_pos),
        root_rot=map_rotations(clip.root_rot),
        root_lin_vel=map_values(clip.root_lin_vel),
        root_ang_vel=map_values(clip.root_ang_vel),
        feet=feet,
        bodies=bodies,
    )


def mirror(clip: MotionClip, signs: Mapping[str, int] | None = None) -> MotionClip:
    """The clip mirrored at the plane y = 0; mirroring twice gives the original.

    Left and right joints, feet and bodies are swapped by name. `signs` maps patterns of joint names to 1 or -1 where
    the names do not tell whether an angle changes sign (`st_rl.modules.symmetry.JOINT_SIGNS`).
    """
    vector, pseudovector, quaternion = _VECTOR_SIGNS, _PSEUDOVECTOR_SIGNS, _QUATERNION_SIGNS
    feet, bodies = clip.feet, clip.bodies
    try:
        order, sign = mirror_joints(clip.joint_names, signs)
        if feet is not None:
            partners = find_partners(feet.names)
            feet = Feet(feet.names, feet.pos[:, partners] * vector, feet.vel[:, partners] * vector)
        if bodies is not None:
            partners = find_partners(bodies.names)
            pos, rot = bodies.pos[:, partners] * vector, bodies.rot[:, partners] * quaternion
            lin_vel, ang_vel = bodies.lin_vel[:, partners] * vector, bodies.ang_vel[:, partners] * pseudovector
            bodies = Bodies(bodies.names, pos, rot, lin_vel, ang_vel)
    except ValueError as error:
        raise MotionError(
            clip.where, "names", f"have no mirror image: {error}", "rename them, or give signs"
        ) from error
    return replace(
        clip,
        joint_pos=clip.joint_pos[:, order] * sign,
        joint_vel=clip.joint_vel[:, order] * sign,
        root_pos=clip.root_pos * vector,
        root_rot=clip.root_rot * quaternion,
        root_lin_vel=clip.root_lin_vel * vector,
        root_ang_vel=clip.root_ang_vel * pseudovector,
        feet=feet,
        bodies=bodies,
    )


def mirror_joints(names: Sequence[str], signs: Mapping[str, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Index of the joint `(J,)` of which each joint has the angle after mirroring, and its sign `(J,)`."""
    joints = joint_mirror(names, signs)
    return joints.permutation.numpy(), joints.signs.numpy().astype(np.float64)


def find_partners(names: Sequence[str]) -> np.ndarray:
    """Index of the left-right partner of each name, or of the name itself."""
    return joint_mirror(names, {"": 1}).permutation.numpy()
