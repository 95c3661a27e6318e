import errno
import json
import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

from st_rl.utils.files import (
    CheckpointError,
    atomic_write,
    load_checkpoint,
    newest_checkpoint,
    remove_temporary_files,
    save_checkpoint,
    write_json,
)

Pair = namedtuple("Pair", ["hidden", "cell"])


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_atomic_write_shows_the_file_only_when_it_is_complete(tmp_path):
    path = tmp_path / "model_5.pt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".pt"
        assert not temporary.name.startswith("model_")  # Isaac Lab picks by re.match("model_.*.pt")
    assert path.read_text() == "half"
    assert names(tmp_path) == ["model_5.pt"]


def fail_halfway(path, failure):
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        raise failure


def test_atomic_write_keeps_the_old_file_when_the_block_fails(tmp_path):
    path = tmp_path / "data.json"
    path.write_text("old")
    for failure in (ValueError, KeyboardInterrupt):
        with pytest.raises(failure):
            fail_halfway(path, failure)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["data.json"]


def test_temporary_files_of_a_folder_that_another_process_removes(tmp_path):
    folder, stopped = tmp_path / "trajectory_0", threading.Event()

    def create_and_remove() -> None:
        while not stopped.is_set():
            folder.mkdir()
            folder.rmdir()

    thread = threading.Thread(target=create_and_remove)
    thread.start()
    try:
        assert {remove_temporary_files(folder) for _ in range(3000)} == {0}
    finally:
        stopped.set()
        thread.join()


def test_checkpoint_round_trip_keeps_tensors_and_containers(tmp_path):
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    payload = {
        "model_state_dict": module.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "iter": 7,
        "infos": None,
        "mixed": [1, 2.5, "text", (True, {"a"}), 1 << 70, torch.int64],
    }
    path = tmp_path / "run" / "model_7.pt"
    save_checkpoint(payload, path)
    loaded = load_checkpoint(path)
    assert loaded["iter"] == 7
    assert loaded["infos"] is None
    assert loaded["mixed"] == payload["mixed"]
    torch.testing.assert_close(loaded["model_state_dict"], module.state_dict(), rtol=0, atol=0)
    twin = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    twin.load_state_dict(loaded["optimizer_state_dict"])
    assert names(path.parent) == ["model_7.pt"]


def test_checkpoint_converts_to_plain_values(tmp_path):
    big = torch.zeros(1000, 1000)
    payload = {
        "array": np.arange(6.0).reshape(2, 3),
        "scalar_array": np.array(3),
        "number": np.float32(0.5),
        np.str_("key"): np.int64(4),
        "pair": Pair(torch.ones(2), None),
        "path": Path("runs") / "a",
        "view": big[0],
        "state": OrderedDict(view=big[1]),
    }
    path = tmp_path / "model_1.pt"
    save_checkpoint(payload, path)
    assert path.stat().st_size < 100_000  # the large storage behind the views is not saved
    loaded = load_checkpoint(path)
    assert torch.equal(loaded["array"], torch.arange(6.0, dtype=torch.float64).view(2, 3))
    assert loaded["scalar_array"].shape == ()
    assert loaded["number"] == 0.5
    assert loaded["key"] == 4
    assert type(loaded["pair"]) is tuple
    assert loaded["path"] == os.path.join("runs", "a")
    assert isinstance(loaded["state"], OrderedDict)
    assert isinstance(payload["array"], np.ndarray)
    assert payload["view"].untyped_storage().nbytes() == big.nbytes


def test_checkpoint_rejects_unloadable_value_with_location(tmp_path):
    path = tmp_path / "model_1.pt"
    with pytest.raises(TypeError, match=r"\['infos'\]\['env'\]\[1\] is a .*Malicious"):
        save_checkpoint({"infos": {"env": [1, Malicious(tmp_path / "trace")]}}, path)
    with pytest.raises(TypeError, match="numpy array of object"):
        save_checkpoint({"infos": np.array([None])}, path)
    assert names(tmp_path) == []


def test_unwritable_folder_is_one_clear_error(tmp_path):
    blocker = tmp_path / "run"
    blocker.write_text("a file where a folder should be")
    with pytest.raises(OSError, match=r"cannot write checkpoint .*model_1\.pt.*log_dir"):
        save_checkpoint({"iter": 1}, blocker / "model_1.pt")


def test_read_only_folder_is_one_clear_error(tmp_path, monkeypatch):
    path = tmp_path / "model_1.pt"
    save_checkpoint({"iter": 1}, path)

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match=r"model_1\.pt: Read-only file system; .*writable"):
        save_checkpoint({"iter": 2}, path)
    assert load_checkpoint(path)["iter"] == 1
    assert names(tmp_path) == ["model_1.pt"]


def test_full_disk_is_one_clear_error_and_the_last_checkpoint_survives(tmp_path):
    script = f"""
import resource, signal, torch
from st_rl.utils.files import save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = {str(tmp_path / "model_1.pt")!r}
save_checkpoint({{"iter": 1}}, path)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint({{"iter": 2, "big": torch.zeros(1_000_000)}}, path)
except OSError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=os.getcwd())
    assert "cannot write checkpoint" in result.stdout
    assert "make room" in result.stdout
    assert load_checkpoint(tmp_path / "model_1.pt")["iter"] == 1
    assert names(tmp_path) == ["model_1.pt"]


def test_rejects_truncated_checkpoint(tmp_path):
    whole = tmp_path / "model_1.pt"
    save_checkpoint({"model_state_dict": torch.nn.Linear(5, 5).state_dict(), "iter": 1}, whole)
    data = whole.read_bytes()
    cut = tmp_path / "model_2.pt"
    for length in [*range(0, len(data), max(1, len(data) // 60)), len(data) - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"model_2\.pt: .*(damaged|incomplete).*another model_"):
            load_checkpoint(cut)


FOREIGN = [b"hello, this is no checkpoint", b"\x80\x02}q\x00.", b"PK\x03\x04 no zip", b"\x93NUMPY\x01\x00v\x00", b"{}"]


@pytest.mark.parametrize("content", FOREIGN)
def test_rejects_foreign_file(tmp_path, content):
    path = tmp_path / "model_3.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model_3\.pt"):
        load_checkpoint(path)


def test_rejects_malicious_checkpoint_without_running_it(tmp_path):
    trace = tmp_path / "trace"
    for number, write in enumerate([torch.save, lambda obj, path: path.write_bytes(pickle.dumps(obj, protocol=2))]):
        path = tmp_path / f"model_{number}.pt"
        write({"iter": 1, "infos": Malicious(trace)}, path)
        with pytest.raises(CheckpointError, match=rf"model_{number}\.pt: refused.*mkdir.*trust_pickle=True") as caught:
            load_checkpoint(path)
        assert "weights_only" not in str(caught.value)
        assert not trace.exists()


def test_numpy_values_load_as_plain_data(tmp_path):
    path = tmp_path / "model_1.pt"
    numbers = [np.float64(0.5), np.float32(-1.5), np.int64(1 << 40), np.uint8(7), np.bool_(True), np.complex64(1 + 2j)]
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(6, dtype=">i4").reshape(2, 3).T, np.array(3), np.zeros((0, 4))]
    torch.save({"numbers": numbers, "arrays": arrays, "name": np.str_("walk")}, path)
    loaded = load_checkpoint(path)
    assert loaded["numbers"] == [number.item() for number in numbers]
    assert {type(number) for number in loaded["numbers"]} == {float, int, bool, complex}
    assert loaded["name"] == "walk"
    for array, expected in zip(loaded["arrays"], arrays, strict=True):
        assert array.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(array, expected)
    save_checkpoint(loaded, path)  # a manipulated checkpoint is saved again
    assert torch.equal(load_checkpoint(path)["arrays"][0], torch.arange(6.0, dtype=torch.float64).view(2, 3))


class Reduced:
    """Pickles as a call that a file may forge."""

    def __init__(self, function, *args, state=None):
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    "value",
    [
        np.array([None]),
        np.array([(1, None)], dtype=[("a", "i8"), ("b", "O")]),
        Reduced(np.ndarray, (1 << 33,), "f8"),
        Reduced(np.dtype, "O"),
        Reduced(bytes, 1 << 33),
        Reduced(np.float64(0).__reduce__()[0], 1, b"12345678"),
        Reduced(
            np.empty(0).__reduce__()[0], np.ndarray, (1 << 33,), b"b", state=(1, (1 << 33,), np.dtype("f8"), 0, b"")
        ),
    ],
)
def test_rejects_forged_numpy_values(tmp_path, value):
    path = tmp_path / "model_1.pt"
    torch.save({"iter": 1, "infos": value}, path)
    with pytest.raises(CheckpointError, match=r"model_1\.pt"):
        load_checkpoint(path)


def test_trust_pickle_opens_a_pickle(tmp_path):
    path = tmp_path / "model_1.pt"
    torch.save({"iter": 1, "infos": Pair(1, 2)}, path)
    with pytest.raises(CheckpointError, match="Pair"):
        load_checkpoint(path)
    assert load_checkpoint(path, trust_pickle=True)["infos"] == Pair(1, 2)


def test_rejects_checkpoint_that_is_not_a_dict(tmp_path):
    path = tmp_path / "model_1.pt"
    torch.save(torch.ones(3), path)
    with pytest.raises(CheckpointError, match="holds a Tensor"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="is a folder"):
        load_checkpoint(tmp_path)


def test_missing_checkpoint_lists_the_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model_9\.pt; the folder .* is empty"):
        load_checkpoint(tmp_path / "model_9.pt")
    for number in (2, 10, 100):
        (tmp_path / f"model_{number}.pt").touch()
    with pytest.raises(FileNotFoundError, match=r"holds model_2\.pt, model_10\.pt, model_100\.pt"):
        load_checkpoint(tmp_path / "model_9.pt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_checkpoint(tmp_path / "nowhere" / "model_9.pt")


def test_map_location_is_applied(tmp_path):
    path = tmp_path / "model_1.pt"
    save_checkpoint({"weight": torch.ones(2)}, path)
    assert load_checkpoint(path, map_location="meta")["weight"].device.type == "meta"
    assert load_checkpoint(path, map_location={"cuda:1": "cuda:0"})["weight"].device.type == "cpu"


def test_newest_checkpoint_is_the_largest_number_of_the_exact_name(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "nowhere") is None
    for name in ("model_999999.pt", "model_1000000.pt", "model_2000000.pt.tmp", "my_model_3000000.pt", "model_best.pt"):
        (tmp_path / name).touch()
    assert newest_checkpoint(tmp_path) == tmp_path / "model_1000000.pt"


def test_json_keeps_order_and_converts_other_values_to_text(tmp_path):
    path = tmp_path / "config.json"
    given = {
        "zeta": 1,
        "alpha": (1, 2.5, None, True),
        3: torch.device("cpu"),
        "class": Path,
        "array": np.arange(3),
        "tensor": torch.tensor(0.25),
        "nan": float("nan"),
        "numbers": [np.float32(0.5), np.int64(2)],
    }
    write_json(path, given)
    loaded = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(loaded) == ["zeta", "alpha", "3", "class", "array", "tensor", "nan", "numbers"]
    assert loaded["alpha"] == [1, 2.5, None, True]
    assert loaded["3"] == "cpu"
    assert loaded["class"] == str(Path)
    assert loaded["array"] == [0, 1, 2]
    assert loaded["tensor"] == 0.25
    assert loaded["nan"] == "nan"
    assert loaded["numbers"] == [0.5, 2]
    assert '\n    "zeta"' in path.read_text()
