"""Finds clips by name: files, folders, and the built-in reference motions."""

from collections.abc import Callable, Sequence
from pathlib import Path

from st_rl.datasets.clip import MotionClip, MotionError, log_notes
from st_rl.datasets.formats import SUFFIXES, read_motion
from st_rl.utils.log import logger

CLIPS = Path(__file__).parent / "clips"
"""Folder of the built-in clips, written by `st-rl motion make`; a subfolder holds the clips of the humanoid."""


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


def load_clips(
    names: str | Path | Sequence[str | Path],
    robot_joints: Sequence[str] | None = None,
    prepare: Callable[[MotionClip], MotionClip] | None = None,
) -> list[MotionClip]:
    """The clips of one or several names; notes of the reader are logged.

    `robot_joints` names the joints of files without names, in the order of the robot. `prepare` changes each clip, and
    raises a MotionError for an unsuitable one. A bad file of a folder is skipped, as by `read_each`.
    """

    def read(path: Path) -> list[MotionClip]:
        clips = read_motion(path, robot_joints=robot_joints)
        return clips if prepare is None else [prepare(clip) for clip in clips]

    clips = read_each([names] if isinstance(names, str | Path) else names, read)
    if not clips:
        raise ValueError("no motion given: name at least one file or clip")
    log_notes(clips)
    return clips


def read_each(names: Sequence[str | Path], read: Callable[[Path], list[MotionClip]]) -> list[MotionClip]:
    """The clips that `read` finds in the files of all names.

    A bad file of a folder is skipped with a warning, unless all are bad; one that is named itself is a MotionError.
    """
    clips, failed = [], None
    for name in names:
        for path in motion_paths(name):
            try:
                clips += read(path)
            except MotionError as error:
                if not Path(name).expanduser().is_dir():
                    raise
                failed = error
                logger.warning(f"skipped {error}")
    if failed is not None and not clips:
        raise failed
    return clips
