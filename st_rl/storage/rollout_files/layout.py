"""The layout of a demonstration folder: names of folders and files, and the frame range in a file name.

A folder holds `metadata.json` and for every trajectory a folder `trajectory_{index}` with files
`traj_{start:06d}_{stop:06d}.pickle`, and an empty file `done` once its episode is finished.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from st_rl.utils.files import FileError, StrPath, natural_order, read_json

METADATA_FILE = "metadata.json"
DONE_FILE = "done"
DONE_FILES_KEY = "done_files"
"""Key of the metadata: whether finished episodes are marked by a file `done`; default true."""
COLLECTOR = "collector"
"""Role of the processes that write trajectories, in the names of their heartbeat files."""
TRAJECTORY_PREFIX = "trajectory_"
FORMATS = ("pickle", "npz")
_FILE_NAME = re.compile(r"traj_(\d+)_(\d+)\.(pickle|pkl|npz)")
_FRAME_RANGE = re.compile(r"traj_(\d+)_(\d+)\.[^/]+")


def trajectory_folder(save_dir: StrPath, index: int) -> str:
    """The folder of a trajectory."""
    return os.path.join(save_dir, f"{TRAJECTORY_PREFIX}{index}")


def frame_file_name(start: int, stop: int, file_format: str) -> str:
    """The name of the file that holds the frames from `start` up to, not including, `stop`."""
    return f"traj_{start:06d}_{stop:06d}.{file_format}"


def frame_range(file_name: str) -> tuple[int, int]:
    """First frame and the frame after the last of a file `traj_{start}_{stop}.<any>`."""
    match = _FRAME_RANGE.fullmatch(os.path.basename(file_name))
    if match is None:
        raise ValueError(f"'{file_name}' is not named traj_<start>_<stop>.<format>")
    return int(match[1]), int(match[2])


def frame_files(folder: StrPath) -> list[str]:
    """Names of the frame files of a trajectory, in order; empty if the folder is gone."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(filter(_FILE_NAME.fullmatch, names), key=frame_range)


def is_finished(folder: StrPath) -> bool:
    """Whether the writer has marked the episode of a trajectory as finished."""
    return os.path.exists(os.path.join(folder, DONE_FILE))


def walk(root: StrPath, follow_links: bool = True) -> Iterator[os.DirEntry[str]]:
    """Yield every trajectory folder and every file outside of them under `root`, in natural order, top-down.

    Without `follow_links` only regular files and folders of its own: no links, named pipes and devices.
    """
    pending = [os.fspath(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as scan:
                entries = sorted(scan, key=lambda entry: natural_order(entry.name))
        except OSError:  # deleted since it was listed
            continue
        deeper = []
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=follow_links)
            if not (follow_links or is_folder or entry.is_file(follow_symlinks=False)):
                continue
            if not is_folder or entry.name.startswith(TRAJECTORY_PREFIX):
                yield entry
            else:
                deeper.append(entry.path)
        pending += reversed(deeper)


def trajectory_folders(root: StrPath, follow_links: bool = True) -> list[str]:
    """All trajectory folders under `root` in natural order, including empty ones."""
    return [entry.path for entry in walk(root, follow_links) if entry.is_dir()]


def own_trajectories(folder: StrPath, follow_links: bool = True) -> list[str]:
    """The trajectory folders directly in a folder, in natural order, including empty ones."""
    folder = os.fspath(folder)
    found = trajectory_folders(folder, follow_links)
    return [path for path in found if os.path.dirname(path) == folder.rstrip(os.sep)]


class MetadataError(ValueError):
    """A `metadata.json` that cannot be read."""


def read_metadata(folder: StrPath) -> dict[str, Any] | None:
    """Read `metadata.json` of a folder; None if it is missing, MetadataError if it is damaged."""
    try:
        content = read_json(Path(folder, METADATA_FILE))
    except FileNotFoundError:
        return None
    except FileError as error:
        raise MetadataError(f"it is damaged ({error.__cause__})") from error
    except OSError as error:
        raise MetadataError(f"it is damaged ({error})") from error
    if not isinstance(content, dict):
        raise MetadataError(f"it is damaged (it holds a {type(content).__name__}, not an object)")
    return content
