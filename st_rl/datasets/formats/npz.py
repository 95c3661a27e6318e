"""`.npz` motion files of Isaac Lab's AMP tasks, and of mjlab and whole-body tracking."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.datasets.clip import MotionClip, MotionError, frame_rate, make_clip, single_number
from st_rl.utils.files import atomic_write

# Key of each quantity in the two kinds of file.
ISAACLAB_KEYS = {
    "joint_pos": "dof_positions",
    "joint_vel": "dof_velocities",
    "pos": "body_positions",
    "rot": "body_rotations",
    "lin_vel": "body_linear_velocities",
    "ang_vel": "body_angular_velocities",
}
MJLAB_KEYS = {
    "joint_pos": "joint_pos",
    "joint_vel": "joint_vel",
    "pos": "body_pos_w",
    "rot": "body_quat_w",
    "lin_vel": "body_lin_vel_w",
    "ang_vel": "body_ang_vel_w",
}
ROOT = "root"


def read_npz(
    path: Path,
    joint_names: Sequence[str] | None = None,
    body_names: Sequence[str] | None = None,
    fps: float | None = None,
) -> list[MotionClip]:
    """The clip of a file of either kind; names in the file take precedence over those given."""
    source = str(path)
    content = _load(path)
    keys = next((keys for keys in (ISAACLAB_KEYS, MJLAB_KEYS) if keys["joint_pos"] in content), None)
    if keys is None:
        found = ", ".join(content) or "nothing"
        wanted = " or ".join(keys["joint_pos"] for keys in (ISAACLAB_KEYS, MJLAB_KEYS))
        raise MotionError(source, "joint positions", f"are missing (found: {found})", f"store them as {wanted}")
    for name in ("pos", "rot"):
        if keys[name] not in content:
            raise MotionError(source, keys[name], "is missing", "the first body of it is the root, which is needed")
    _check_axes(source, content, keys)
    joint_pos, pos, rot = content[keys["joint_pos"]], content[keys["pos"]], content[keys["rot"]]
    lin_vel, ang_vel = content.get(keys["lin_vel"]), content.get(keys["ang_vel"])
    names = _names(content, "dof_names", joint_names, joint_pos.shape[1], "joint")
    bodies = _names(content, "body_names", body_names, pos.shape[1], "body")
    feet = None
    if "foot_names" in content and "foot_positions" in content:
        foot_names = [str(name) for name in content["foot_names"].reshape(-1)]
        feet = (foot_names, content["foot_positions"], content.get("foot_velocities"))
    clip = make_clip(
        path.stem,
        _rate(source, content, len(joint_pos), fps),
        names,
        joint_pos,
        pos[:, 0],
        rot[:, 0],
        joint_vel=content.get(keys["joint_vel"]),
        root_lin_vel=None if lin_vel is None else lin_vel[:, 0],
        root_ang_vel=None if ang_vel is None else ang_vel[:, 0],
        feet=feet,
        bodies=(bodies, pos, rot, lin_vel, ang_vel) if pos.shape[1] > 1 else None,
        weight=single_number(source, "weight", content.get("weight", 1.0)),
        source=source,
    )
    return [clip]


def _check_axes(source: str, content: Mapping[str, np.ndarray], keys: Mapping[str, str]) -> None:
    """MotionError for arrays without the axes of joints or bodies; `make_clip` checks their values."""
    for name, key in keys.items():
        array = content.get(key)
        of_joints = name in ("joint_pos", "joint_vel")
        if array is not None and (array.ndim != (2 if of_joints else 3) or 0 in array.shape):
            wanted = "(frames, joints)" if of_joints else f"(frames, bodies, {4 if name == 'rot' else 3}), root first"
            raise MotionError(source, key, f"has shape {array.shape}", f"store it as {wanted}")


def _load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, read without pickle."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it is a single array, a .npy")
        with content as file:
            return {name: file[name] for name in file.files}
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise MotionError(
            str(path),
            "the file",
            f"cannot be read ({error})",
            "store plain arrays of numbers and strings with np.savez",
        ) from error


def _names(
    content: Mapping[str, np.ndarray], key: str, given: Sequence[str] | None, count: int, kind: str
) -> list[str]:
    """Names in the file, else those given, else numbered ones."""
    if key in content:
        return [str(name) for name in content[key].reshape(-1)]
    return list(given) if given is not None else [f"{kind}_{number}" for number in range(count)]


def _rate(source: str, content: Mapping[str, np.ndarray], num_frames: int, fps: float | None) -> float:
    """Frames per second: as given, from the time stamps, or from `fps` in the file."""
    if fps is not None:
        return fps
    if "time" in content:
        return frame_rate(source, content["time"], num_frames)
    if "fps" not in content:
        raise MotionError(source, "fps", "is missing", "say how many frames per second it has with fps")
    return single_number(source, "fps", content["fps"])


def write_isaaclab(path: Path, clips: Sequence[MotionClip]) -> None:
    """Write a clip for Isaac Lab's AMP tasks; feet go into extra keys, which these ignore."""
    clip = clips[0]
    names = clip.bodies.names if clip.bodies is not None else (ROOT,)
    content = _content(clip, ISAACLAB_KEYS)
    content |= {"fps": np.array(clip.fps), "dof_names": np.array(clip.joint_names), "body_names": np.array(names)}
    _save(path, content)


def write_mjlab(path: Path, clips: Sequence[MotionClip]) -> None:
    """Write a clip for mjlab's tracking task, without names of joints and bodies."""
    clip = clips[0]
    _save(path, _content(clip, MJLAB_KEYS) | {"fps": np.array([clip.fps])})


def _content(clip: MotionClip, keys: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays of a clip with the keys of one kind of file."""
    bodies = clip.bodies
    root = {"pos": clip.root_pos, "rot": clip.root_rot, "lin_vel": clip.root_lin_vel, "ang_vel": clip.root_ang_vel}
    values: dict[str, Any] = {"joint_pos": clip.joint_pos, "joint_vel": clip.joint_vel}
    values |= {name: value[:, None] if bodies is None else vars(bodies)[name] for name, value in root.items()}
    content = {keys[name]: value.astype(np.float32) for name, value in values.items()}
    if clip.feet is not None:
        content |= {"foot_names": np.array(clip.feet.names), "foot_positions": clip.feet.pos.astype(np.float32)}
        content["foot_velocities"] = clip.feet.vel.astype(np.float32)
    if clip.weight != 1.0:
        content["weight"] = np.array(clip.weight)
    return content


def _save(path: Path, content: dict[str, np.ndarray]) -> None:
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **content)  # pyright: ignore[reportArgumentType]
