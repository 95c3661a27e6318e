"""Files that other processes only ever see complete."""

import contextlib
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from st_rl.utils.files.process_id import ProcessId

if TYPE_CHECKING:
    import torch

StrPath = str | os.PathLike[str]
TEMPORARY_PREFIX = ".tmp-"
# A temporary file of a writer on another machine is left over when unchanged for this long.
LEFT_OVER_AFTER_S = 3600.0


@contextlib.contextmanager
def atomic_write(path: StrPath, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the same folder and rename it to `path` when the block succeeds.

    With `durable` the file is flushed to disk first; otherwise the operating system does so within seconds. If the
    block fails, the temporary file is removed and `path` is unchanged. The temporary name keeps the suffix and starts
    with a dot, so that no pattern for finished files matches it.
    """
    path = Path(path)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{ProcessId.current()}-{secrets.token_hex(4)}-{path.name}")
    try:
        yield temporary
        if durable:
            flush_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        # The rename is durable only when the folder is flushed, which not every file system supports.
        with contextlib.suppress(OSError):
            flush_to_disk(path.parent)


def files_with_prefix(folder: StrPath, prefix: str) -> list[Path]:
    """Entries of a folder with names that start with `prefix`, sorted; empty if the folder is gone."""
    # Not Path.glob: it raises if the folder is removed between its check and its scan.
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [Path(folder, name) for name in sorted(names) if name.startswith(prefix)]


def remove_temporary_files(folder: StrPath) -> int:
    """Remove the temporary files that killed writers left in a folder; returns their number."""
    num_removed = 0
    for path in files_with_prefix(folder, TEMPORARY_PREFIX):
        with contextlib.suppress(OSError):  # removed by another process
            if _is_left_over(path):
                path.unlink()
                num_removed += 1
    return num_removed


def _is_left_over(path: Path) -> bool:
    """Whether the writer of a temporary file is gone."""
    writer = ProcessId.parse("-".join(path.name.removeprefix(TEMPORARY_PREFIX).split("-")[:3]))
    is_running = None if writer is None else writer.is_running()
    if is_running is None:
        return time.time() - path.stat().st_mtime > LEFT_OVER_AFTER_S
    return not is_running


def flush_to_disk(path: Path) -> None:
    """Call fsync on a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: StrPath, obj: object, durable: bool = True) -> None:
    """Write `obj` as JSON, atomically, with an indent of 4; `to_json_values` converts what JSON does not support."""
    with atomic_write(path, durable) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(to_json_values(obj), file, indent=4, allow_nan=False)
        file.write("\n")


def to_json_values(obj: object) -> Any:
    """Convert to JSON types: tensors and arrays to numbers or lists, other values (NaN included) to `str`."""
    if obj is None or type(obj) in (bool, int, str):
        return obj
    if isinstance(obj, np.ndarray | np.generic) or _is_tensor(obj):
        return to_json_values(obj.tolist())
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else str(obj)
    if isinstance(obj, Mapping):
        return {key if isinstance(key, str) else str(key): to_json_values(item) for key, item in obj.items()}
    if isinstance(obj, list | tuple):
        return [to_json_values(item) for item in obj]
    return str(obj)


def _is_tensor(obj: object) -> "TypeGuard[torch.Tensor]":
    """Whether a value is a tensor; without torch there are none, and this does not import it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)
