"""AMP motion files: JSON text (`.json`, `.txt`) with one trajectory, or a pickle with several."""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from st_rl.datasets.checks import find_posture_problems
from st_rl.datasets.clip import MotionClip, MotionError, finite_array, make_clip, require_keys, single_number
from st_rl.datasets.formats.pickles import PICKLES, load_pickle
from st_rl.utils.files import FileError, atomic_write, read_json
from st_rl.utils.files.readers import MAX_ELEMENTS, MAX_TEXT_BYTES, check_columns
from st_rl.utils.tensors import rotations
from st_rl.utils.tensors.rotations import WXYZ_TO_XYZW

# Blocks of columns in a file without Fields, and their widths: 12 joints, 4 feet.
QUADRUPED_BLOCKS = {
    "root_pos": 3,
    "root_rot": 4,
    "joint_pos": 12,
    "foot_pos": 12,
    "root_lin_vel": 3,
    "root_ang_vel": 3,
    "joint_vel": 12,
    "foot_vel": 12,
}
QUADRUPED_WIDTH = sum(QUADRUPED_BLOCKS.values())
LEGS = ("FR", "FL", "RR", "RL")
QUADRUPED_JOINTS = tuple(f"{leg}_{joint}_joint" for leg in LEGS for joint in ("hip", "thigh", "calf"))
QUADRUPED_FEET = tuple(f"{leg}_foot" for leg in LEGS)
_AXES = ("x", "y", "z")
_ROTATION = tuple(f"root_rot_{axis}" for axis in ("x", "y", "z", "w"))


class AmpTrajectory(NamedTuple):
    """One trajectory as an AMP file holds it."""

    name: str
    """Stem of the file, or key in a pickle."""
    frames: np.ndarray
    """`(F, W)`"""
    fields: tuple[str, ...] | None
    """Names of the columns; None for a file without names."""
    frame_duration: float
    """Seconds between frames."""
    weight: float
    """Relative sampling weight."""
    source: str
    """The file, for error messages."""


def column_names(joints: Sequence[str] = QUADRUPED_JOINTS, feet: Sequence[str] = QUADRUPED_FEET) -> tuple[str, ...]:
    """Names of all columns, block by block: `root_pos_x`, ..., `joint_pos_FR_hip_joint`, ..., `foot_vel_RL_foot_z`."""
    foot_axes = [f"{foot}_{axis}" for foot in feet for axis in _AXES]
    parts: dict[str, Sequence[str]] = {
        "root_pos": _AXES,
        "root_rot": ("x", "y", "z", "w"),
        "joint_pos": joints,
        "foot_pos": foot_axes,
        "root_lin_vel": _AXES,
        "root_ang_vel": _AXES,
        "joint_vel": joints,
        "foot_vel": foot_axes,
    }
    return tuple(f"{block}_{part}" for block in QUADRUPED_BLOCKS for part in parts[block])


def read_trajectories(path: Path, content: object = None) -> list[AmpTrajectory]:
    """The trajectories of an AMP file, or of the `content` of a pickle; MotionError for an invalid one."""
    source = str(path)
    if path.suffix.lower() in PICKLES:
        content = load_pickle(path) if content is None else content
        if not isinstance(content, Mapping) or not content:
            raise MotionError(source, "the pickle", "holds no trajectories", "store {name: {'Frames': ...}}")
        return [_trajectory(str(name), entry, source) for name, entry in content.items()]
    try:
        content = read_json(path, max_bytes=MAX_TEXT_BYTES, max_elements=MAX_ELEMENTS)
    except FileError as error:
        reason = error.__cause__
        raise MotionError(
            source, "the text", f"is not JSON ({reason})", "an AMP motion is JSON with Frames"
        ) from reason
    return [_trajectory(path.stem, content, source)]


def _trajectory(name: str, content: object, source: str) -> AmpTrajectory:
    keys = ("Frames", "FrameDuration")
    content = require_keys(source, content, keys, "an AMP motion has Frames and FrameDuration")
    frames = finite_array(source, "Frames", content["Frames"])
    if frames.ndim != 2 or frames.shape[0] < 2:
        raise MotionError(source, "Frames", f"have shape {frames.shape}", "a clip needs two frames or more")
    check_columns(frames.shape[1])
    given_weight = content.get("MotionWeight")
    duration = single_number(source, "FrameDuration", content["FrameDuration"])
    weight = 1.0 if given_weight is None else single_number(source, "MotionWeight", given_weight)
    if duration <= 0:
        raise MotionError(
            source, "FrameDuration", f"is {duration} s, so time does not increase", "give positive seconds"
        )
    if weight < 0:
        raise MotionError(source, "MotionWeight", f"is {weight}", "give a non-negative number")
    return AmpTrajectory(name, frames, _fields(content, frames.shape[1], source), duration, weight, source)


def _fields(content: Mapping[str, Any], width: int, source: str) -> tuple[str, ...] | None:
    if content.get("Fields") is None:
        return None
    if not np.iterable(content["Fields"]):
        raise MotionError(source, "Fields", f"is {content['Fields']!r}", "list the names of all columns")
    fields = tuple(str(name) for name in content["Fields"])
    if len(fields) != width:
        raise MotionError(
            source, "Fields", f"name {len(fields)} columns, the frames are {width} wide", "name every column once"
        )
    repeated = sorted({name for name in fields if fields.count(name) > 1})
    if repeated:
        raise MotionError(source, "Fields", f"repeat {', '.join(repeated)}", "name every column once")
    return fields


def unit_rotations(source: str, quats: np.ndarray) -> np.ndarray:
    """Normalized quaternions `(F, 4)`; MotionError for one of length zero."""
    length = np.linalg.norm(quats, axis=1, keepdims=True)
    if (length < 1.0e-6).any():
        frame = int(np.flatnonzero(length[:, 0] < 1.0e-6)[0])
        raise MotionError(source, "root rotation", f"is zero at frame {frame}", "write unit quaternions x, y, z, w")
    return quats / length


def read_amp(
    path: Path,
    joint_names: Sequence[str] | None = None,
    foot_names: Sequence[str] | None = None,
    content: object = None,
    fps: float | None = None,
) -> list[MotionClip]:
    """The clips of an AMP file; names are used for a file without Fields."""
    return [_clip(trajectory, joint_names, foot_names, fps) for trajectory in read_trajectories(path, content)]


def _clip(
    trajectory: AmpTrajectory,
    joint_names: Sequence[str] | None,
    foot_names: Sequence[str] | None,
    fps: float | None,
) -> MotionClip:
    """A clip of a trajectory, with velocities and feet converted from the base frame to the world frame."""
    frames, source = trajectory.frames, trajectory.source
    fields = trajectory.fields
    if fields is None:
        fields = _quadruped_columns(trajectory, joint_names, foot_names)
    column = {name: index for index, name in enumerate(fields)}

    def block(prefix: str, parts: Sequence[str]) -> np.ndarray | None:
        names = [f"{prefix}_{part}" for part in parts]
        return frames[:, [column[name] for name in names]] if names and all(n in column for n in names) else None

    joints = [name.removeprefix("joint_pos_") for name in fields if name.startswith("joint_pos_")]
    feet = [
        name.removeprefix("foot_pos_")[:-2] for name in fields if name.startswith("foot_pos_") and name[-2:] == "_x"
    ]
    required: dict[str, np.ndarray] = {}
    for name, parts in (("root_pos", _AXES), ("root_rot", ("w", *_AXES)), ("joint_pos", joints)):
        values = block(name, parts)
        if values is None:
            raise MotionError(source, "Fields", f"lack {name}", f"name its columns {name}_... (found: {fields})")
        required[name] = values
    root_pos, root_rot = required["root_pos"], unit_rotations(source, required["root_rot"])
    lin_vel, ang_vel = block("root_lin_vel", _AXES), block("root_ang_vel", _AXES)
    clip_feet = None
    if feet:
        pos, vel = (block(name, [f"{foot}_{a}" for foot in feet for a in _AXES]) for name in ("foot_pos", "foot_vel"))
        if pos is None:
            raise MotionError(source, "Fields", f"lack x, y or z of {', '.join(feet)}", "name foot_pos_FOOT_x, _y, _z")
        clip_feet = _feet_in_world(feet, pos, vel, root_pos, root_rot, lin_vel, ang_vel)
    clip = make_clip(
        trajectory.name,
        1.0 / trajectory.frame_duration if fps is None else fps,
        joints,
        required["joint_pos"],
        root_pos,
        root_rot,
        joint_vel=block("joint_vel", joints),
        root_lin_vel=None if lin_vel is None else rotations.rotate(root_rot, lin_vel),
        root_ang_vel=None if ang_vel is None else rotations.rotate(root_rot, ang_vel),
        feet=clip_feet,
        weight=trajectory.weight,
        source=source,
    )
    return replace(clip, quat_order="xyzw", notes=find_posture_problems(clip))


def _quadruped_columns(
    trajectory: AmpTrajectory, joint_names: Sequence[str] | None, foot_names: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the column names of a file without Fields, which must be of a quadruped."""
    width = trajectory.frames.shape[1]
    if width != QUADRUPED_WIDTH:
        raise MotionError(
            trajectory.source,
            "Frames",
            f"are {width} wide and have no names; only {QUADRUPED_WIDTH} columns are known without",
            "add Fields to the file (st_rl.datasets.formats.amp.column_names shows how they are called)",
        )
    fields = column_names(joint_names or QUADRUPED_JOINTS, foot_names or QUADRUPED_FEET)
    if len(fields) != QUADRUPED_WIDTH:
        raise MotionError(trajectory.source, "joint_names", "do not fit the file", "name its 12 joints and its 4 feet")
    return fields


def _feet_in_world(
    names: Sequence[str],
    pos: np.ndarray,
    vel: np.ndarray | None,
    root_pos: np.ndarray,
    root_rot: np.ndarray,
    lin_vel: np.ndarray | None,
    ang_vel: np.ndarray | None,
) -> tuple[Sequence[str], np.ndarray, np.ndarray | None]:
    """Names, world positions and world velocities `(F, K, 3)` of feet given as `(F, 3K)` in the base frame.

    The velocities in the file are relative to the base.
    """
    local = pos.reshape(len(pos), -1, 3)
    rotation = root_rot[:, None]
    world = root_pos[:, None] + rotations.rotate(rotation, local)
    if vel is None or lin_vel is None or ang_vel is None:
        return names, world, None
    velocity = vel.reshape(local.shape) + lin_vel[:, None] + np.cross(ang_vel[:, None], local)
    return names, world, rotations.rotate(rotation, velocity)


def amp_dictionary(clip: MotionClip) -> dict[str, Any]:
    """A clip as the dictionary of an AMP file, with column names in Fields."""
    base, rotation = clip.root_rot, clip.root_rot[:, None]
    lin_vel = rotations.rotate_inverse(base, clip.root_lin_vel)
    ang_vel = rotations.rotate_inverse(base, clip.root_ang_vel)
    feet = clip.feet
    num_frames = clip.num_frames
    foot_pos = foot_vel = np.zeros((num_frames, 0))
    if feet is not None:
        local = rotations.rotate_inverse(rotation, feet.pos - clip.root_pos[:, None])
        relative = rotations.rotate_inverse(rotation, feet.vel) - lin_vel[:, None] - np.cross(ang_vel[:, None], local)
        foot_pos, foot_vel = local.reshape(num_frames, -1), relative.reshape(num_frames, -1)
    columns = [clip.root_pos, clip.root_rot[:, WXYZ_TO_XYZW], clip.joint_pos, foot_pos, lin_vel, ang_vel]
    frames = np.concatenate([*columns, clip.joint_vel, foot_vel], axis=1)
    return {
        "LoopMode": "Wrap",
        "FrameDuration": 1.0 / clip.fps,
        "EnableCycleOffsetPosition": True,
        "EnableCycleOffsetRotation": True,
        "MotionWeight": clip.weight,
        "Fields": list(column_names(clip.joint_names, feet.names if feet is not None else ())),
        "Frames": frames.tolist(),
    }


def write_amp(path: Path, clips: Sequence[MotionClip]) -> None:
    """Write clips as AMP, by the suffix: a single one as JSON text, any number as a pickle of plain lists."""
    if path.suffix.lower() in PICKLES:
        content = {clip.name: amp_dictionary(clip) for clip in clips}
        if len(content) != len(clips):
            raise MotionError(str(path), "names", "of clips repeat", "give every clip its own name")
        with atomic_write(path) as temporary:
            temporary.write_bytes(pickle.dumps(content, protocol=4))
        return
    content = amp_dictionary(clips[0])
    frames = ",\n".join(json.dumps([float(f"{value:.9g}") for value in frame]) for frame in content.pop("Frames"))
    header = json.dumps(content, indent=1)[:-2]
    with atomic_write(path) as temporary:
        temporary.write_text(f'{header},\n "Frames": [\n{frames}\n]\n}}\n', encoding="utf-8")
