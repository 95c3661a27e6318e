"""Finds clips by name: files, folders, and the built-in reference motions."""

from collections.abc import Sequence
from pathlib import Path

from st_rl.datasets.clip import MotionClip, MotionError, log_notes
from st_rl.datasets.formats import SUFFIXES, read_motion

CLIPS = Path(__file__).parent / "clips"
"""Folder of the built-in clips, written by `st-rl motion make`; those of the humanoid are in a subfolder."""


def motion_paths(name: str | Path) -> list[Path]:
    """The files of a name: a file, a folder of files, a built-in clip (`trot_0.5`), or all clips of a gait (`trot`)."""
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        if not found:
            raise MotionError(str(path), "the folder", "holds no motion files", f"use files {', '.join(SUFFIXES)}")
        return found
    built_in = {file.stem: file for file in sorted(CLIPS.rglob("*.npz"))}
    if str(name) in built_in:
        return [built_in[str(name)]]
    of_gait = [file for stem, file in built_in.items() if stem.rsplit("_", 1)[0] == str(name)]
    if not of_gait:
        gaits = sorted({stem.rsplit("_", 1)[0] for stem in built_in})
        raise MotionError(
            str(name),
            "the motion",
            "is neither a file nor a folder nor a built-in clip",
            f"give a path, or one of {', '.join(gaits)} (single clips: {', '.join(built_in)})",
        )
    return of_gait


def load_clips(names: str | Path | Sequence[str | Path], robot_joints: Sequence[str] | None = None) -> list[MotionClip]:
    """The clips of one or several names; notes of the reader are logged.

    `robot_joints` names the joints of files without names, in the order of the robot.
    """
    names = [names] if isinstance(names, str | Path) else names
    paths = [path for name in names for path in motion_paths(name)]
    clips = [clip for path in paths for clip in read_motion(path, robot_joints=robot_joints)]
    if not clips:
        raise ValueError("no motion given: name at least one file or clip")
    log_notes(clips)
    return clips
