"""The file that each environment is reading, side by side on one device."""

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


def complete(frames: Frames) -> Frames:
    """The fields of transitions among the arrays of a file, `(n, width)`, with what it may leave out."""
    missing = [name for name in ("observations", "actions", "rewards", "dones") if name not in frames]
    if missing:
        raise FrameFileError(f"it has no {', '.join(missing)}")
    count = len(frames["actions"])
    stand_ins = {"privileged_observations": frames["observations"], "timeouts": np.zeros(count)}
    fields = {name: frames.get(name, stand_ins.get(name)) for name in FIELDS}
    complete_fields = {name: np.asarray(array).reshape(count, -1) for name, array in fields.items()}
    for name in ("rewards", *FLAGS):
        if complete_fields[name].shape[1] != 1:
            raise FrameFileError(f"its {name} are {complete_fields[name].shape[1]} numbers a frame, not one")
    return complete_fields


class LoadedFile(NamedTuple):
    """The frames of a file: the fields of transitions packed `(n, F)`, and all other arrays; and which file it was."""

    packed: np.ndarray
    others: Frames
    identity: tuple[int, int] | None


def file_identity(path: str) -> tuple[int, int] | None:
    """What tells a file from another one under the same name; None for one that is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class FrameStore:
    """Keeps one file of frames for each of N environments, so that one gather reads a frame of every one.

    All fields of a frame lie beside each other in one tensor `(N, capacity, F)`, as long as the longest file so far.
    The first file decides how wide every field is.
    """

    def __init__(self, num_envs: int, device: torch.device | str):
        self.num_envs = num_envs
        self.device = device
        self.columns: dict[str, slice] = {}
        # Nothing on the device before there is something to keep.
        self._frames = torch.zeros(num_envs, 0, 0)

    def load(self, path: str, metadata: Mapping[str, Any], assemble: Callable[[Frames], Frames]) -> LoadedFile:
        """Read a file, its components by `assemble`; `FrameFileError` if it does not fit. Any thread may call it."""
        identity = file_identity(path)
        frames = read_complete_frames(path, metadata, assemble)
        others = {name: array for name, array in frames.items() if name not in FIELDS}
        return LoadedFile(self.pack(frames), others, identity)

    def pack(self, frames: Frames) -> np.ndarray:
        """The fields of a file as `(n, F)`; `FrameFileError` when they do not fit."""
        fields = complete(frames)
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

    def put(self, env: int, packed: np.ndarray) -> None:
        """Replace an environment's frames with a packed file."""
        if len(packed) > self._frames.shape[1]:
            self._grow(len(packed), packed.shape[1])
        self._frames[env, : len(packed)].copy_(torch.from_numpy(packed))

    def fields(self, env: int, count: int) -> dict[str, Tensor]:
        """The first `count` frames of an environment, fields `(count, ...)` on the device."""
        return self.unpack(self._frames[env, :count])

    def unpack(self, frames: Tensor) -> dict[str, Tensor]:
        """Fields of packed frames `(n, F)`: numbers and flags `(n,)`, the rest `(n, width)`."""
        fields = {name: frames[:, where] for name, where in self.columns.items()}
        fields["rewards"] = fields["rewards"][:, 0]
        return fields | {name: fields[name][:, 0] > 0 for name in FLAGS}

    def gather(self, envs: np.ndarray, frames: np.ndarray) -> dict[str, Tensor]:
        """One frame of each of some environments, fields `(n, ...)`, copied."""
        rows = torch.from_numpy(envs * self._frames.shape[1] + frames).to(self.device)
        return self.unpack(self._frames.flatten(0, 1).index_select(0, rows))

    def empty(self, name: str, leading: tuple[int, ...]) -> Tensor:
        """A tensor for a field with these leading sizes, its content left to chance."""
        where = self.columns[name]
        shape = leading if name in ("rewards", *FLAGS) else (*leading, where.stop - where.start)
        return torch.empty(shape, dtype=torch.bool if name in FLAGS else torch.float32, device=self.device)

    def _grow(self, capacity: int, width: int) -> None:
        """Make room for longer files and keep what is there; an ordinary tensor even in inference mode."""
        with torch.inference_mode(False):
            grown = torch.zeros(self.num_envs, capacity, width, device=self.device)
        grown[:, : self._frames.shape[1], : self._frames.shape[2]] = self._frames
        self._frames = grown


def as_tensors(arrays: Mapping[str, np.ndarray], device: torch.device | str) -> dict[str, Tensor]:
    """Arrays as tensors on a device."""
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
