"""Restricted unpickler for numpy arrays and plain containers; rejects everything else before it runs."""

import bz2
import functools
import io
import lzma
import os
import pickle
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, ClassVar

import numpy as np

from st_rl.utils.files.atomic import StrPath
from st_rl.utils.files.readers import LimitError, check_tree, max_unpacked, read_bytes

# Containers, calls and references of a pickle.
MAX_OBJECTS = 750_000
# Longest text that names a dtype; structured ones have fields instead.
_MAX_DTYPE_TEXT = 64
# Largest tuple, and bits of the largest integer, as a key: Python does not cache their hashes.
_MAX_KEY_ITEMS = 16
_MAX_KEY_BITS = 1024


Instruction = Callable[["PlainUnpickler"], None]


class PlainPickleError(pickle.UnpicklingError):
    """A pickle with more than numpy arrays and plain containers, or an incomplete one."""


class _JoblibArray:
    """Replacement of joblib's `NumpyArrayWrapper`, which announces the bytes of an array in the stream."""

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


def reconstruct(array_type: object, shape: tuple[int, ...], typecode: bytes) -> np.ndarray:
    """Create the empty array that every pickled array starts as; its state follows."""
    if shape != (0,):
        raise PlainPickleError(f"it creates an array of shape {shape} without data")
    return _numpy_reconstruct(np.ndarray, shape, typecode)


def _has_objects(dtype: np.dtype) -> bool:
    """Whether elements hold Python objects, also if a forged dtype denies it."""
    inner = [dtype.base] if dtype.base is not dtype else [field[0] for field in (dtype.fields or {}).values()]
    return dtype.hasobject or any(_has_objects(part) for part in inner)


def _make_dtype(text: object, *options: object) -> np.dtype:
    """A dtype by its name, such as `f4`."""
    if not isinstance(text, str) or len(text) > _MAX_DTYPE_TEXT:
        raise PlainPickleError("it creates a dtype from something else than a short name")
    return np.dtype(text, *options)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _scalar(dtype: np.dtype, data: bytes) -> Any:
    """A numpy number from its bytes."""
    if _has_objects(dtype):
        raise PlainPickleError("it holds a Python object as a numpy number")
    return _numpy_scalar(dtype, data)


def _numpy_globals() -> dict[tuple[str, str], Any]:
    """Globals in array pickles of numpy 1 and numpy 2."""
    from_buffer = np.empty(1).__reduce_ex__(5)[0]
    admitted: dict[tuple[str, str], Any] = {("numpy", "ndarray"): ArrayType, ("numpy", "dtype"): _make_dtype}
    for core in ("numpy.core", "numpy._core"):
        admitted[f"{core}.multiarray", "_reconstruct"] = reconstruct
        admitted[f"{core}.multiarray", "scalar"] = _scalar
        admitted[f"{core}.numeric", "_frombuffer"] = from_buffer
    return admitted


def _check_keys(keys: Iterable[Any]) -> None:
    """Reject keys that are slow to hash, such as tuples in tuples; keys are scalars or short tuples of them."""
    for key in keys:
        items = key if isinstance(key, tuple) else (key,)
        if len(items) > _MAX_KEY_ITEMS or not all(map(_is_plain_key, items)):
            raise PlainPickleError(f"it has a {type(key).__name__} as key that is not a short tuple of plain values")


def _is_plain_key(key: object) -> bool:
    if isinstance(key, int):
        return key.bit_length() <= _MAX_KEY_BITS
    return isinstance(key, str | bytes | float | complex | np.number | np.bool_ | type(None))


def _make_bytes(kind: type[bytes] | type[bytearray], value: str | bytes | list[int] = b"", encoding: str = "") -> Any:
    """Bytes from text or other bytes; a number would allocate as many."""
    if isinstance(value, str):
        return kind(_encode(value, encoding))
    if not isinstance(value, bytes | list):
        raise PlainPickleError(f"it calls {kind.__name__} with {type(value).__name__}")
    return kind(value)


def _make_set(kind: type[set[Any]] | type[frozenset[Any]], items: Iterable[Any] = ()) -> Any:
    items = list(items)
    _check_keys(items)
    return kind(items)


def _make_ordered_dict(items: Mapping[Any, Any] | Iterable[Any] = ()) -> OrderedDict[Any, Any]:
    pairs = list(items.items() if isinstance(items, Mapping) else items)
    _check_keys(key for key, _ in pairs)
    return OrderedDict(pairs)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Bytes as latin-1 text: the only use of `_codecs.encode` in old pickle protocols."""
    if encoding not in ("latin1", "latin-1"):
        raise PlainPickleError(f"it encodes text as {encoding}")
    return text.encode("latin1")


_PLAIN_TYPES: dict[str, Any] = {
    "set": functools.partial(_make_set, set),
    "frozenset": functools.partial(_make_set, frozenset),
    "bytes": functools.partial(_make_bytes, bytes),
    "bytearray": functools.partial(_make_bytes, bytearray),
    "complex": complex,
}
_ADMITTED: dict[tuple[str, str], Any] = {
    **_numpy_globals(),
    ("collections", "OrderedDict"): _make_ordered_dict,
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): _JoblibArray,
    ("_codecs", "encode"): _encode,
    **{(module, name): value for module in ("builtins", "__builtin__") for name, value in _PLAIN_TYPES.items()},
}


def _with_plain_keys(instruction: Instruction, keys: slice) -> Instruction:
    """An instruction of the unpickler that checks the keys at these places of the stack."""

    def run(self: "PlainUnpickler") -> None:
        _check_keys(self.stack[keys])
        instruction(self)

    return run


def _counted(instruction: Instruction) -> Instruction:
    """An instruction of the unpickler that counts as an object."""

    def run(self: "PlainUnpickler") -> None:
        self.num_objects += 1
        if self.num_objects > MAX_OBJECTS:
            raise LimitError(f"it has more than {MAX_OBJECTS:,} containers, calls and references")
        instruction(self)

    return run


# The Python version of the unpickler: joblib's arrays and the limits need hooks on single instructions.
class PlainUnpickler(pickle._Unpickler):
    """An unpickler that resolves the globals in `_ADMITTED` only, within the limits of memory and time."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    # Of the base class, which is not annotated.
    stack: list[Any]

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin1")
        self.source = file
        self.num_objects = 0

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
        state, instance = self.stack[-1], self.stack[-2]
        if isinstance(instance, _JoblibArray):
            self.stack.pop()
            instance.__dict__.update(state)
            self.stack[-1] = instance.read(self.source)
            return
        if not isinstance(instance, np.ndarray | np.dtype):
            raise PlainPickleError(f"it sets the state of a {type(instance).__name__}")
        super().load_build()  # pyright: ignore[reportAttributeAccessIssue]
        _check_built(instance)

    def load_bytearray8(self) -> None:
        """Read a bytearray; the base class would allocate as many bytes as it announces."""
        super().load_binbytes8()  # pyright: ignore[reportAttributeAccessIssue]
        self.stack[-1] = bytearray(self.stack[-1])

    dispatch |= {pickle.BUILD[0]: load_build, pickle.BYTEARRAY8[0]: load_bytearray8}


# Instructions that hash keys, and where on the stack these are; some have keys and values in turn.
for _name, _keys in {
    pickle.SETITEM: slice(-2, -1),
    pickle.SETITEMS: slice(None, None, 2),
    pickle.DICT: slice(None, None, 2),
    pickle.ADDITEMS: slice(None),
    pickle.FROZENSET: slice(None),
}.items():
    PlainUnpickler.dispatch[_name[0]] = _with_plain_keys(PlainUnpickler.dispatch[_name[0]], _keys)

# Instructions of a few bytes that need some 100 bytes of memory or a call.
for _code in b"(]})ltd\x85\x86\x87\x8f\x91Rio\x81\x92bpqr\x94":
    PlainUnpickler.dispatch[_code] = _counted(PlainUnpickler.dispatch[_code])


def _check_built(instance: np.ndarray | np.dtype) -> None:
    """Reject arrays of objects or of elements without content, and dtypes that deny their objects or are nested."""
    if isinstance(instance, np.ndarray):
        if instance.dtype.hasobject:
            raise PlainPickleError("it holds an array of Python objects")
        if instance.size and not instance.itemsize:
            raise LimitError(f"it has an array of {instance.size:,} elements without content")
        return
    if _has_objects(instance) != instance.hasobject:
        raise PlainPickleError("it holds a dtype that denies its objects")
    parts = [instance.base] if instance.base is not instance else [f[0] for f in (instance.fields or {}).values()]
    if any(part.fields for part in parts):
        raise PlainPickleError("it holds a dtype with fields in fields")


def load_plain_pickle(path_or_file: StrPath | IO[bytes]) -> Any:
    """Load a pickle (also joblib's, also compressed) of numpy arrays, dtypes, numbers, strings and plain containers.

    Anything else, and what exceeds the limits, raises a `PlainPickleError` that names it; nothing of it runs.
    """
    is_path = isinstance(path_or_file, str | os.PathLike)
    name = str(path_or_file) if is_path else str(getattr(path_or_file, "name", "the given file"))
    try:
        data = read_bytes(path_or_file) if is_path else path_or_file.read()
        content = PlainUnpickler(io.BytesIO(decompress(data))).load()
        check_tree(content)
        return content
    except FileNotFoundError:
        raise
    # The errors of a corrupt pickle have no common base class.
    except Exception as error:
        raise PlainPickleError(
            f"cannot load {name}: {str(error) or type(error).__name__}; only numpy arrays and plain containers are "
            "admitted, and the file must be complete"
        ) from error


def decompress(data: bytes) -> bytes:
    """Undo gzip, zlib, bz2, lzma or xz, found by the first bytes; other data is returned unchanged."""
    if data.startswith(b"\x1f\x8b"):
        decompressor = zlib.decompressobj(wbits=31)
    elif data.startswith(b"BZh"):
        decompressor = bz2.BZ2Decompressor()
    elif data.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        # The dictionary alone may be 4 GB.
        decompressor = lzma.LZMADecompressor(memlimit=2**28)
    elif data[:1] == b"\x78" and data[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda"):
        decompressor = zlib.decompressobj()
    else:
        return data
    limit = max_unpacked(len(data))
    unpacked = decompressor.decompress(data, limit + 1)
    if len(unpacked) > limit:
        raise LimitError(f"its {len(data):,} bytes unpack to more than {limit:,}")
    if not decompressor.eof:
        raise EOFError("the compressed data is incomplete")
    return unpacked
