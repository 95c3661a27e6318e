"""Clips by name: files of the user's, folders of them, and the reference motions that come with the library."""

from collections.abc import Sequence
from pathlib import Path

from st_rl.datasets.clip import MotionClip, MotionError
from st_rl.datasets.formats import SUFFIXES, read_motion

CLIPS = Path(__file__).parent / "clips"
"""Where the library's own clips are, the humanoid's in a folder; `st-rl motion make` made them."""


def motion_paths(name: str | Path) -> list[Path]:
    """The files that a name stands for: a file, all of a folder, a clip of the library or all of a gait (`trot`)."""
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not found:
            raise MotionError(str(path), "the folder", "holds no motion files", f"use files {', '.join(SUFFIXES)}")
        return found
    own = {file.stem: file for file in sorted(CLIPS.rglob("*.npz"))}
    if str(name) in own:
        return [own[str(name)]]
    of_gait = [file for stem, file in own.items() if stem.rsplit("_", 1)[0] == str(name)]
    if not of_gait:
        gaits = sorted({stem.rsplit("_", 1)[0] for stem in own})
        raise MotionError(
            str(name),
            "the motion",
            "is neither a file nor a folder nor a clip of the library",
            f"give a path, or one of {', '.join(gaits)} (single clips: {', '.join(own)})",
        )
    return of_gait


def load_clips(names: str | Path | Sequence[str | Path], robot_joints: Sequence[str] | None = None) -> list[MotionClip]:
    """The clips of one or several names.

    `robot_joints` are for files whose joints are in the robot's order, without names.
    """
    names = [names] if isinstance(names, str | Path) else names
    paths = [path for name in names for path in motion_paths(name)]
    clips = [clip for path in paths for clip in read_motion(path, robot_joints=robot_joints)]
    if not clips:
        raise ValueError("no motions are named: give at least one file or clip")
    return clips
