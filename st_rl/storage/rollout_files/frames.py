"""Frame files: written atomically, read without running code from them."""

import contextlib
import io
import os
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from st_rl.storage.rollout_files.layout import frame_range
from st_rl.utils.data_compresser import get_decompressor
from st_rl.utils.files import StrPath, atomic_write, load_arrays, load_plain_pickle
from st_rl.utils.files.plain_pickle import ArrayType, PlainPickleError
from st_rl.utils.files.readers import read_bytes

Frames = dict[str, np.ndarray]
# The only globals in pickles of arrays; a pickle can modify none of them.
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_ARRAY_PARTS = {("numpy", "ndarray"): ArrayType, ("numpy", "dtype"): np.dtype} | {
    (module, "_reconstruct"): np.empty(0).__reduce__()[0] for module in _ARRAY_MODULES
}
# Bytes before the data in the instructions that hold arrays.
_BYTES_HEADER = {"SHORT_BINBYTES": 2, "BINBYTES": 5, "BINBYTES8": 9}
_MIN_ARRAY_BYTES = 16
_MAX_SKELETONS = 1024


class FrameFileError(RuntimeError):
    """A file that is not a complete frame file."""


def write_frames(path: StrPath, frames: Mapping[str, np.ndarray]) -> None:
    """Write arrays `(n, ...)` by name, atomically.

    The suffix selects the format: `.npz`, else pickle. The file is not flushed to disk: after a power failure it may be
    truncated, which readers detect.
    """
    as_npz = os.fspath(path).endswith(".npz")
    with atomic_write(path, durable=False) as temporary, open(temporary, "wb", buffering=-1 if as_npz else 0) as file:
        _write_content(file, frames, as_npz)


def _write_content(file: IO[bytes], frames: Mapping[str, np.ndarray], as_npz: bool) -> None:
    if as_npz:
        np.savez(file, **frames)  # pyright: ignore[reportArgumentType]
        return
    data = memoryview(pickle.dumps(dict(frames), protocol=4))
    while data:
        data = data[file.write(data) :]


def read_frames(path: StrPath) -> Frames:
    """Read the arrays `(n, ...)` of a file; `FrameFileError` if it is truncated, foreign or its name does not match.

    One-tuples around an array, as older savers write them, are unwrapped.
    """
    try:
        content = load_arrays(path) if os.fspath(path).endswith(".npz") else _read_pickle(path)
    # A corrupt archive or pickle may raise nearly anything.
    except Exception as error:
        raise FrameFileError(str(error) or type(error).__name__) from error
    if not isinstance(content, dict):
        raise FrameFileError(f"it holds a {type(content).__name__}, not a dictionary of arrays")
    frames: dict[str, Any] = {name: v[0] if isinstance(v, tuple) and len(v) == 1 else v for name, v in content.items()}
    frames = {name: np.asarray(v) if isinstance(v, ArrayType) else v for name, v in frames.items()}
    start, stop = frame_range(os.fspath(path))
    if stop <= start:
        raise FrameFileError("its name covers no frames")
    for name, array in frames.items():
        if not isinstance(name, str):
            raise FrameFileError("its arrays are not all named by text")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise FrameFileError(f"'{name}' is not an array of numbers")
        if array.shape[:1] != (stop - start,):
            raise FrameFileError(f"'{name}' has shape {array.shape}, but its name covers {stop - start} frames")
    return frames


def assemble_observations(frames: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the components `obs_{name}` of a file by `observations`: decompressed, in segment order; returns it."""
    kinds, parts = metadata.get("obs_disassemble_mapping") or {}, []
    for name in metadata.get("obs_segments") or {}:
        if f"obs_{name}" not in frames:
            raise FrameFileError(f"it has no obs_{name}, which metadata.json lists")
        part = frames.pop(f"obs_{name}")
        parts.append(get_decompressor(kinds[name])(part) if name in kinds else part)
    if parts:
        join = torch.cat if isinstance(parts[0], torch.Tensor) else np.concatenate
        frames["observations"] = join(parts, -1)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return frames


def read_complete_frames(
    path: StrPath, metadata: Mapping[str, Any], assemble: Callable[[Frames], Frames] | None = None
) -> Frames:
    """Read a file; if it stores components, assemble its observations, with `assemble` if given."""
    frames = read_frames(path)
    if "observations" in frames or metadata.get("obs_disassemble_mapping") is None:
        return frames
    return assemble_observations(frames, metadata) if assemble is None else assemble(frames)


class _ArrayUnpickler(pickle.Unpickler):
    """Fast unpickler for dictionaries of arrays; rejects everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the globals of array pickles, reject all others."""
        try:
            return _ARRAY_PARTS[module, name]
        except KeyError:
            raise PlainPickleError(f"it names {module}.{name}") from None


class _Skeleton(NamedTuple):
    """The instructions of a pickle: everything but the bytes of its arrays."""

    parts: list[slice]
    instructions: bytes

    def fits(self, data: bytes) -> bool:
        """Whether a pickle has the same instructions at the same places."""
        return b"".join([data[part] for part in self.parts]) == self.instructions


# Skeletons of pickles that the restricted unpickler has read, by their size. Files of a data set have few sizes.
_skeletons: dict[int, _Skeleton] = {}


def _read_pickle(path: StrPath) -> Any:
    """Read a pickle with the restricted unpickler, which checks every instruction, or fast if it knows them all.

    256 streams of 64 frames per file: 0.48 instead of 1.05 s of processor time for 262,144 transitions (2-core x86).
    """
    data = read_bytes(path)
    known = _skeletons.get(len(data))
    if known is not None and known.fits(data):
        return _ArrayUnpickler(io.BytesIO(data)).load()
    try:
        content = load_plain_pickle(io.BytesIO(data))
    except PlainPickleError as error:
        reason = error.__cause__
        if isinstance(reason, PlainPickleError):
            raise FrameFileError(f"refused, because {reason}; only arrays and plain containers are admitted") from None
        raise FrameFileError(f"not a complete pickle of arrays ({type(reason).__name__}: {reason})") from None
    # Older protocols, other writers and compressed files need the restricted unpickler each time.
    with contextlib.suppress(Exception):
        _ArrayUnpickler(io.BytesIO(data)).load()
        if len(_skeletons) >= _MAX_SKELETONS:
            _skeletons.clear()
        _skeletons[len(data)] = _find_skeleton(data)
    return content


def _find_skeleton(data: bytes) -> _Skeleton:
    parts, start = [], 0
    for instruction, argument, position in pickletools.genops(data):
        if instruction.name in _BYTES_HEADER and isinstance(argument, bytes) and len(argument) >= _MIN_ARRAY_BYTES:
            end = (position or 0) + _BYTES_HEADER[instruction.name]
            parts.append(slice(start, end))
            start = end + len(argument)
    parts.append(slice(start, len(data)))
    return _Skeleton(parts, b"".join([data[part] for part in parts]))
