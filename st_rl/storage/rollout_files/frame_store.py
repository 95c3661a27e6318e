"""The current frame file of every environment, on one device."""

import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.storage.rollout_files.frames import FrameFileError, Frames, read_complete_frames

FLAGS = ("dones", "timeouts")
FIELDS = ("observations", "privileged_observations", "actions", "rewards", *FLAGS)
# Motion features of the policy and of the reference; a file has both or none.
MOTION_FIELDS = ("ref_obs", "ref_motion")


def complete_fields(frames: Frames) -> Frames:
    """The transition fields of a file, `(n, width)`, with defaults for optional ones."""
    missing = [name for name in ("observations", "actions", "rewards", "dones") if name not in frames]
    if missing:
        raise FrameFileError(f"it has no {', '.join(missing)}")
    count = len(frames["actions"])
    defaults = {"privileged_observations": frames["observations"], "timeouts": np.zeros(count)}
    fields = {name: frames.get(name, defaults.get(name)) for name in FIELDS}
    complete = {name: np.asarray(array).reshape(count, -1) for name, array in fields.items()}
    for name in ("rewards", *FLAGS):
        if complete[name].shape[1] != 1:
            raise FrameFileError(f"its {name} are {complete[name].shape[1]} numbers a frame, not one")
    return complete


def read_fields(path: str, metadata: Mapping[str, Any]) -> Frames:
    """The transition fields of a file, `(n, width)`; `FrameFileError` if it is damaged or lacks one."""
    return complete_fields(read_complete_frames(path, metadata))


class LoadedFile(NamedTuple):
    """The frames of a file: transition fields packed `(n, F)`, all other arrays, and the identity of the file."""

    packed: np.ndarray
    others: Frames
    identity: tuple[int, int] | None


def file_identity(path: str) -> tuple[int, int] | None:
    """Inode and modification time, which identify a file under its name; None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class FrameStore:
    """Stores one file of frames for each of N environments, so that one gather reads a frame of each.

    All fields are packed in one tensor `(N, capacity, F)`, where the capacity is the length of the longest file so far.
    The first file defines the width of every field and, if `motion_features` is None, whether motion features belong to
    the fields. With True they must be in every file.
    """

    def __init__(self, num_envs: int, device: torch.device | str, motion_features: bool | None = None):
        self.num_envs = num_envs
        self.device = device
        self.motion_features = motion_features
        self.columns: dict[str, slice] = {}
        # Allocated on the device with the first file.
        self.frames = torch.zeros(num_envs, 0, 0)

    def load(self, path: str, metadata: Mapping[str, Any], assemble: Callable[[Frames], Frames]) -> LoadedFile:
        """Read a file, assembling its components with `assemble`; `FrameFileError` if it does not fit. Thread-safe.

        ValueError if it has no motion features and they are required.
        """
        identity = file_identity(path)
        frames = read_complete_frames(path, metadata, assemble)
        if self.motion_features and not frames.keys() >= set(MOTION_FIELDS):
            raise ValueError(
                f"{path} has no motion features ({' and '.join(MOTION_FIELDS)}): collect in an environment that "
                "delivers infos['observations']['ref_obs'] and infos['ref_motion'], or use an algorithm without a "
                "motion prior, such as TPPO"
            )
        packed = self.pack(frames)
        return LoadedFile(packed, {name: array for name, array in frames.items() if name not in self.columns}, identity)

    def pack(self, frames: Frames) -> np.ndarray:
        """Pack the fields of a file as `(n, F)`; `FrameFileError` if their widths differ from those of other files."""
        fields = complete_fields(frames) | self._motion_fields(frames)
        widths = [array.shape[1] for array in fields.values()]
        stops = list(itertools.accumulate(widths))
        columns = {name: slice(stop - width, stop) for name, width, stop in zip(fields, widths, stops)}
        if not self.columns:
            self.columns = columns
        for name, where in columns.items():
            expected = self.columns[name].stop - self.columns[name].start
            if where.stop - where.start != expected:
                raise FrameFileError(f"its {name} are {where.stop - where.start} wide, those of others {expected}")
        return np.concatenate(list(fields.values()), axis=1, dtype=np.float32, casting="same_kind")

    def _motion_fields(self, frames: Frames) -> Frames:
        """The motion features of a file, `(n, width)`, if they belong to the fields."""
        is_complete = frames.keys() >= set(MOTION_FIELDS)
        is_wanted = self.motion_features
        if is_wanted is None:
            is_wanted = MOTION_FIELDS[0] in self.columns if self.columns else is_complete
        if not is_wanted:
            return {}
        if not is_complete:
            raise FrameFileError(f"it has no {' and '.join(MOTION_FIELDS)}, which other files have")
        return {name: frames[name].reshape(len(frames[name]), -1) for name in MOTION_FIELDS}

    def put(self, env: int, packed: np.ndarray) -> None:
        """Replace an environment's frames with a packed file."""
        count, capacity = len(packed), self.frames.shape[1]
        if count > capacity:
            # Not an inference tensor, even when a rollout in inference mode reads the file.
            with torch.inference_mode(False):
                grown = torch.zeros(self.num_envs, count, packed.shape[1], device=self.device)
            if capacity:
                grown[:, :capacity] = self.frames
            self.frames = grown
        self.frames[env, :count].copy_(torch.from_numpy(packed))

    def unpack(self, frames: Tensor) -> dict[str, Tensor]:
        """Unpack frames `(n, F)`: rewards and flags `(n,)`, other fields `(n, width)`."""
        fields = {name: frames[:, where] for name, where in self.columns.items()}
        fields["rewards"] = fields["rewards"][:, 0]
        return fields | {name: fields[name][:, 0] > 0 for name in FLAGS}

    def gather(self, envs: np.ndarray, frames: np.ndarray) -> dict[str, Tensor]:
        """Copy one frame of each of the given environments, fields `(n, ...)`."""
        rows = torch.from_numpy(envs * self.frames.shape[1] + frames).to(self.device)
        return self.unpack(self.frames.flatten(0, 1).index_select(0, rows))

    def empty(self, name: str, leading: tuple[int, ...]) -> Tensor:
        """Allocate an uninitialized tensor for a field with these leading sizes."""
        where = self.columns[name]
        shape = leading if name in ("rewards", *FLAGS) else (*leading, where.stop - where.start)
        return torch.empty(shape, dtype=torch.bool if name in FLAGS else torch.float32, device=self.device)
