"""Looks after demonstration folders: counts what is there, finds damage, mends it, and joins folders."""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.folder_claims import FolderClaims
from st_rl.storage.rollout_files.frame_store import complete
from st_rl.storage.rollout_files.frames import FrameFileError, Frames, read_complete_frames
from st_rl.storage.rollout_files.trajectory_pool import COLLECTOR
from st_rl.utils.files import write_json
from st_rl.utils.files.heartbeat import heartbeats, is_alive

DAMAGED_FOLDER = "damaged"


@dataclass
class TrajectoryState:
    """What a trajectory's folder holds."""

    folder: str
    num_files: int = 0
    num_frames: int = 0
    num_bytes: int = 0
    total_reward: float = 0.0
    is_finished: bool = False
    """Whether the last frame ends the episode."""
    damaged: dict[str, str] = field(default_factory=dict)
    """File -> what is wrong with it."""
    gaps: list[str] = field(default_factory=list)
    """Files before which frames are missing."""
    leftovers: list[str] = field(default_factory=list)
    """Files that a killed writer did not finish."""
    widths: dict[str, int] = field(default_factory=dict)
    """Field -> numbers in a frame."""


def inspect_trajectory(folder: str, metadata: Mapping[str, Any]) -> TrajectoryState:
    """Read every file of a trajectory."""
    state, expected = TrajectoryState(folder), 0
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        state.leftovers = [os.path.join(folder, n) for n in names if n.startswith(layout.TEMPORARY_PREFIX)]
    for name in layout.frame_files(folder):
        path = os.path.join(folder, name)
        try:
            frames = complete(read_complete_frames(path, metadata))
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


def saver_folders(root: str) -> list[str]:
    """The folders under `root` into which savers wrote, each with trajectories or metadata of its own."""
    found: dict[str, None] = {}
    for entry in layout.walk(root):
        if entry.is_dir() or entry.name == layout.METADATA_FILE:
            found[os.path.dirname(entry.path)] = None
    return list(found)


def inspect_folder(folder: str) -> Iterator[TrajectoryState]:
    """The state of every trajectory of one saver, in natural order."""
    metadata = layout.read_metadata(folder) or {}
    for trajectory in layout.own_trajectories(folder):
        yield inspect_trajectory(trajectory, metadata)


def totals(states: Iterable[TrajectoryState]) -> tuple[int, int]:
    """Frames and finished trajectories."""
    states = list(states)
    return sum(state.num_frames for state in states), sum(state.is_finished for state in states)


def noted_totals(folder: str) -> tuple[int, int] | None:
    """Frames and finished trajectories by `metadata.json`; None where it does not say."""
    metadata = layout.read_metadata(folder) or {}
    steps, finished = metadata.get("total_timesteps"), metadata.get("total_trajectories")
    return (steps, finished) if isinstance(steps, int) and isinstance(finished, int) else None


def update_totals(folder: str, states: Sequence[TrajectoryState]) -> tuple[int, int] | None:
    """Make `metadata.json` say what was counted; returns what it said before, if that was something else."""
    before, counted = noted_totals(folder), totals(states)
    if before == counted:
        return None
    metadata = layout.read_metadata(folder) or {}
    metadata |= {"total_timesteps": counted[0], "total_trajectories": counted[1]}
    write_json(os.path.join(folder, layout.METADATA_FILE), metadata)
    return before or (0, 0)


def living_writers(folder: str) -> list[str]:
    """Names of the collectors that are writing into a folder now."""
    return [path.name for path in heartbeats(folder, COLLECTOR) if is_alive(path)]


def repair_trajectory(folder: str, state: TrajectoryState) -> list[str]:
    """Mend a trajectory; returns what was done, line by line.

    Damaged files move to the folder `damaged`; what follows a gap becomes a trajectory of its own; leftovers and empty
    folders go. The file `done` is left to `mark_finished`.
    """
    done = []
    for path, reason in state.damaged.items():
        # Not in a folder of a trajectory's name, where readers would look again.
        target = os.path.join(folder, DAMAGED_FOLDER, f"{os.path.basename(state.folder)}_{os.path.basename(path)}")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(path, target)
        done.append(f"moved {path} to {target}: {reason}")
    for path in state.leftovers:
        os.unlink(path)
        done.append(f"removed {path}, which was never finished")
    pieces = _pieces(layout.frame_files(state.folder))
    _renumber(state.folder, state.folder, pieces[0] if pieces else [])
    for piece in pieces[1:]:
        target = layout.trajectory_folder(folder, FolderClaims(folder).claim_next())
        _renumber(state.folder, target, piece)
        done.append(f"made the {len(piece)} files of {state.folder} after a gap a trajectory of their own, {target}")
    if not pieces:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(state.folder, layout.DONE_FILE))
        # Only an empty folder goes: what somebody put there stays.
        with contextlib.suppress(OSError):
            os.rmdir(state.folder)
            done.append(f"removed {state.folder}, which holds no frames")
    return done


def _pieces(names: Sequence[str]) -> list[list[str]]:
    """Files in order, cut where frames are missing."""
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
    """Move files, so that their first frame is number 0."""
    offset = layout.frame_range(names[0])[0] if names else 0
    for name in names:
        start, stop = layout.frame_range(name)
        new = layout.frame_file_name(start - offset, stop - offset, name.rsplit(".", 1)[-1])
        os.replace(os.path.join(source, name), os.path.join(target, new))


def mark_finished(state: TrajectoryState) -> str | None:
    """Make the file `done` agree with the last frame; what was done in words, None where it agreed."""
    if state.is_finished == layout.is_finished(state.folder):
        return None
    mark = os.path.join(state.folder, layout.DONE_FILE)
    if state.is_finished:
        with open(mark, "wb"):
            return f"marked {state.folder} as finished"
    os.unlink(mark)
    return f"marked {state.folder} as not finished: its last frame goes on"


def remove_leftovers(folder: str) -> int:
    """Remove what killed collectors left beside the trajectories, signs of life and unfinished files; how many."""
    left = [path for path in heartbeats(folder, COLLECTOR) if not is_alive(path)]
    left += Path(folder).glob(f"{layout.TEMPORARY_PREFIX}*")
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def read_pieces(folder: str, metadata: Mapping[str, Any]) -> Iterator[Frames]:
    """The trajectory without damaged files, as one dictionary of arrays `(n, width)` for each piece without a gap."""
    piece: list[Frames] = []
    expected = None
    for name in layout.frame_files(folder):
        try:
            frames = complete(read_complete_frames(os.path.join(folder, name), metadata))
        except (FrameFileError, OSError):
            continue
        start, stop = layout.frame_range(name)
        if piece and start != expected:
            yield _joined(piece)
            piece = []
        piece.append(frames)
        expected = stop
    if piece:
        yield _joined(piece)


def _joined(piece: Sequence[Frames]) -> Frames:
    return {name: np.concatenate([frames[name] for frames in piece]) for name in piece[0]}


def merge_trajectory(source: str, claims: FolderClaims) -> None:
    """Copy a trajectory into the folder of these claims under an index of its own; every file appears complete."""
    folder = layout.trajectory_folder(claims.save_dir, claims.claim_next())
    for name in layout.frame_files(source):
        path = os.path.join(source, name)
        temporary = os.path.join(folder, f"{layout.TEMPORARY_PREFIX}{os.getpid()}-{name}")
        shutil.copyfile(path, temporary)
        os.replace(temporary, os.path.join(folder, name))
    if layout.is_finished(source):
        with open(os.path.join(folder, layout.DONE_FILE), "wb"):
            pass
