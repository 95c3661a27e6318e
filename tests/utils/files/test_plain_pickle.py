import io
import os
import pickle
import sys
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from st_rl.utils.files import load_plain_pickle
from st_rl.utils.files.plain_pickle import PlainPickleError


def plain_data():
    generator = np.random.default_rng(0)
    return {
        "observations": generator.normal(size=(5, 3)).astype(np.float32),
        "fortran": np.asfortranarray(generator.normal(size=(4, 2))),
        "dones": np.array([[0], [1]], dtype=np.uint8),
        "timeouts": np.array([True, False]),
        "empty": np.zeros((0, 3)),
        "number": np.float64(2.5),
        "dtype": np.dtype("<f4"),
        "names": np.array(["left", "right"]),
        "nested": [1, 2.5, "text", b"bytes", None, True, (1, {2}, frozenset({3})), OrderedDict(a=1), 1 + 2j],
    }


def check(loaded, expected):
    assert list(loaded) == list(expected)
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert loaded[key].dtype == value.dtype
            np.testing.assert_array_equal(loaded[key], value)
        else:
            assert loaded[key] == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_containers_round_trip(tmp_path, protocol):
    path = tmp_path / "traj_000000_000005.pickle"
    path.write_bytes(pickle.dumps(plain_data(), protocol=protocol))
    check(load_plain_pickle(path), plain_data())
    with open(path, "rb") as file:
        check(load_plain_pickle(file), plain_data())
    loaded = load_plain_pickle(path)["observations"]
    loaded += 1  # writable


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_module_paths_of_numpy_1_and_2_are_both_read(protocol):
    """A pickle refers to `numpy.core` or `numpy._core`, depending on the numpy that wrote it."""
    data = pickle.dumps({"a": np.arange(4.0), "b": np.float32(1.5)}, protocol=protocol)
    here, there = (b"numpy._core", b"numpy.core") if b"numpy._core" in data else (b"numpy.core", b"numpy._core")
    assert here in data
    if protocol >= 4:  # strings and frames are stored with their length
        module = b"numpy._core.multiarray" if here == b"numpy._core" else b"numpy.core.multiarray"
        for name in (module, module.replace(b"multiarray", b"numeric")):
            other = name.replace(here, there)
            data = data.replace(bytes([len(name)]) + name, bytes([len(other)]) + other)
        frame = data.index(b"\x95")
        data = data[:frame] + data[frame + 9 :]
    else:
        data = data.replace(here, there)
    assert here not in data
    loaded = load_plain_pickle(io.BytesIO(data))
    np.testing.assert_array_equal(loaded["a"], np.arange(4.0))
    assert loaded["b"] == 1.5


class Attack:
    """Creates a folder when it is unpickled without protection."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_rejects_pickle_that_calls_other_functions(tmp_path, protocol):
    trace = tmp_path / "trace"
    attacks = [
        Attack(os.mkdir, str(trace)),
        Attack(eval, f"__import__('os').mkdir({str(trace)!r})"),
        Attack(getattr, [], "append"),
        Attack(Path, str(trace)),
        Attack(np.load, "x.npy"),
    ]
    for attack in attacks:
        data = pickle.dumps({"observations": np.ones(3), "other": [attack]}, protocol=protocol)
        path = tmp_path / "evil.pickle"
        path.write_bytes(data)
        with pytest.raises(PlainPickleError, match=r"evil\.pickle: it names "):
            load_plain_pickle(path)
        assert not trace.exists()


def test_rejects_object_arrays_and_dotted_names(tmp_path):
    trace = tmp_path / "trace"
    array = np.empty(1, dtype=object)
    array[0] = Attack(os.mkdir, str(trace))
    with pytest.raises(PlainPickleError, match="it names"):
        load_plain_pickle(io.BytesIO(pickle.dumps(array)))
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93."
    with pytest.raises(PlainPickleError, match=r"numpy\.ndarray\.__init__"):
        load_plain_pickle(io.BytesIO(dotted))
    extension = b"\x80\x02\x82\x01."
    with pytest.raises(PlainPickleError, match="extension code"):
        load_plain_pickle(io.BytesIO(extension))
    assert not trace.exists()


class Forged:
    """An object array with addresses from the pickle, by numpy's constructor."""

    def __reduce__(self):
        return np.ndarray, ((1,), "O", b"\0" * 8)


class ForgedType:
    """An object dtype that claims to hold no objects, so that bytes become an address."""

    def __reduce__(self):
        state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
        return np.dtype, ("V8", False, True), state


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_rejects_forged_object_addresses(protocol):
    with pytest.raises(PlainPickleError, match=r"calls numpy\.ndarray"):
        load_plain_pickle(io.BytesIO(pickle.dumps({"a": Forged()}, protocol=protocol)))
    with pytest.raises(PlainPickleError, match="denies its objects"):
        load_plain_pickle(io.BytesIO(pickle.dumps({"a": ForgedType()}, protocol=protocol)))


def test_arrays_are_plain_numpy_arrays():
    assert type(load_plain_pickle(io.BytesIO(pickle.dumps(np.ones(3))))) is np.ndarray


def test_rejects_damaged_pickle(tmp_path):
    data = pickle.dumps(plain_data())
    path = tmp_path / "cut.pickle"
    for length in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:length])
        with pytest.raises(PlainPickleError, match=r"cut\.pickle"):
            load_plain_pickle(path)
    path.write_bytes(b"no pickle at all")
    with pytest.raises(PlainPickleError, match=r"cut\.pickle"):
        load_plain_pickle(path)
    with pytest.raises(FileNotFoundError):
        load_plain_pickle(tmp_path / "missing.pickle")


def joblib_like_dump(array, aligned=True):
    """A pickle with array bytes after the wrapper object, in joblib's layout."""
    stream = io.BytesIO()
    wrapper_module = type(sys)("joblib.numpy_pickle")

    class NumpyArrayWrapper:
        pass

    NumpyArrayWrapper.__module__ = "joblib.numpy_pickle"
    NumpyArrayWrapper.__qualname__ = "NumpyArrayWrapper"
    wrapper_module.NumpyArrayWrapper = NumpyArrayWrapper  # pyright: ignore[reportAttributeAccessIssue]
    note = NumpyArrayWrapper()
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    note.__dict__.update(
        subclass=np.ndarray,
        shape=array.shape,
        order=order,
        dtype=array.dtype,
        allow_mmap=True,
        numpy_array_alignment_bytes=16 if aligned else None,
    )
    sys.modules["joblib"], sys.modules["joblib.numpy_pickle"] = type(sys)("joblib"), wrapper_module
    try:
        head = pickle.dumps(note, protocol=3)[:-1]  # without the final stop
    finally:
        del sys.modules["joblib"], sys.modules["joblib.numpy_pickle"]
    stream.write(head)
    if aligned:
        stream.write(bytes([5]) + b"\xff" * 5)
    stream.write(array.tobytes(order="F" if order == "F" else "C"))
    stream.write(b".")
    return stream.getvalue()


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("order", ["C", "F"])
def test_reads_joblib_arrays_compressed_or_not(aligned, order):
    array = np.asarray(np.arange(12.0, dtype=np.float32).reshape(3, 4), order=order)
    data = joblib_like_dump(array, aligned)
    for stored in (data, zlib.compress(data)):
        loaded = load_plain_pickle(io.BytesIO(stored))
        assert loaded.dtype == array.dtype
        np.testing.assert_array_equal(loaded, array)
