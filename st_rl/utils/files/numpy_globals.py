"""NumPy numbers and numeric arrays in checkpoints: replacements of the globals that their pickles name.

NumPy's own functions accept forged types and sizes. The replacements build numbers, text and numeric arrays only, and
allocate no more than the bytes in the file.
"""

import re
from typing import Any

import numpy as np

from st_rl.utils.files.plain_pickle import ArrayType, PlainPickleError

_numpy_reconstruct: Any = np.empty(0).__reduce__()[0]
_PLAIN_TYPE_CODE = re.compile(r"[biufcUS][0-9]{1,6}")


class _PickledDtype:
    """Replacement of `numpy.dtype`: a type code such as `f8` and, from the state, its byte order."""

    def __init__(self, code: str, *flags: bool):
        if not isinstance(code, str) or not _PLAIN_TYPE_CODE.fullmatch(code):
            raise PlainPickleError(f"it holds a numpy array of {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _PickledArray(ArrayType):
    """Replacement of `numpy.ndarray`; only its state fills it."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, pickled, is_fortran, data = state
        if not isinstance(pickled, _PickledDtype) or not isinstance(data, bytes):
            raise PlainPickleError("it holds a numpy array of Python objects")
        super().__setstate__((version, shape, pickled.dtype, is_fortran, data))


def _reconstruct(array_type: object, shape: object, typecode: object) -> np.ndarray:
    """Return an empty array; its state follows."""
    return _numpy_reconstruct(_PickledArray, (0,), b"b")


def _scalar(pickled: _PickledDtype, data: bytes) -> Any:
    """Return the Python number or text of a NumPy scalar."""
    if not isinstance(pickled, _PickledDtype):
        raise PlainPickleError("it holds a Python object as a numpy number")
    return np.frombuffer(data, pickled.dtype, count=1)[0].item()


def _no_bytes() -> bytes:
    """Return the data of an array without elements; `bytes` itself would allocate any size."""
    return b""


# Replacement and name, as `torch.serialization.safe_globals` takes them.
NUMPY_GLOBALS: list[Any] = [(_PickledArray, "numpy.ndarray"), (_PickledDtype, "numpy.dtype")]
NUMPY_GLOBALS += [(_no_bytes, "builtins.bytes"), (_no_bytes, "__builtin__.bytes")]
for _core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2
    NUMPY_GLOBALS += [(_reconstruct, f"{_core}.multiarray._reconstruct"), (_scalar, f"{_core}.multiarray.scalar")]
