"""Reads pickles that hold numpy arrays and plain containers, and refuses everything else before it runs."""

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

StrPath = str | os.PathLike[str]


class PlainPickleError(pickle.UnpicklingError):
    """A pickle that holds more than numpy arrays and plain containers, or is not a whole pickle."""


class _JoblibArray:
    """Stands for joblib's note that the bytes of an array follow in the stream."""

    subclass: Any
    shape: tuple[int, ...]
    order: str
    dtype: np.dtype
    numpy_array_alignment_bytes: int | None = None

    def read(self, file: IO[bytes]) -> np.ndarray:
        """Read the array whose bytes come next."""
        if _has_objects(self.dtype):
            raise PlainPickleError("it holds an array of Python objects")
        if self.numpy_array_alignment_bytes is not None:
            file.read(file.read(1)[0])
        count = int(np.prod(self.shape, dtype=np.int64))
        data = file.read(count * self.dtype.itemsize)
        array = np.frombuffer(data, dtype=self.dtype, count=count).copy()
        return array.reshape(self.shape[::-1]).T if self.order == "F" else array.reshape(self.shape)


class ArrayType(np.ndarray):
    """Stands for numpy's array where a pickle names it: something to rebuild, not to call.

    numpy's own constructor takes the memory of an array from its caller, and bytes for the addresses of objects.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuse to make one."""
        raise PlainPickleError("it calls numpy.ndarray")


_numpy_reconstruct: Any = np.empty(0).__reduce__()[0]
_numpy_scalar: Any = np.float64(0).__reduce__()[0]


def _reconstruct(array_type: Any, shape: Any, typecode: Any) -> np.ndarray:
    """An array whose content comes next."""
    return _numpy_reconstruct(np.ndarray, shape, typecode)


def _has_objects(dtype: np.dtype) -> bool:
    """Whether elements hold Python objects, also where a forged dtype denies it."""
    inner = [dtype.base] if dtype.base is not dtype else [field[0] for field in (dtype.fields or {}).values()]
    return dtype.hasobject or any(_has_objects(part) for part in inner)


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    """A numpy number from its bytes."""
    if _has_objects(dtype):
        raise PlainPickleError("it holds a Python object as a numpy number")
    return _numpy_scalar(dtype, data)


def _numpy_globals() -> dict[tuple[str, str], Any]:
    """What numpy 1 and numpy 2 name in the pickle of an array, under the module paths of both."""
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
    """The one use that old pickle protocols make of `_codecs.encode`: bytes written as latin-1 text."""
    if encoding not in ("latin1", "latin-1"):
        raise PlainPickleError(f"it encodes text as {encoding}")
    return text.encode("latin1")


_ADMITTED["_codecs", "encode"] = _encode


# The Python version of the unpickler, since joblib's arrays need a hook on one instruction.
class _PlainUnpickler(pickle._Unpickler):
    """An unpickler that finds only what `_ADMITTED` lists."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin1")
        self.source = file

    def find_class(self, module: str, name: str) -> Any:
        """Give what the list admits, refuse the rest."""
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise PlainPickleError(f"it names {module}.{name}") from None

    def get_extension(self, code: int) -> None:
        """Refuse the registry of extension codes, which `find_class` does not see."""
        raise PlainPickleError(f"it uses extension code {code}")

    def load_build(self) -> None:
        """Restore an object's state; joblib's notes are replaced by the array that follows them."""
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

    Anything else in it is refused with a `PlainPickleError` that names it, and nothing of it runs.
    """
    if isinstance(path_or_file, str | os.PathLike):
        name = str(path_or_file)
        data = Path(path_or_file).read_bytes()
    else:
        name = str(getattr(path_or_file, "name", "the given file"))
        data = path_or_file.read()
    try:
        return _PlainUnpickler(io.BytesIO(_decompress(data))).load()
    # What a damaged pickle raises has no common base class.
    except Exception as error:
        raise PlainPickleError(
            f"cannot load {name}: {str(error) or type(error).__name__}; only numpy arrays and plain containers are "
            "admitted, and the file must be complete"
        ) from error


def _decompress(data: bytes) -> bytes:
    """The data without the compression that joblib may have put around it."""
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    if data.startswith(b"BZh"):
        return bz2.decompress(data)
    if data.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        return lzma.decompress(data)
    if data[:1] == b"\x78" and data[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        return zlib.decompress(data)
    return data
