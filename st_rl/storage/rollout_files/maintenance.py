"""Inspects, repairs and merges demonstration folders."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.folder_allocator import FolderAllocator
from st_rl.storage.rollout_files.frame_store import FIELDS, read_fields
from st_rl.storage.rollout_files.frames import FrameFileError, Frames
from st_rl.storage.rollout_files.metadata import Metadata, load_metadata
from st_rl.utils.files import TEMPORARY_PREFIX, atomic_write, files_with_prefix, remove_temporary_files, write_json
from st_rl.utils.files.heartbeat import dead_heartbeats, heartbeats, is_alive

DAMAGED_FOLDER = "damaged"


@dataclass
class TrajectoryState:
    """The content of a trajectory folder."""

    folder: str
    num_files: int = 0
    num_frames: int = 0
    num_bytes: int = 0
    total_reward: float = 0.0
    is_finished: bool = False
    """Whether the last frame ends the episode."""
    damaged: dict[str, str] = field(default_factory=dict)
    """File that cannot be read -> reason."""
    gaps: list[str] = field(default_factory=list)
    """Files that frames are missing before."""
    leftovers: list[str] = field(default_factory=list)
    """Temporary files of killed writers."""
    widths: dict[str, int] = field(default_factory=dict)
    """Field -> numbers in a frame."""


def inspect_trajectory(folder: str, metadata: Mapping[str, Any], refused: Collection[str] = ()) -> TrajectoryState:
    """Read every file of a trajectory but those in `refused`."""
    state, expected = TrajectoryState(folder), 0
    state.leftovers = [str(path) for path in _temporary_files(folder)]
    for name in layout.frame_files(folder):
        path = os.path.join(folder, name)
        if path in refused:
            continue
        try:
            frames = read_fields(path, metadata)
            state.num_bytes += os.path.getsize(path)
        except (FrameFileError, OSError) as error:
            state.damaged[path] = str(error)
            continue
        start, stop = layout.frame_range(name)
        if start != expected:
            state.gaps.append(path)
        expected = stop
        state.num_files += 1
        state.num_frames += stop - start
        state.total_reward += float(frames["rewards"].sum())
        state.is_finished = bool(frames["dones"][-1, 0])
        state.widths = state.widths or {key: array.shape[1] for key, array in frames.items()}
    return state


def saver_folders(root: str, follow_links: bool = True) -> list[str]:
    """The folders under `root` that contain trajectories or metadata directly."""
    found: dict[str, None] = {}
    for entry in layout.walk(root, follow_links):
        if entry.is_dir() or entry.name == layout.METADATA_FILE:
            found[os.path.dirname(entry.path)] = None
    return list(found)


def inspect_folder(folder: str) -> Iterator[TrajectoryState]:
    """Inspect every trajectory directly in a folder, in natural order."""
    metadata = load_metadata(folder).content
    for trajectory in layout.own_trajectories(folder):
        yield inspect_trajectory(trajectory, metadata)


def totals(states: Iterable[TrajectoryState]) -> tuple[int, int]:
    """Frames and finished trajectories."""
    states = list(states)
    return sum(state.num_frames for state in states), sum(state.is_finished for state in states)


def recover_folder(folder: str, metadata: Mapping[str, Any], mark_finished: bool) -> tuple[int, int]:
    """Remove temporary files of killed writers and count frames, by file names, and finished trajectories.

    Only the last file of trajectories without the file `done` is read; `mark_finished` writes that file where it is
    missing because the writer was killed.
    """
    num_frames = num_finished = 0
    remove_temporary_files(folder)
    for trajectory in layout.own_trajectories(folder):
        remove_temporary_files(trajectory)
        names = layout.frame_files(trajectory)
        if not names:
            continue
        num_frames += sum(stop - start for start, stop in map(layout.frame_range, names))
        is_finished = layout.is_finished(trajectory)
        if not is_finished:
            with contextlib.suppress(FrameFileError, OSError):
                is_finished = bool(read_fields(os.path.join(trajectory, names[-1]), metadata)["dones"][-1, 0])
            if is_finished and mark_finished:
                Path(trajectory, layout.DONE_FILE).touch()
        num_finished += is_finished
    return num_frames, num_finished


def recorded_totals(metadata: Mapping[str, Any]) -> tuple[int, int] | None:
    """Frames and finished trajectories according to the metadata; None if it lacks them."""
    steps, finished = metadata.get("total_timesteps"), metadata.get("total_trajectories")
    return (steps, finished) if isinstance(steps, int) and isinstance(finished, int) else None


def update_totals(
    folder: str, states: Sequence[TrajectoryState], metadata: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Write the metadata with the counted totals; returns the previous ones if they differ, else None."""
    before, counted = recorded_totals(metadata), totals(states)
    if before == counted:
        return None
    write_metadata(folder, metadata, states)
    return before or (0, 0)


def rebuild_metadata(folder: str, states: Sequence[TrajectoryState], metadata: Metadata) -> str:
    """Replace a damaged `metadata.json` by one rebuilt from the trajectories; returns a line about the change."""
    path = os.path.join(folder, layout.METADATA_FILE)
    if os.path.exists(path):
        # Under another name, by which no reader takes it for metadata.
        os.replace(path, _free_path(folder, f"damaged_{layout.METADATA_FILE}"))
    write_metadata(folder, metadata.content, states)
    return f"rebuilt {path} from the trajectories: {metadata.problem}"


def write_metadata(folder: str, metadata: Mapping[str, Any], states: Sequence[TrajectoryState]) -> None:
    """Write `metadata.json` with the counted totals."""
    steps, finished = totals(states)
    content = {**metadata, "total_timesteps": steps, "total_trajectories": finished}
    write_json(os.path.join(folder, layout.METADATA_FILE), content)


def _free_path(folder: str, name: str) -> str:
    """A path in the folder `damaged` that no file has yet; the folder is created."""
    target = os.path.join(folder, DAMAGED_FOLDER)
    os.makedirs(target, exist_ok=True)
    names = itertools.chain([name], (f"{number}_{name}" for number in itertools.count(1)))
    return next(path for path in (os.path.join(target, name) for name in names) if not os.path.lexists(path))


def active_writers(folder: str, refused: Collection[str] = ()) -> list[str]:
    """Heartbeat names of the collectors that are writing to a folder now, without those in `refused`."""
    found = heartbeats(folder, layout.COLLECTOR)
    return [path.name for path in found if os.path.join(folder, path.name) not in refused and is_alive(path)]


def repair_trajectory(folder: str, state: TrajectoryState) -> list[str]:
    """Repair a trajectory; returns one line for every change.

    Unreadable files move to the folder `damaged`, the files after a gap become a trajectory of their own, temporary
    files and empty folders are removed. `mark_finished` updates the file `done`.
    """
    done = []
    for path, reason in state.damaged.items():
        # Not in a trajectory folder, where readers would find it again.
        target = _free_path(folder, f"{os.path.basename(state.folder)}_{os.path.basename(path)}")
        os.replace(path, target)
        done.append(f"moved {path} to {target}: {reason}")
    for path in state.leftovers:
        os.unlink(path)
        done.append(f"removed the temporary file {path}")
    pieces = _pieces(layout.frame_files(state.folder))
    _renumber(state.folder, state.folder, pieces[0] if pieces else [])
    for piece in pieces[1:]:
        target = layout.trajectory_folder(folder, FolderAllocator(folder).allocate_next())
        _renumber(state.folder, target, piece)
        done.append(f"moved the {len(piece)} files of {state.folder} after a gap to {target}")
    if not pieces:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(state.folder, layout.DONE_FILE))
        # rmdir removes empty folders only: files of others are kept.
        with contextlib.suppress(OSError):
            os.rmdir(state.folder)
            done.append(f"removed {state.folder}, which holds no frames")
    return done


def _pieces(names: Sequence[str]) -> list[list[str]]:
    """Split ordered file names where frames are missing."""
    pieces: list[list[str]] = []
    expected = None
    for name in names:
        start, stop = layout.frame_range(name)
        if start != expected:
            pieces.append([])
        pieces[-1].append(name)
        expected = stop
    return pieces


def _renumber(source: str, target: str, names: Sequence[str]) -> None:
    """Move files and rename them so that their first frame is number 0."""
    offset = layout.frame_range(names[0])[0] if names else 0
    for name in names:
        start, stop = layout.frame_range(name)
        new = layout.frame_file_name(start - offset, stop - offset, name.rsplit(".", 1)[-1])
        os.replace(os.path.join(source, name), os.path.join(target, new))


def mark_finished(state: TrajectoryState, done_files: bool = True) -> str | None:
    """Make the file `done` agree with the last frame; returns a line about the change, None if it agreed.

    Without `done_files` there is none.
    """
    is_wanted = state.is_finished and done_files
    if is_wanted == layout.is_finished(state.folder):
        return None
    mark = Path(state.folder, layout.DONE_FILE)
    if is_wanted:
        mark.touch()
        return f"marked {state.folder} as finished"
    mark.unlink()
    if state.is_finished:
        return f"removed {mark}: the dataset has no such files"
    return f"marked {state.folder} as not finished: its last frame is not done"


def remove_leftovers(folder: str) -> int:
    """Remove heartbeats and temporary files of killed collectors; returns their number."""
    left = [*_temporary_files(folder), *dead_heartbeats(folder, layout.COLLECTOR)]
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def _temporary_files(folder: str) -> list[Path]:
    """Files of killed writers directly in a folder."""
    return [path for path in files_with_prefix(folder, TEMPORARY_PREFIX) if path.is_file()]


def read_pieces(folder: str, metadata: Mapping[str, Any]) -> Iterator[Frames]:
    """Read the readable files of a trajectory: one dictionary of arrays `(n, width)` for each run without a gap."""
    files: dict[str, Frames] = {}
    for name in layout.frame_files(folder):
        with contextlib.suppress(FrameFileError, OSError):
            files[name] = read_fields(os.path.join(folder, name), metadata)
    for piece in _pieces(list(files)):
        yield {key: np.concatenate([files[name][key] for name in piece]) for key in FIELDS}


def merge_trajectory(source: str, target: FolderAllocator) -> None:
    """Copy a trajectory into the directory of `target` under a new index, without the file `done`.

    Files are copied atomically.
    """
    folder = layout.trajectory_folder(target.save_dir, target.allocate_next())
    for name in layout.frame_files(source):
        with atomic_write(os.path.join(folder, name), durable=False) as temporary:
            shutil.copyfile(os.path.join(source, name), temporary)
