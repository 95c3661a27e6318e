"""Reads and writes motion files of all formats as `st_rl.datasets.clip.MotionClip`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from st_rl.datasets.clip import MotionClip, MotionError, name_motion
from st_rl.datasets.formats.amp import read_amp, write_amp
from st_rl.datasets.formats.lfs_pointer import reject_lfs_pointer
from st_rl.datasets.formats.npz import read_npz, write_isaaclab, write_mjlab
from st_rl.datasets.formats.pickles import PICKLES, load_pickle
from st_rl.datasets.formats.quaternion_order import ORDERS, QuatOrder
from st_rl.datasets.formats.retargeted import is_retargeted, read_csv, read_gmr, write_csv, write_gmr

__all__ = ["FORMATS", "SUFFIXES", "read_motion", "write_motion"]

FORMATS: dict[str, tuple[Callable[[Path, Sequence[MotionClip]], None], tuple[str, ...]]] = {
    "amp": (write_amp, (".json", ".txt", ".pkl")),
    "isaaclab": (write_isaaclab, (".npz",)),
    "mjlab": (write_mjlab, (".npz",)),
    "gmr": (write_gmr, (".pkl",)),
    "csv": (write_csv, (".csv",)),
}
"""Writer and suffixes of each format; the first format of a suffix is its default."""
SUFFIXES = (".json", ".txt", ".npz", ".csv", *PICKLES)
"""Suffixes that `read_motion` reads."""


def read_motion(
    path: str | Path,
    *,
    joint_names: Sequence[str] | None = None,
    robot_joints: Sequence[str] | None = None,
    body_names: Sequence[str] | None = None,
    foot_names: Sequence[str] | None = None,
    fps: float | None = None,
    quat_order: QuatOrder | None = None,
) -> list[MotionClip]:
    """The clips of a file of any format; most hold one.

    Args:
        path: The file; suffix and content determine the format.
        joint_names: Joints in the order of the file, for formats without names.
        robot_joints: Joints of the robot, for formats in its order (mjlab, csv, GMR), if `joint_names` is None; AMP
            files without Fields have their legs in the order FR, FL, RR, RL.
        body_names: Links in the order of the file, for formats without names.
        foot_names: Feet in the order of the file, for AMP files without Fields.
        fps: Frames per second; overrides the rate in the file.
        quat_order: Order of the quaternions in npz, csv and GMR files; None takes the order in the header, else
            the one in which the root stands upright, else the default of the format.
    """
    if quat_order is not None and quat_order not in ORDERS:
        raise ValueError(f"quat_order is '{quat_order}'; use one of {', '.join(ORDERS)}")
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MotionError(str(path), "the suffix", f"is '{suffix}'", f"use one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise MotionError(str(path), "the file", "is not there", "give the path of a motion file")
    reject_lfs_pointer(path)
    names = robot_joints if joint_names is None else joint_names
    with name_motion(path):
        if suffix == ".npz":
            return read_npz(path, names, body_names, fps, quat_order)
        if suffix == ".csv":
            return read_csv(path, names, fps, quat_order)
        content = load_pickle(path) if suffix in PICKLES else None
        if is_retargeted(content):
            return read_gmr(path, content, names, fps, quat_order)
        return read_amp(path, joint_names, foot_names, content, fps)


def write_motion(path: str | Path, clips: MotionClip | Sequence[MotionClip], format: str | None = None) -> None:
    """Write clips to a file, atomically; only AMP pickles hold more than one.

    `format` is one of `FORMATS`, by default the first with the suffix of the path.
    """
    path = Path(path)
    clips = [clips] if isinstance(clips, MotionClip) else list(clips)
    suffix = path.suffix.lower()
    name = format or next((name for name, (_, suffixes) in FORMATS.items() if suffix in suffixes), None)
    if name not in FORMATS or suffix not in FORMATS[name][1]:
        known = "; ".join(f"{name} {' '.join(suffixes)}" for name, (_, suffixes) in FORMATS.items())
        problem = f"'{suffix}' belongs to no format" if format is None else f"'{suffix}' does not go with '{format}'"
        raise MotionError(str(path), "the suffix", problem, f"use one of: {known}")
    if len(clips) != 1 and not (name == "amp" and suffix in PICKLES):
        raise MotionError(str(path), "the file", f"cannot hold {len(clips)} clips", "write each to a file of its own")
    FORMATS[name][0](path, clips)
