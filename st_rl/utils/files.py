"""Writes files that are never half there, and reads files without ever running code from them."""

import contextlib
import json
import math
import os
import re
import secrets
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from st_rl.utils.log import logger
from st_rl.utils.plain_pickle import load_plain_pickle

__all__ = [
    "CHECKPOINT_NAME",
    "CheckpointError",
    "atomic_write",
    "load_checkpoint",
    "load_plain_pickle",
    "newest_checkpoint",
    "save_checkpoint",
    "to_json_values",
    "write_json",
]

StrPath = str | os.PathLike[str]
CHECKPOINT_NAME = re.compile(r"model_([0-9]+)\.pt")
_LISTED_NAMES = 20


class CheckpointError(RuntimeError):
    """A file that cannot be read as a checkpoint."""


@contextlib.contextmanager
def atomic_write(path: StrPath, durable: bool = True) -> Iterator[Path]:
    """Give a temporary path beside `path`; move it there, complete, when the block ends well.

    A `durable` file is on disk then, too; otherwise that is left to the operating system, which takes seconds.
    When the block fails, the temporary file is removed and what was at `path` stays.
    The temporary name keeps the suffix and starts with a dot, so that no pattern for finished files matches it.
    """
    path = Path(path)
    temporary = path.with_name(f".tmp-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")
    try:
        yield temporary
        if durable:
            _flush_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        # The rename itself is on disk only when the folder is; not every file system lets a folder be flushed.
        with contextlib.suppress(OSError):
            _flush_to_disk(path.parent)


def _flush_to_disk(path: Path) -> None:
    """Wait until the file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_checkpoint(payload: Mapping[str, Any], path: StrPath) -> None:
    """Save `payload` so that `load_checkpoint` can read it, atomically; the folder is made when it is missing.

    Numpy arrays become tensors, numpy numbers Python numbers, named tuples tuples, paths strings. A value that a
    checkpoint cannot hold is a `TypeError` that says where it is; a folder that cannot be written is an `OSError` that
    names it.
    """
    path = Path(path)
    plain = plain_value(payload, "checkpoint")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            torch.save(plain, file)
    except (OSError, RuntimeError) as error:
        # torch wraps a failed write into a RuntimeError; the cause below it says what the disk said.
        cause = error if isinstance(error, OSError) else _os_error_behind(error)
        if cause is None:
            raise
        message = (
            f"cannot write checkpoint {path}: {cause.strerror or cause}; make room or make the folder writable, or "
            "choose another log_dir (checkpoints saved before are untouched)"
        )
        raise OSError(cause.errno, message) from error


def _os_error_behind(error: BaseException) -> OSError | None:
    """The operating system's error that led to `error`, if one did."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def plain_value(value: Any, where: str) -> Any:
    """The value in types that `torch.load(weights_only=True)` admits."""
    if value is None or isinstance(value, torch.dtype | torch.device | torch.Size):
        return value
    if type(value) in (bool, int, float, complex, str, bytes, bytearray):
        return value
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise TypeError(f"{where} is a numpy array of {value.dtype}; a checkpoint holds numeric arrays only")
        return torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape).clone()
    if isinstance(value, np.generic):
        return plain_value(value.item(), where)
    if isinstance(value, Mapping):
        return _plain_mapping(value, where)
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain_value(item, f"{where}[{position}]") for position, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else set(items) if isinstance(value, set | frozenset) else items
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for plain in (bool, int, float, str):  # subclasses such as enumerations with values
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, numbers, "
        "strings and dict, list, tuple or set of them, so that loading it can never run code"
    )


def _plain_mapping(value: Mapping[Any, Any], where: str) -> Mapping[Any, Any]:
    """The mapping with plain keys and values; the same object when it needs no change."""
    items = {_plain_key(key, where): plain_value(item, f"{where}[{key!r}]") for key, item in value.items()}
    same_keys = len(items) == len(value) and all(new is old for new, old in zip(items, value))
    if type(value) in (dict, OrderedDict) and same_keys and all(items[key] is item for key, item in value.items()):
        return value
    if not isinstance(value, OrderedDict):
        return items
    ordered = OrderedDict(items)
    ordered.__dict__.update(value.__dict__)  # a module's state dictionary carries the versions of its layers there
    return ordered


def _plain_key(key: Any, where: str) -> Any:
    """A dictionary key in types that a checkpoint holds."""
    plain = plain_value(key, f"{where} key {key!r}")
    if isinstance(plain, torch.Tensor):
        raise TypeError(f"{where} has a tensor as key; use a string or a number")
    return plain


def _plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without Python subclass, and without the rest of a larger storage that it only looks into."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        tensor = tensor.detach().as_subclass(torch.Tensor)
    if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size():
        return tensor
    return tensor.detach().clone()


def load_checkpoint(path: StrPath, map_location: Any = None, trust_pickle: bool = False) -> dict[str, Any]:
    """Load a checkpoint with `weights_only=True`; only an explicit `trust_pickle=True` opens a file that needs more.

    Raises `FileNotFoundError`, with what the folder holds, for a missing file and `CheckpointError` for every other
    file that is not a checkpoint.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint {path}; {_folder_listing(path.parent)}")
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, not a checkpoint; {_folder_listing(path)}")
    if trust_pickle:
        logger.warning("loading %s with trust_pickle=True: code in the file, if any, runs now", path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # about old pickle protocols; the error below says what matters
            loaded = torch.load(path, map_location=map_location, weights_only=not trust_pickle)
    # What a damaged or foreign file raises has no common base class.
    except Exception as error:
        raise CheckpointError(f"cannot load checkpoint {path}: {_why_not_loaded(error)}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(
            f"cannot load checkpoint {path}: it holds a {type(loaded).__name__}, not a dictionary; name a "
            "model_*.pt file of a run"
        )
    return loaded


def _why_not_loaded(error: Exception) -> str:
    """The reason and the remedy for a file that torch could not load."""
    text = str(error).strip()
    first_line = text.splitlines()[0] if text else type(error).__name__
    needs = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, PermissionError):
        return f"{first_line}; make the file readable"
    if "map_location" in text and "CUDA" in text:
        return "it was saved on a GPU that is not here; pass map_location='cpu'"
    if needs:
        return (
            f"refused, because it holds more than tensors, numbers and plain containers (it names {needs[1]}); use a "
            "checkpoint saved by st_rl, or pass trust_pickle=True if you trust its maker, since it may run any code"
        )
    if "weights_only" in text:  # torch's advice to load unsafely does not apply to a file that is no checkpoint
        first_line = "it does not start like a file of torch.save"
    return (
        f"the file is damaged, incomplete or not a checkpoint ({type(error).__name__}: {first_line}); use another "
        "model_*.pt of the same folder (--checkpoint ITERATION of st-rl)"
    )


def _folder_listing(folder: Path) -> str:
    """What the folder holds, in words."""
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    names = sorted((entry.name for entry in folder.iterdir() if not entry.name.startswith(".")), key=natural_order)
    if not names:
        return f"the folder {folder} is empty"
    more = f" and {len(names) - _LISTED_NAMES} more" if len(names) > _LISTED_NAMES else ""
    return f"the folder {folder} holds {', '.join(names[-_LISTED_NAMES:])}{more}"


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A sort key under which model_9 comes before model_10."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", name)]


def newest_checkpoint(folder: StrPath) -> Path | None:
    """The `model_{number}.pt` with the largest number in `folder`, or None when there is none."""
    folder = Path(folder)
    if not folder.is_dir():
        return None
    found = [(int(match[1]), entry) for entry in folder.iterdir() if (match := CHECKPOINT_NAME.fullmatch(entry.name))]
    return max(found)[1] if found else None


def write_json(path: StrPath, obj: Any, durable: bool = True) -> None:
    """Write `obj` as JSON, atomically, with an indent of 4; see `to_json_values` for what JSON does not know."""
    with atomic_write(path, durable) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(to_json_values(obj), file, indent=4, allow_nan=False)
        file.write("\n")


def to_json_values(obj: Any) -> Any:
    """A copy of `obj` that JSON can hold: tensors and arrays as numbers or lists, other values, NaN too, as `str`."""
    if obj is None or isinstance(obj, bool | str):
        return obj if obj is None or type(obj) in (bool, str) else str(obj)
    if isinstance(obj, torch.Tensor | np.ndarray | np.generic):
        return to_json_values(obj.tolist())
    if isinstance(obj, int) and type(obj) is int:
        return obj
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else str(obj)
    if isinstance(obj, Mapping):
        return {key if isinstance(key, str) else str(key): to_json_values(item) for key, item in obj.items()}
    if isinstance(obj, list | tuple):
        return [to_json_values(item) for item in obj]
    return str(obj)
