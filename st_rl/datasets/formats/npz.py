"""`.npz` motion files of Isaac Lab's AMP tasks, of mjlab and whole-body tracking, and with MuJoCo's `qpos`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.datasets.checks import cosine_similarity
from st_rl.datasets.clip import (
    MotionClip,
    MotionError,
    make_clip,
    numbered_names,
    single_number,
    stored_frame_rate,
)
from st_rl.datasets.formats.quaternion_order import TO_WXYZ, QuatOrder, read_in_order
from st_rl.utils.files import atomic_write, load_arrays
from st_rl.utils.files.readers import check_columns, explain
from st_rl.utils.tensors import rotations

# Key of each quantity in the kinds of file.
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
QPOS_KEYS = MJLAB_KEYS | {"joint_pos": "qpos", "joint_vel": "qvel"}
KINDS = (ISAACLAB_KEYS, MJLAB_KEYS, QPOS_KEYS)
NAME_KEYS = ("dof_names", "joint_names")
ROOT = "root"
WORLD = "world"
# Position and quaternion of a root in front of joint positions, and its linear and angular velocity.
_ROOT_WIDTH, _ROOT_VEL_WIDTH = 7, 6


@dataclass
class _Arrays:
    """The arrays of a file by the names of `KINDS`, and its names, if it has any."""

    source: str
    values: dict[str, np.ndarray]
    joint_names: Sequence[str] | None
    body_names: Sequence[str] | None

    def drop_world(self) -> None:
        """Drop the bodies named `world`, or a first body that stays at the origin while others move."""
        pos, rot = self.values.get("pos"), self.values.get("rot")
        if pos is None or rot is None or pos.shape[1] < 2:
            return
        if self.body_names is not None:
            kept = [index for index, name in enumerate(self.body_names) if name.lower() != WORLD]
        else:
            is_world = not pos[:, 0].any() and bool((rot[:, 0] == rot[0, 0]).all()) and bool(pos[:, 1:].any())
            kept = list(range(int(is_world), pos.shape[1]))
        if not kept or len(kept) == pos.shape[1] or kept[-1] >= pos.shape[1]:
            return
        for name in _BODY_ARRAYS & self.values.keys():
            self.values[name] = self.values[name][:, kept]
        self.body_names = None if self.body_names is None else [self.body_names[index] for index in kept]

    def split_root(self, always: bool) -> None:
        """Take the root out of the joints if it is in front of them; it is the only body if there are none."""
        joint_pos, joint_vel, pos = self.values["joint_pos"], self.values.get("joint_vel"), self.values.get("pos")
        if not (always or self._has_root(joint_pos, pos)):
            return
        if joint_pos.shape[1] <= _ROOT_WIDTH:
            remedy = "store (frames, 7 + joints), the root in front"
            raise MotionError(self.source, "qpos", f"has shape {joint_pos.shape}", remedy)
        root, self.values["joint_pos"] = np.split(joint_pos, [_ROOT_WIDTH], axis=1)
        if joint_vel is not None and joint_vel.shape[1] == joint_pos.shape[1] - 1:
            root_vel, self.values["joint_vel"] = np.split(joint_vel, [_ROOT_VEL_WIDTH], axis=1)
            if pos is None:
                self.values |= {"lin_vel": root_vel[:, None, :3], "ang_vel": root_vel[:, None, 3:]}
        if pos is None:
            self.values |= {"pos": root[:, None, :3], "rot": root[:, None, 3:]}
            self.body_names = None

    def _has_root(self, joint_pos: np.ndarray, pos: np.ndarray | None) -> bool:
        """Whether the width says so or, without names, the first columns are the position of the first body."""
        if self.joint_names is not None:
            return joint_pos.shape[1] == len(self.joint_names) + _ROOT_WIDTH
        if pos is None or joint_pos.shape[1] <= _ROOT_WIDTH or len(joint_pos) != len(pos):
            return False
        return bool(np.allclose(joint_pos[:, :3], pos[:, 0], atol=1e-3))


_BODY_ARRAYS = {"pos", "rot", "lin_vel", "ang_vel"}


def read_npz(
    path: Path,
    joint_names: Sequence[str] | None = None,
    body_names: Sequence[str] | None = None,
    fps: float | None = None,
    quat_order: QuatOrder | None = None,
) -> list[MotionClip]:
    """The clip of a file of any kind; names in the file take precedence over those given.

    Joint positions may have the root in front, as `qpos` has. The first body that is not `world` is the root.
    """
    source = str(path)
    content = _load(path)
    arrays = _read_arrays(source, content, joint_names, body_names)
    values, num_frames = arrays.values, len(arrays.values["joint_pos"])
    names = numbered_names(arrays.joint_names, values["joint_pos"].shape[1], "joint")
    bodies = numbered_names(arrays.body_names, values["pos"].shape[1], "body")
    rate = stored_frame_rate(source, content, num_frames, fps)
    weight = single_number(source, "weight", content.get("weight", 1.0))
    pos, lin_vel, ang_vel = values["pos"], values.get("lin_vel"), values.get("ang_vel")
    feet = None
    if "foot_names" in content and "foot_positions" in content:
        feet = (_decode(content["foot_names"]), content["foot_positions"], content.get("foot_velocities"))

    def read(order: QuatOrder) -> MotionClip:
        rot = values["rot"][..., TO_WXYZ[order]]
        return make_clip(
            path.stem,
            rate,
            names,
            values["joint_pos"],
            pos[:, 0],
            rot[:, 0],
            joint_vel=values.get("joint_vel"),
            root_lin_vel=None if lin_vel is None else lin_vel[:, 0],
            root_ang_vel=None if ang_vel is None else ang_vel[:, 0],
            feet=feet,
            bodies=(bodies, pos, rot, lin_vel, ang_vel) if pos.shape[1] > 1 else None,
            weight=weight,
            source=source,
        )

    return [_with_world_ang_vel(read_in_order(read, "wxyz", quat_order))]


def _read_arrays(
    source: str,
    content: Mapping[str, np.ndarray],
    joint_names: Sequence[str] | None,
    body_names: Sequence[str] | None,
) -> _Arrays:
    """The arrays of a file without the body `world`, joints without the root; MotionError for missing ones."""
    keys = next((keys for keys in KINDS if keys["joint_pos"] in content), None)
    if keys is None:
        found = ", ".join(content) or "nothing"
        wanted = " or ".join(keys["joint_pos"] for keys in KINDS)
        raise MotionError(source, "joint positions", f"are missing (found: {found})", f"store them as {wanted}")
    _check_axes(source, content, keys)
    values = {name: content[key] for name, key in keys.items() if key in content}
    in_file = next((_decode(content[key]) for key in NAME_KEYS if key in content), None)
    bodies = _decode(content["body_names"]) if "body_names" in content else body_names
    arrays = _Arrays(source, values, joint_names if in_file is None else in_file, bodies)
    arrays.drop_world()
    arrays.split_root(always=keys is QPOS_KEYS)
    for name in ("pos", "rot"):
        if name not in values:
            raise MotionError(source, keys[name], "is missing", "the first body of it is the root, which is needed")
    return arrays


def _with_world_ang_vel(clip: MotionClip) -> MotionClip:
    """The clip with angular velocities in the world frame, if those of the file are in the frame of each body.

    They are compared with the finite differences of the rotations in both frames.
    """
    rot, stored = clip.root_rot, clip.root_ang_vel
    if clip.bodies is not None:
        rot, stored = clip.bodies.rot, clip.bodies.ang_vel
    if "root_ang_vel" in clip.estimated:
        return clip
    measured = rotations.angular_velocity(rot, 1.0 / clip.fps)
    in_world = cosine_similarity(stored, measured)
    in_body = cosine_similarity(stored, rotations.rotate_inverse(rot, measured))
    # Without a turn away from the world frame both agree, and nothing has to be changed.
    if in_world > 0.9 or in_body < 0.8 or 1.0 - in_body > 0.25 * (1.0 - in_world):
        return clip
    note = (
        f"angular velocities are in the frame of each body (correlation {in_body:.2f}, in the world frame "
        f"{in_world:.2f}); they are rotated to the world frame"
    )
    bodies = clip.bodies
    if bodies is not None:
        bodies = replace(bodies, ang_vel=rotations.rotate(bodies.rot, bodies.ang_vel))
    root_ang_vel = rotations.rotate(clip.root_rot, clip.root_ang_vel)
    return replace(clip, root_ang_vel=root_ang_vel, bodies=bodies, notes=(*clip.notes, note))


def _check_axes(source: str, content: Mapping[str, np.ndarray], keys: Mapping[str, str]) -> None:
    """MotionError for arrays without the axes of joints or bodies; `make_clip` checks their values."""
    for name, key in keys.items():
        array = content.get(key)
        of_joints = name in ("joint_pos", "joint_vel")
        if array is not None and (array.ndim != (2 if of_joints else 3) or 0 in array.shape):
            wanted = "(frames, joints)" if of_joints else f"(frames, bodies, {4 if name == 'rot' else 3}), root first"
            raise MotionError(source, key, f"has shape {array.shape}", f"store it as {wanted}")
        if array is not None:
            check_columns(array.shape[1], "joints" if of_joints else "bodies")


def _load(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, read without pickle."""
    try:
        return load_arrays(path)
    # The errors of a damaged archive have no common base class.
    except Exception as error:
        remedy = "store plain arrays of numbers and strings with np.savez"
        raise MotionError(str(path), "the file", f"cannot be read ({explain(error)})", remedy) from error


def _decode(names: np.ndarray) -> list[str]:
    """The strings of an array of text or bytes."""
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.reshape(-1)]


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
