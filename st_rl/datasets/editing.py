"""Edits of clips that need no robot: loop, speed, cross-fade of two clips, joint limits.

`st_rl.datasets.processing` has the others: cut, resample, mirror. Every function returns a new clip. An edit that
changes poses computes all velocities again by central differences, and drops feet and bodies, which
`st_rl.sim.motions.clips.add_body_poses` computes from the robot.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from st_rl.datasets.clip import Bodies, Feet, MotionClip, MotionError, linear_velocity
from st_rl.datasets.processing import cut, reorder_joints, resample
from st_rl.utils.tensors import rotations

# Largest difference of two poses that count as the same: joints and tilt in rad, height in m.
_SAME_POSE = 0.02


class PlanarPath(NamedTuple):
    """Path of the root in the ground plane."""

    pos: np.ndarray
    """`(F, 2)` x and y, m"""
    yaw: np.ndarray
    """`(F,)` heading, rad, without jumps by a full turn"""


def change_speed(clip: MotionClip, factor: float) -> MotionClip:
    """The clip `factor` times as fast, at the same frame rate: durations shrink, all velocities grow by the factor."""
    if not (np.isfinite(factor) and factor > 0):
        raise MotionError(clip.where, "the speed", f"is {factor:g}", "give a factor above 0; 2 is twice as fast")
    feet, bodies = clip.feet, clip.bodies
    faster = replace(
        clip,
        fps=clip.fps * factor,
        joint_vel=clip.joint_vel * factor,
        root_lin_vel=clip.root_lin_vel * factor,
        root_ang_vel=clip.root_ang_vel * factor,
        feet=None if feet is None else Feet(feet.names, feet.pos, feet.vel * factor),
        bodies=None
        if bodies is None
        else Bodies(bodies.names, bodies.pos, bodies.rot, bodies.lin_vel * factor, bodies.ang_vel * factor),
    )
    return resample(faster, clip.fps)


def blend_clips(first: MotionClip, second: MotionClip, fade_s: float = 0.3) -> MotionClip:
    """The first clip, cross-faded into the second over its last `fade_s` seconds.

    The second continues from the position and heading of the first. Within the fade joints, height and tilt are
    interpolated, and so are the horizontal velocity and the yaw rate, so that the root is never dragged back. The
    result has the frame rate and the joints of the first; MotionError if the second lacks one of them.
    """
    try:
        second = reorder_joints(second, first.joint_names)
    except MotionError as error:
        raise MotionError(
            second.where, "joint_names", f"are not those of {first.where} ({error})", "blend clips of the same robot"
        ) from error
    second = resample(second, first.fps) if second.fps != first.fps else second
    return with_differentiated_velocities(_cross_fade(first, second, _fade_frames(fade_s, first, second)))


def make_loop(clip: MotionClip, fade_s: float = 0.3) -> MotionClip:
    """The clip with its end blended into its beginning, so that it repeats without a jump.

    It is `fade_s` seconds shorter: its last frames are cross-faded with the frames before its new first one. The last
    frame has the joints, height, tilt and velocities of the first, at its own position and heading. A clip that ends
    in the pose of its first frame is returned with its frames unchanged.
    """
    if is_cyclic(clip):
        return clip
    frames = _fade_frames(fade_s, clip, clip)
    if 2 * frames >= clip.num_frames:
        raise MotionError(
            clip.where, "the fade", f"of {fade_s:g} s is half of {clip.duration:g} s or more", "give a shorter --fade"
        )
    fade = frames / clip.fps
    looped = _cross_fade(cut(clip, fade), cut(clip, 0.0, fade), frames)
    # One frame more on both sides, from the neighbouring repetitions, so that velocities agree where they meet.
    step = cut(looped, 0.0, 1.0 / clip.fps)
    before = cut(looped, looped.duration - 1.0 / clip.fps)
    extended = with_differentiated_velocities(_cross_fade(_cross_fade(before, looped, 0), step, 0))
    inner = cut(extended, 1.0 / clip.fps, extended.duration - 1.0 / clip.fps)
    return _move(inner, looped)


def clamp_joints(clip: MotionClip, limits: np.ndarray) -> MotionClip:
    """The clip with joint positions within `limits (J, 2)`; joints that were within keep their velocities."""
    joint_pos = np.clip(clip.joint_pos, limits[:, 0], limits[:, 1])
    is_changed = (joint_pos != clip.joint_pos).any(axis=0)
    joint_vel = np.where(is_changed, linear_velocity(joint_pos, 1.0 / clip.fps), clip.joint_vel)
    return replace(clip, joint_pos=joint_pos, joint_vel=joint_vel, feet=None, bodies=None)


def is_cyclic(clip: MotionClip) -> bool:
    """Whether the last frame has the joints, the height and the tilt of the first."""
    tilt = _tilt(clip.root_rot[[0, -1]], planar_path(clip).yaw[[0, -1]])
    apart = np.concatenate(
        [
            clip.joint_pos[-1] - clip.joint_pos[0],
            clip.root_pos[-1:, 2] - clip.root_pos[0, 2],
            rotations.to_rotation_vector(rotations.multiply(tilt[1], rotations.conjugate(tilt[0]))),
        ]
    )
    return bool(np.abs(apart).max() < _SAME_POSE)


def planar_path(clip: MotionClip) -> PlanarPath:
    """Horizontal position `(F, 2)` and heading `(F,)` of the root."""
    w, x, y, z = clip.root_rot.T
    yaw = np.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    return PlanarPath(clip.root_pos[:, :2], np.unwrap(yaw))


def with_differentiated_velocities(clip: MotionClip) -> MotionClip:
    """The clip with velocities by central differences of its poses, without feet and bodies."""
    dt = 1.0 / clip.fps
    return replace(
        clip,
        joint_vel=linear_velocity(clip.joint_pos, dt),
        root_lin_vel=linear_velocity(clip.root_pos, dt),
        root_ang_vel=rotations.angular_velocity(clip.root_rot, dt),
        feet=None,
        bodies=None,
    )


def _fade_frames(fade_s: float, first: MotionClip, second: MotionClip) -> int:
    """Frames of a cross-fade; MotionError if it is longer than a clip."""
    shorter = min(first, second, key=lambda clip: clip.duration)
    frames = round(fade_s * first.fps) if np.isfinite(fade_s) else -1
    if not 1 <= frames < shorter.num_frames:
        raise MotionError(
            shorter.where,
            "the fade",
            f"of {fade_s:g} s does not fit into {shorter.duration:g} s",
            f"give --fade a value from {1.0 / first.fps:.2g} to {shorter.duration:.2g}",
        )
    return frames


def _cross_fade(first: MotionClip, second: MotionClip, overlap: int) -> MotionClip:
    """Frames of `first`, then of `second`, `overlap` steps of both blended; velocities are not set.

    Both have the same joints and frame rate. Without overlap the first frame of the second clip is left out,
    because the last frame of the first clip is at its place.
    """
    start = first.num_frames - 1 - overlap
    time = np.arange(start + second.num_frames)
    in_first = np.minimum(time, first.num_frames - 1)
    in_second = np.maximum(time - start, 0)
    progress = np.clip((time - start) / overlap, 0.0, 1.0) if overlap else (time > start).astype(float)
    weight = progress**2 * (3.0 - 2.0 * progress)
    path = _join_paths(planar_path(first), planar_path(second), start, weight)

    def interpolate(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (1.0 - weight[:, None]) * a[in_first] + weight[:, None] * b[in_second]

    tilts = [_tilt(clip.root_rot, planar_path(clip).yaw) for clip in (first, second)]
    tilt = rotations.slerp(tilts[0][in_first], tilts[1][in_second], weight)
    height = interpolate(first.root_pos[:, 2:], second.root_pos[:, 2:])
    root_pos = np.concatenate([path.pos, height], axis=1)
    root_rot = rotations.normalize(rotations.multiply(_yaw_rotation(path.yaw), tilt))
    joint_pos = interpolate(first.joint_pos, second.joint_pos)
    return replace(
        first,
        joint_pos=joint_pos,
        joint_vel=np.zeros_like(joint_pos),
        root_pos=root_pos,
        root_rot=rotations.remove_sign_flips(root_rot),
        root_lin_vel=np.zeros_like(root_pos),
        root_ang_vel=np.zeros_like(root_pos),
        feet=None,
        bodies=None,
    )


def _join_paths(first: PlanarPath, second: PlanarPath, start: int, weight: np.ndarray) -> PlanarPath:
    """The path of a cross-fade that begins at frame `start` of `first`, with weights `(F,)` of `second`.

    Steps are blended in the frame of the heading, then summed.
    """
    steps = np.arange(len(weight) - 1)
    moves, turns = [], []
    for path, index in ((first, steps), (second, steps - start)):
        index = np.clip(index, 0, len(path.yaw) - 2)
        moves.append(_rotate_plane(path.pos[index + 1] - path.pos[index], -path.yaw[index]))
        turns.append(path.yaw[index + 1] - path.yaw[index])
    # A hard switch takes the step after the last frame of the first clip from the second.
    mean = 0.5 * (weight[1:] + weight[:-1]) if ((weight > 0) & (weight < 1)).any() else weight[1:]
    yaw = first.yaw[0] + np.concatenate([[0.0], np.cumsum((1.0 - mean) * turns[0] + mean * turns[1])])
    move = _rotate_plane((1.0 - mean)[:, None] * moves[0] + mean[:, None] * moves[1], yaw[:-1])
    return PlanarPath(first.pos[0] + np.concatenate([np.zeros((1, 2)), np.cumsum(move, axis=0)]), yaw)


def _rotate_plane(vectors: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Vectors `(F, 2)` turned by angles `(F,)`."""
    cosine, sine = np.cos(angle), np.sin(angle)
    x, y = vectors.T
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=1)


def _yaw_rotation(yaw: np.ndarray) -> np.ndarray:
    """Quaternions `(F, 4)` of headings `(F,)`."""
    zero = np.zeros_like(yaw)
    return np.stack([np.cos(0.5 * yaw), zero, zero, np.sin(0.5 * yaw)], axis=1)


def _tilt(rot: np.ndarray, yaw: np.ndarray) -> np.ndarray:
    """Rotations `(F, 4)` without their headings `(F,)`."""
    return rotations.multiply(_yaw_rotation(-yaw), rot)


def _move(clip: MotionClip, target: MotionClip) -> MotionClip:
    """The clip moved and turned in the ground plane so that it begins where `target` does."""
    path, goal = planar_path(clip), planar_path(target)
    angle = np.full(clip.num_frames, goal.yaw[0] - path.yaw[0])
    turn = _yaw_rotation(angle)
    pos = clip.root_pos.copy()
    pos[:, :2] = goal.pos[0] + _rotate_plane(path.pos - path.pos[0], angle)
    return replace(
        clip,
        root_pos=pos,
        root_rot=rotations.remove_sign_flips(rotations.multiply(turn, clip.root_rot)),
        root_lin_vel=rotations.rotate(turn, clip.root_lin_vel),
        root_ang_vel=rotations.rotate(turn, clip.root_ang_vel),
    )
