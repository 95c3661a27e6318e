"""Output of retargeting tools: pickled dictionaries (GMR and similar) and CSV tables (LAFAN1)."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from st_rl.datasets.clip import (
    MotionClip,
    MotionError,
    frame_rate,
    make_clip,
    numbered_names,
    require_keys,
    stored_frame_rate,
)
from st_rl.datasets.formats.quaternion_order import ORDERS, TO_WXYZ, QuatOrder, read_in_order
from st_rl.utils.files import atomic_write
from st_rl.utils.files.readers import MAX_ELEMENTS, MAX_TEXT_BYTES, LimitError, check_columns, read_bytes
from st_rl.utils.log import logger
from st_rl.utils.tensors.rotations import WXYZ_TO_XYZW

LAFAN_FPS = 30.0
"""Default frames per second of a CSV table."""
_ROOT_COLUMNS = ("root_x", "root_y", "root_z", "root_qx", "root_qy", "root_qz", "root_qw")
_TIME = "time"


def is_retargeted(content: object) -> bool:
    """Whether the content of a pickle is a retargeted motion."""
    return isinstance(content, Mapping) and "dof_pos" in content


def read_gmr(
    path: Path,
    content: object,
    joint_names: Sequence[str] | None = None,
    fps: float | None = None,
    quat_order: QuatOrder | None = None,
) -> list[MotionClip]:
    """The clip of a pickle's content: `fps`, `root_pos`, `root_rot` (x, y, z, w), `dof_pos`; other keys are ignored."""
    source, keys = str(path), ("root_pos", "root_rot", "dof_pos")
    content = require_keys(source, content, keys, "store fps, root_pos, root_rot and dof_pos")
    joint_pos, rotation = _table(source, content, "dof_pos"), _table(source, content, "root_rot")
    if rotation.shape[1] != 4:
        raise MotionError(source, "root_rot", f"has shape {rotation.shape}", "rotations are (frames, 4): x, y, z, w")
    fps = stored_frame_rate(source, content, len(joint_pos), fps)
    return [_clip(path, fps, joint_names, joint_pos, content["root_pos"], rotation, quat_order)]


def _table(source: str, content: Mapping[Any, Any], key: str) -> np.ndarray:
    """An array `(F, W)` from a pickle; MotionError for anything else."""
    try:
        table = np.asarray(content[key], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MotionError(source, key, f"is not an array of numbers ({error})", "store (frames, width)") from error
    if table.ndim != 2:
        raise MotionError(source, key, f"has shape {table.shape}", "store (frames, width), two frames or more")
    return table


def _clip(
    path: Path,
    fps: float,
    joint_names: Sequence[str] | None,
    joint_pos: np.ndarray,
    root_pos: ArrayLike,
    rotation: np.ndarray,
    quat_order: QuatOrder | None,
) -> MotionClip:
    """A clip from positions and rotations, x, y, z, w by default, with estimated velocities."""
    names = numbered_names(joint_names, joint_pos.shape[1], "joint")

    def read(order: QuatOrder) -> MotionClip:
        return make_clip(path.stem, fps, names, joint_pos, root_pos, rotation[:, TO_WXYZ[order]], source=str(path))

    return read_in_order(read, "xyzw", quat_order)


def write_gmr(path: Path, clips: Sequence[MotionClip]) -> None:
    """Write a clip as a pickle of plain arrays."""
    clip = clips[0]
    content = {
        "fps": clip.fps,
        "root_pos": clip.root_pos,
        "root_rot": clip.root_rot[:, WXYZ_TO_XYZW],
        "dof_pos": clip.joint_pos,
    }
    with atomic_write(path) as temporary:
        temporary.write_bytes(pickle.dumps(content, protocol=4))


def read_csv(
    path: Path,
    joint_names: Sequence[str] | None = None,
    fps: float | None = None,
    quat_order: QuatOrder | None = None,
) -> list[MotionClip]:
    """The clip of a table: root x, y, z, quaternion x, y, z, w, then the joints.

    A header line names the columns: joints from the eighth on, and optionally `time` before all others. Its last
    letters of columns four to seven give the order of the quaternion, otherwise the posture of the root does.
    """
    source = str(path)
    try:
        # Spreadsheets write a byte order mark, which would make the first number a name.
        text = read_bytes(path, MAX_TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MotionError(source, "the text", f"is not UTF-8 ({error})", "write comma-separated numbers") from error
    lines = [line for line in text.splitlines() if line.strip()]
    check_table(lines)
    header = _header(lines[0]) if lines else None
    try:
        table = np.array([[float(cell) for cell in line.split(",")] for line in lines[header is not None :]])
    except ValueError as error:
        raise MotionError(
            source, "the table", f"is not numbers of one width ({error})", "write the same columns on every line"
        ) from error
    if header is not None and table.ndim == 2 and len(header) != table.shape[1]:
        raise MotionError(
            source, "the header", f"names {len(header)} columns of {table.shape[1]}", "name every column once"
        )
    if header is not None and header[0] == _TIME and table.ndim == 2:
        fps = fps if fps is not None else frame_rate(source, table[:, 0], len(table))
        table, header = table[:, 1:], header[1:]
    if table.ndim != 2 or table.shape[1] <= len(_ROOT_COLUMNS):
        raise MotionError(
            source, "the table", f"has shape {table.shape}", "it needs 7 columns of the root and one for each joint"
        )
    if joint_names is None and header is not None:
        joint_names = header[len(_ROOT_COLUMNS) :]
    if quat_order is None:
        letters = "".join(name[-1:].lower() for name in (header or ())[3:7])
        quat_order = next((order for order in ORDERS if order == letters), None)
    rate = LAFAN_FPS if fps is None else fps
    clip = _clip(path, rate, joint_names, table[:, 7:], table[:, :3], table[:, 3:7], quat_order)
    if fps is None:
        note = f"{LAFAN_FPS:g} frames per second are assumed: the file does not store the frame rate"
        clip = replace(clip, notes=(note, *clip.notes))
    return [clip]


def _header(line: str) -> list[str] | None:
    """The column names, if the line is a header."""
    cells = [cell.strip() for cell in line.split(",")]
    try:
        float(cells[0])
    except ValueError:
        return cells
    return None


def write_csv(path: Path, clips: Sequence[MotionClip]) -> None:
    """Write a clip as a table without names and frame rate."""
    clip = clips[0]
    if clip.fps != LAFAN_FPS:
        logger.warning(
            f"{path} does not store its frame rate of {clip.fps:g} frames per second: read it with fps={clip.fps:g}"
        )
    table = np.concatenate([clip.root_pos, clip.root_rot[:, WXYZ_TO_XYZW], clip.joint_pos], axis=1)
    with atomic_write(path) as temporary:
        temporary.write_text("".join(",".join(f"{value:.9g}" for value in row) + "\n" for row in table))


def check_table(lines: Sequence[str]) -> None:
    """LimitError for comma-separated text with too many columns or cells."""
    commas = [line.count(",") for line in lines]
    check_columns(max(commas, default=0) + 1)
    if sum(commas) + len(lines) > MAX_ELEMENTS:
        raise LimitError(f"it has more than {MAX_ELEMENTS:,} cells")
