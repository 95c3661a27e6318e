"""Checks the file of a checkpoint before torch loads it: checksums, declared sizes and the limits of its pickle."""

import io
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import torch

from st_rl.utils.files import limits
from st_rl.utils.files.plain_pickle import PlainPickleError, PlainUnpickler

# Bytes of an element by the class of its storage; one byte of an untyped storage.
_ITEM_BYTES = {
    **dict.fromkeys(("ComplexDoubleStorage",), 16),
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
}
# Elements of a tensor that repeats the elements of a smaller storage.
_MAX_EXPANDED = 2**20
_PICKLE_NAME = "/data.pkl"
_FOLDER_BIT = 0x10
_HEADER_BYTES = 30
_HEADER_SIGNATURE = b"PK\x03\x04"


class _Storage(NamedTuple):
    """The elements of tensors, without the data."""

    num_elements: int


class _Inert:
    """Stands for a global of torch; a call returns another one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> "_Inert":
        if self.name.endswith(("Storage", "Tensor")):
            raise limits.LimitError(f"it calls {self.name}, which allocates memory")
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
        raise limits.LimitError(f"it has a tensor of {count:,} elements with {storage.num_elements:,} stored")


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
            raise limits.LimitError(f"it declares {declared:,} bytes of tensors and holds fewer")
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


def scan_checkpoint(path: Path) -> None:
    """Raise nearly any exception for a file that is damaged, or that torch would need too much memory or time for."""
    size = limits.check_file(path, max_bytes=2**63)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            limits.check_archive(archive, size)
            _scan_records(archive.infolist(), np.memmap(path, mode="r"))
        return
    with open(path, "rb") as file:
        unpickler = _CheckpointUnpickler(file, lambda key: size)
        # The content follows the magic number, the version and the byte order; torch rejects other files.
        if unpickler.load() == torch.serialization.MAGIC_NUMBER:
            unpickler.load()
            unpickler.load()
            limits.check_tree(unpickler.load())
            if sum(unpickler.declared.values()) > size:
                raise limits.LimitError(f"it declares more bytes of tensors than its {size:,}")


def _scan_records(records: Sequence[zipfile.ZipInfo], data: np.ndarray) -> None:
    """Compare the records of torch's archive with their checksums, which torch does not, and check its pickle."""
    contents = {record.filename: _find_content(record, data) for record in records}
    if len(contents) != len(records) or sum(map(len, contents.values())) > len(data):
        raise zipfile.BadZipFile("its records overlap")
    for record in records:
        # torch writes 0 when the user has switched checksums off.
        if record.CRC not in (0, zlib.crc32(contents[record.filename].data)):
            raise zipfile.BadZipFile(f"the checksum of its record {record.filename} is wrong")
    name = next((name for name in contents if name.endswith(_PICKLE_NAME)), None)
    if name is None:
        raise zipfile.BadZipFile("it holds no data.pkl")
    folder = name.removesuffix(_PICKLE_NAME)
    stored = {key.removeprefix(f"{folder}/data/"): len(content) for key, content in contents.items()}
    unpickler = _CheckpointUnpickler(io.BytesIO(contents[name].tobytes()), stored.__getitem__)
    limits.check_tree(unpickler.load())


def _find_content(record: zipfile.ZipInfo, data: np.ndarray) -> np.ndarray:
    """Return the bytes of an uncompressed record, which follow its local header."""
    header = data[record.header_offset :][:_HEADER_BYTES].tobytes()
    # torch reads nothing into the memory of a record that is marked as a folder.
    is_folder = bool(record.external_attr & _FOLDER_BIT)
    if record.compress_type != zipfile.ZIP_STORED or is_folder or not header.startswith(_HEADER_SIGNATURE):
        raise zipfile.BadZipFile(f"its record {record.filename} is compressed, a folder or without header")
    start = record.header_offset + _HEADER_BYTES + sum(struct.unpack_from("<HH", header, 26))
    content = data[start : start + record.file_size]
    if len(content) != record.file_size:
        raise zipfile.BadZipFile(f"its record {record.filename} is incomplete")
    return content
