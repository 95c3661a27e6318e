"""Checkpoints of tensors, numbers and plain containers, which load with `weights_only=True`."""

import io
import math
import os
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import torch

from st_rl.utils.files.atomic import StrPath, atomic_write
from st_rl.utils.files.numpy_globals import NUMPY_GLOBALS
from st_rl.utils.files.plain_pickle import PlainPickleError, PlainUnpickler
from st_rl.utils.files.readers import FileError, LimitError, check_archive, check_file, check_tree
from st_rl.utils.log import logger

CHECKPOINT_NAME = re.compile(r"model_([0-9]+)\.pt")
OTHER_CHECKPOINT = "use another model_*.pt of the same folder (--checkpoint ITERATION of st-rl)"
"""Remedy for a checkpoint that cannot be used."""
_MAX_LISTED_NAMES = 20
_PLAIN_TYPES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.device, torch.Size}
)
# Bytes of an element by the class of its storage; one byte of an untyped storage.
_ITEM_BYTES = {
    **dict.fromkeys(("ComplexDoubleStorage",), 16),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
}
# Elements of a tensor that repeats the elements of a smaller storage.
_MAX_EXPANDED = 2**20
_FOLDER_BIT = 0x10
_CHUNK_BYTES = 2**20


class CheckpointError(FileError, RuntimeError):
    """A file that cannot be read as a checkpoint, or does not fit what loads it."""


def save_checkpoint(payload: Mapping[str, Any], path: StrPath) -> None:
    """Convert `payload` with `plain_value` and write it atomically, so that `load_checkpoint` can read it.

    Missing folders are created. TypeError names a value that a checkpoint cannot hold; OSError names a folder that
    cannot be written.
    """
    write_checkpoint(plain_value(payload, "checkpoint"), path)


def write_checkpoint(plain: Mapping[str, Any], path: StrPath) -> None:
    """Write a payload that `plain_value` returned; the second half of `save_checkpoint`."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            torch.save(plain, file)
    except (OSError, RuntimeError) as error:
        # torch raises a RuntimeError from a failed write; the OSError is its cause.
        cause = _find_os_error(error)
        if cause is None:
            raise
        message = (
            f"cannot write checkpoint {path}: {cause.strerror or cause}; make room or make the folder writable, or "
            "choose another log_dir (checkpoints saved before are untouched)"
        )
        raise OSError(cause.errno, message) from error


def _find_os_error(error: BaseException) -> OSError | None:
    """The first OSError in the chain of causes, if any."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause


def plain_value(value: object, where: str) -> Any:
    """Convert a value to types that `torch.load(weights_only=True)` accepts.

    Numpy arrays become tensors, numpy numbers Python numbers, named tuples tuples, paths strings. A tensor that views
    part of a larger storage is copied. TypeError says `where` any other value is.
    """
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            value = value.detach().as_subclass(torch.Tensor)
        is_whole = value.layout != torch.strided or value.untyped_storage().nbytes() == value.nbytes
        return value if is_whole else value.detach().clone()
    if isinstance(value, Mapping):
        mapping = OrderedDict() if isinstance(value, OrderedDict) else {}
        for key, item in value.items():
            plain_key = key if type(key) in _PLAIN_TYPES else plain_value(key, f"{where} key {key!r}")
            if isinstance(plain_key, torch.Tensor):
                raise TypeError(f"{where} has a tensor as key; use a string or a number")
            mapping[plain_key] = item if type(item) in _PLAIN_TYPES else plain_value(item, f"{where}[{key!r}]")
        if isinstance(value, OrderedDict):
            mapping.__dict__.update(value.__dict__)  # `_metadata` of a module's state dict: versions of its layers
        return mapping
    if isinstance(value, list | tuple | set | frozenset):
        items = []
        for position, item in enumerate(value):
            items.append(item if type(item) in _PLAIN_TYPES else plain_value(item, f"{where}[{position}]"))
        return tuple(items) if isinstance(value, tuple) else set(items) if isinstance(value, set | frozenset) else items
    return _plain_leaf(value, where)


def _plain_leaf(value: object, where: str) -> Any:
    """Convert a numpy value, a path or an instance of a subclass of a plain type."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise TypeError(f"{where} is a numpy array of {value.dtype}; a checkpoint holds numeric arrays only")
        return torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape).clone()
    if isinstance(value, np.generic):
        return plain_value(value.item(), where)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for plain in (bool, int, float, str):  # subclasses such as enumerations with values
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, numbers, "
        "strings and dict, list, tuple or set of them, so that loading it can never run code"
    )


def load_checkpoint(
    path: StrPath, map_location: torch.device | str | None = None, trust_pickle: bool = False
) -> dict[str, Any]:
    """Load a checkpoint with `weights_only=True`; only `trust_pickle=True` opens a file that needs more.

    NumPy numbers become Python numbers; numeric NumPy arrays stay arrays. Checksums and sizes in the file are compared
    with its content first, unless `trust_pickle` is set.

    FileNotFoundError, with the content of the folder, for a missing file; `CheckpointError` for any other file that is
    not a checkpoint.
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
            # Warnings about old pickle protocols; the error below says what matters.
            warnings.simplefilter("ignore", UserWarning)
            if not trust_pickle:
                _scan(path)
            with torch.serialization.safe_globals(NUMPY_GLOBALS):
                loaded = torch.load(path, map_location=map_location, weights_only=not trust_pickle)
    # The errors of a corrupt or foreign file have no common base class.
    except Exception as error:
        raise CheckpointError(f"cannot load checkpoint {path}: {_explain_load_error(error)}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(
            f"cannot load checkpoint {path}: it holds a {type(loaded).__name__}, not a dictionary; name a "
            "model_*.pt file of a run"
        )
    return loaded


def _scan(path: Path) -> None:
    """Raise nearly any exception for a file that is damaged, or that torch would need too much memory or time for."""
    size = check_file(path, max_bytes=2**63)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_archive(archive, size)
            _scan_archive(archive, size)
        return
    with open(path, "rb") as file:
        unpickler = _CheckpointUnpickler(file, lambda key: size)
        # The content follows the magic number, the version and the byte order; torch rejects other files.
        if unpickler.load() == torch.serialization.MAGIC_NUMBER:
            unpickler.load()
            unpickler.load()
            check_tree(unpickler.load())
            if sum(unpickler.declared.values()) > size:
                raise LimitError(f"it declares more bytes of tensors than its {size:,}")


def _scan_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Compare the records of torch's archive with their checksums, which torch does not, and check its pickle."""
    records = {record.filename: record for record in archive.infolist()}
    for name, record in records.items():
        # torch reads nothing into the memory of a record that is marked as a folder.
        if record.compress_type != zipfile.ZIP_STORED or record.external_attr & _FOLDER_BIT:
            raise zipfile.BadZipFile(f"its record {name} is compressed or a folder")
    if len(records) != len(archive.infolist()) or sum(record.file_size for record in records.values()) > size:
        raise zipfile.BadZipFile("its records overlap")
    for record in records.values():
        # torch writes 0 when the user has switched checksums off; zipfile compares nothing with None.
        record.CRC = record.CRC or None  # pyright: ignore[reportAttributeAccessIssue]
        with archive.open(record) as file:
            while file.read(_CHUNK_BYTES):
                pass
    pickle_name = next((name for name in records if name.endswith("/data.pkl")), None)
    if pickle_name is None:
        raise zipfile.BadZipFile("it holds no data.pkl")
    folder = f"{pickle_name.removesuffix('data.pkl')}data/"
    stored = {name.removeprefix(folder): record.file_size for name, record in records.items()}
    unpickler = _CheckpointUnpickler(io.BytesIO(archive.read(pickle_name)), stored.__getitem__)
    check_tree(unpickler.load())


class _Storage(NamedTuple):
    """The elements of tensors, without the data."""

    num_elements: int


class _Inert:
    """Stands for a global of torch; a call returns another one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> "_Inert":
        if self.name.endswith(("Storage", "Tensor")):
            raise LimitError(f"it calls {self.name}, which allocates memory")
        if self.name.startswith(("_rebuild_tensor", "_rebuild_qtensor")):
            _check_tensor(*args[:3])
        if self.name == "_rebuild_from_type_v2":
            args[0](*args[2])
        if self.name == "Counter" and not all(isinstance(arg, Mapping) for arg in args):
            raise PlainPickleError("it counts the items of a sequence")
        return _Inert(f"result of {self.name}")


def _check_tensor(storage: _Storage, offset: int, size: tuple[int, ...]) -> None:
    """LimitError for a tensor with more elements than its storage."""
    count = math.prod(size)
    if count > max(storage.num_elements - offset, _MAX_EXPANDED):
        raise LimitError(f"it has a tensor of {count:,} elements with {storage.num_elements:,} stored")


class _CheckpointUnpickler(PlainUnpickler):
    """Reads the pickle of a checkpoint within the limits of `PlainUnpickler`, without tensors."""

    dispatch: ClassVar[dict[int, Any]] = dict(PlainUnpickler.dispatch)

    def __init__(self, file: IO[bytes], stored_bytes: Callable[[str], int]) -> None:
        super().__init__(file)
        self.stored_bytes = stored_bytes
        self.declared: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a plain container; everything else is inert here, and torch decides whether it admits it."""
        is_plain = module in ("builtins", "__builtin__", "_codecs") or name == "OrderedDict"
        try:
            return super().find_class(module, name) if is_plain else _Inert(name)
        except PlainPickleError:
            return _Inert(name)

    def persistent_load(self, pid: tuple[Any, ...]) -> _Storage:
        """Return the storage of tensors; LimitError if the file does not hold all of it."""
        _, kind, key, _, count, *_ = pid
        declared = int(count) * _ITEM_BYTES.get(kind.name, 1)
        if declared > self.stored_bytes(str(key)):
            raise LimitError(f"it declares {declared:,} bytes of tensors and holds fewer")
        self.declared[str(key)] = declared
        return _Storage(int(count))

    def load_build(self) -> None:
        """Ignore the state of an object, which is within the limits by itself."""
        self.stack.pop()

    def load_newobj(self) -> None:
        """Create an object by a call."""
        args = self.stack.pop()
        self.stack[-1] = self.stack[-1](*args)

    dispatch |= {pickle.BUILD[0]: load_build, pickle.NEWOBJ[0]: load_newobj}


def _explain_load_error(error: Exception) -> str:
    """Reason and remedy for a file that torch could not load."""
    text = str(error).strip()
    first_line = text.splitlines()[0] if text else type(error).__name__
    needs = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, PermissionError):
        return f"{first_line}; make the file readable"
    if "map_location" in text and "CUDA" in text:
        return "it was saved on a GPU, which this machine lacks; pass map_location='cpu'"
    if needs:
        return (
            f"refused, because it holds more than tensors, numbers and plain containers (it names {needs[1]}); use a "
            "checkpoint saved by st_rl. If you trust its author, set trust_pickle=True, which may run any code in the "
            "file: an argument of load, load_policy and DaggerSaver, a key of teacher_policy and of mutex policies"
        )
    if "weights_only" in text:  # torch advises to load unsafely, which does not help with a file that is no checkpoint
        first_line = "it does not start like a file of torch.save"
    return (
        f"the file is corrupt, incomplete or not a checkpoint ({type(error).__name__}: {first_line}); "
        f"{OTHER_CHECKPOINT}"
    )


def _folder_listing(folder: Path) -> str:
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    names = sorted((entry.name for entry in folder.iterdir() if not entry.name.startswith(".")), key=natural_order)
    if not names:
        return f"the folder {folder} is empty"
    more = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
    return f"the folder {folder} holds {', '.join(names[-_MAX_LISTED_NAMES:])}{more}"


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
