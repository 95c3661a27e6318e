"""Restricted unpickler for numpy arrays and plain containers; rejects everything else before it runs."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from st_rl.utils.files.atomic import StrPath


class PlainPickleError(pickle.UnpicklingError):
    """A pickle with more than numpy arrays and plain containers, or an incomplete one."""


class _JoblibArray:
    """Replacement of joblib's `NumpyArrayWrapper`, which announces the bytes of an array in the stream."""

    subclass: Any
    shape: tuple[int, ...]
    order: str
    dtype: np.dtype
    numpy_array_alignment_bytes: int | None = None

    def read(self, file: IO[bytes]) -> np.ndarray:
        """Read the array from the bytes that follow."""
        if _has_objects(self.dtype):
            raise PlainPickleError("it holds an array of Python objects")
        if self.numpy_array_alignment_bytes is not None:
            file.read(file.read(1)[0])
        count = int(np.prod(self.shape, dtype=np.int64))
        data = file.read(count * self.dtype.itemsize)
        array = np.frombuffer(data, dtype=self.dtype, count=count).copy()
        return array.reshape(self.shape[::-1]).T if self.order == "F" else array.reshape(self.shape)


class ArrayType(np.ndarray):
    """Replacement of `numpy.ndarray` in pickles: it can be rebuilt, not called.

    The constructor of `numpy.ndarray` would accept any buffer, also one with forged object addresses.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Reject the call."""
        raise PlainPickleError("it calls numpy.ndarray")


_numpy_reconstruct: Any = np.empty(0).__reduce__()[0]
_numpy_scalar: Any = np.float64(0).__reduce__()[0]


def _reconstruct(array_type: object, shape: tuple[int, ...], typecode: bytes) -> np.ndarray:
    """Allocate an array; its state follows."""
    return _numpy_reconstruct(np.ndarray, shape, typecode)


def _has_objects(dtype: np.dtype) -> bool:
    """Whether elements hold Python objects, also if a forged dtype denies it."""
    inner = [dtype.base] if dtype.base is not dtype else [field[0] for field in (dtype.fields or {}).values()]
    return dtype.hasobject or any(_has_objects(part) for part in inner)


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    """A numpy number from its bytes."""
    if _has_objects(dtype):
        raise PlainPickleError("it holds a Python object as a numpy number")
    return _numpy_scalar(dtype, data)


def _numpy_globals() -> dict[tuple[str, str], Any]:
    """Globals in array pickles of numpy 1 and numpy 2."""
    from_buffer = np.empty(1).__reduce_ex__(5)[0]
    admitted: dict[tuple[str, str], Any] = {("numpy", "ndarray"): ArrayType, ("numpy", "dtype"): np.dtype}
    for core in ("numpy.core", "numpy._core"):
        admitted[f"{core}.multiarray", "_reconstruct"] = _reconstruct
        admitted[f"{core}.multiarray", "scalar"] = _scalar
        admitted[f"{core}.numeric", "_frombuffer"] = from_buffer
    return admitted


_PLAIN_TYPES = {"set": set, "frozenset": frozenset, "bytes": bytes, "bytearray": bytearray, "complex": complex}
_ADMITTED: dict[tuple[str, str], Any] = {
    **_numpy_globals(),
    ("collections", "OrderedDict"): OrderedDict,
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): _JoblibArray,
    **{(module, name): value for module in ("builtins", "__builtin__") for name, value in _PLAIN_TYPES.items()},
}


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Bytes as latin-1 text: the only use of `_codecs.encode` in old pickle protocols."""
    if encoding not in ("latin1", "latin-1"):
        raise PlainPickleError(f"it encodes text as {encoding}")
    return text.encode("latin1")


_ADMITTED["_codecs", "encode"] = _encode


# The Python version of the unpickler, since joblib's arrays need a hook on one instruction.
class _PlainUnpickler(pickle._Unpickler):
    """An unpickler that resolves the globals in `_ADMITTED` only."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin1")
        self.source = file

    def find_class(self, module: str, name: str) -> Any:
        """Return an admitted global, reject all others."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise PlainPickleError(f"it names {module}.{name}") from None

    def get_extension(self, code: int) -> None:
        """Reject extension codes, which bypass `find_class`."""
        raise PlainPickleError(f"it uses extension code {code}")

    def load_build(self) -> None:
        """Restore the state of an object; replaces a `_JoblibArray` by the array that follows."""
        state, instance = self.stack[-1], self.stack[-2]  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(instance, _JoblibArray | np.ndarray | np.dtype):
            raise PlainPickleError(f"it sets the state of a {type(instance).__name__}")
        if not isinstance(instance, _JoblibArray):
            super().load_build()  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(instance, np.dtype) and _has_objects(instance) != instance.hasobject:
                raise PlainPickleError("it holds a dtype that denies its objects")
            return
        self.stack.pop()  # pyright: ignore[reportAttributeAccessIssue]
        instance.__dict__.update(state)
        self.stack[-1] = instance.read(self.source)  # pyright: ignore[reportAttributeAccessIssue]

    dispatch[pickle.BUILD[0]] = load_build


def load_plain_pickle(path_or_file: StrPath | IO[bytes]) -> Any:
    """Load a pickle (also joblib's, also compressed) of numpy arrays, dtypes, numbers, strings and plain containers.

    Anything else raises a `PlainPickleError` that names it; nothing of it runs.
    """
    if isinstance(path_or_file, str | os.PathLike):
        name = str(path_or_file)
        data = Path(path_or_file).read_bytes()
    else:
        name = str(getattr(path_or_file, "name", "the given file"))
        data = path_or_file.read()
    try:
        return _PlainUnpickler(io.BytesIO(_decompress(data))).load()
    # The errors of a corrupt pickle have no common base class.
    except Exception as error:
        raise PlainPickleError(
            f"cannot load {name}: {str(error) or type(error).__name__}; only numpy arrays and plain containers are "
            "admitted, and the file must be complete"
        ) from error


def _decompress(data: bytes) -> bytes:
    """Undo the compression of joblib, if any."""
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"BZh"):
        return bz2.decompress(data)
    if data.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        return lzma.decompress(data)
    if data[:1] == b"\x78" and data[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        return zlib.decompress(data)
    return data
