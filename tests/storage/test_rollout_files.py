"""Frame files and the base class of their datasets."""

import os
import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.base import RolloutFileBase
from st_rl.storage.rollout_files.frames import FrameFileError, read_frames, write_frames
from st_rl.utils.collections import namedarraytuple

Pair = namedarraytuple("Pair", ["number", "timeout"])


def frames(count: int = 5) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "observations": generator.normal(size=(count, 3)).astype(np.float32),
        "dones": np.eye(count, 1, dtype=np.uint8),
        "timeouts": np.arange(count) % 2 == 0,
    }


class TestFrames:
    @pytest.mark.parametrize("suffix", ["pickle", "npz"])
    def test_write_and_read_round_trip(self, tmp_path, suffix):
        path = tmp_path / f"traj_000010_000015.{suffix}"
        write_frames(path, frames())
        read = read_frames(path)
        assert list(read) == list(frames())
        for name, array in frames().items():
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)
        assert os.listdir(tmp_path) == [path.name]

    @pytest.mark.parametrize("protocol", range(6))
    def test_pickles_of_every_protocol_and_one_tuples_are_read(self, tmp_path, protocol):
        path = tmp_path / "traj_0_5.pkl"
        content = frames()
        path.write_bytes(pickle.dumps({**content, "observations": (content["observations"],)}, protocol=protocol))
        np.testing.assert_array_equal(read_frames(path)["observations"], content["observations"])

    def test_only_known_instructions_are_read_fast(self, tmp_path):
        path = tmp_path / "traj_0_5.pickle"
        for seed in (0, 1):  # the second file has the instructions of the first
            content = {"observations": np.random.default_rng(seed).normal(size=(5, 30))}
            write_frames(path, content)
            np.testing.assert_array_equal(read_frames(path)["observations"], content["observations"])
        data = path.read_bytes()
        named = data.replace(b"_reconstruct", b"_reconstrucT")
        assert len(named) == len(data)
        path.write_bytes(named)
        with pytest.raises(FrameFileError, match=r"multiarray\._reconstrucT"):
            read_frames(path)

    def test_rejects_tuples_in_tuples_as_key(self, tmp_path):
        path = tmp_path / "traj_0_5.pickle"
        path.write_bytes(b"\x80\x04})" + b"2\x86" * 60 + b"K\x01s.")
        with pytest.raises(FrameFileError, match="tuple as key"):
            read_frames(path)

    @pytest.mark.parametrize("suffix", ["pickle", "npz"])
    def test_rejects_truncated_file(self, tmp_path, suffix):
        path = tmp_path / f"traj_000000_000005.{suffix}"
        write_frames(path, frames())
        whole = path.read_bytes()
        for length in {0, 1, len(whole) - 1} | {random.Random(0).randrange(len(whole)) for _ in range(60)}:
            path.write_bytes(whole[:length])
            with pytest.raises(FrameFileError):
                read_frames(path)

    def test_rejects_pickle_that_runs_code(self, tmp_path):
        class Malicious:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "caught"),)

        for content in (Malicious(), {"observations": Malicious()}, {"observations": (np.zeros((5, 1)), Malicious())}):
            path = tmp_path / "traj_0_5.pickle"
            path.write_bytes(pickle.dumps(content))
            with pytest.raises(FrameFileError, match="mkdir"):
                read_frames(path)
        assert not (tmp_path / "caught").exists()

    def test_rejects_array_with_forged_addresses(self, tmp_path):
        class Forged:
            def __reduce__(self):
                return np.ndarray, ((5,), "O", b"\0" * 40)

        path = tmp_path / "traj_0_5.pickle"
        path.write_bytes(pickle.dumps({"observations": Forged()}))
        with pytest.raises(FrameFileError, match=r"calls numpy\.ndarray"):
            read_frames(path)

    @pytest.mark.parametrize("protocol", [2, 4])
    def test_arrays_are_plain_numpy_arrays(self, tmp_path, protocol):
        path = tmp_path / "traj_0_5.pickle"
        path.write_bytes(pickle.dumps(frames(), protocol=protocol))
        assert {type(array) for array in read_frames(path).values()} == {np.ndarray}

    def test_rejects_file_without_frames(self, tmp_path):
        path = tmp_path / "traj_5_5.pickle"
        write_frames(path, {"observations": np.zeros((0, 3))})
        with pytest.raises(FrameFileError, match="no frames"):
            read_frames(path)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ([1, 2], "a list, not a dictionary"),
            ({"observations": "text"}, "'observations' is not an array"),
            ({"observations": np.array([None] * 5)}, "an array of Python objects"),
            ({"observations": np.zeros((4, 2))}, "its name covers 5 frames"),
            ({5: np.zeros((5, 2))}, "named by text"),
        ],
    )
    def test_rejects_foreign_content_with_reason(self, tmp_path, content, reason):
        path = tmp_path / "traj_0_5.pickle"
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(FrameFileError, match=reason):
            read_frames(path)

    def test_failed_write_leaves_no_file(self, tmp_path, monkeypatch):
        def full(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            write_frames(tmp_path / "traj_0_5.pickle", frames())
        assert os.listdir(tmp_path) == []


class TestLayout:
    def test_frame_ranges(self):
        assert layout.frame_range("traj_100_200.pickle") == (100, 200)
        assert layout.frame_range("/somewhere/traj_000064_000128.npz") == (64, 128)
        with pytest.raises(ValueError, match=r"notes\.txt"):
            layout.frame_range("notes.txt")

    def test_frame_files_lists_complete_files_in_order(self, tmp_path):
        names = ["traj_100_120.pkl", "traj_20_100.npz", "traj_000000_000020.pickle"]
        for name in [*names, ".tmp-1-traj_120_140.pickle", "done", "traj_1_2.pickle.tmp", "traj_a_b.pickle"]:
            (tmp_path / name).touch()
        assert layout.frame_files(tmp_path) == names[::-1]
        assert layout.frame_files(tmp_path / "missing") == []

    def test_trajectory_folders_are_in_natural_order(self, tmp_path):
        for index in (10, 9, 100, 1):
            (tmp_path / "deep" / f"trajectory_{index}").mkdir(parents=True)
        found = [os.path.basename(folder) for folder in layout.trajectory_folders(tmp_path)]
        assert found == ["trajectory_1", "trajectory_9", "trajectory_10", "trajectory_100"]


class Counter(RolloutFileBase):
    """Returns 0, 1, 2, ... for every environment in a reused buffer of any container type."""

    def __init__(self, kind: str, num_envs: int = 3):
        super().__init__("nowhere", num_envs, device="cpu")
        self.kind = kind
        self.count = 0
        self.calls: list[object] = []
        self.buffers: dict[object, object] = {}

    def reset_all(self):
        self.calls.append("all")
        self.count = 0

    def refresh_handlers(self, env_ids=None):
        self.calls.append(list(env_ids or []))

    def get_buffer(self, num_transitions_per_env=None):
        if num_transitions_per_env not in self.buffers:
            size = (self.num_envs,) if num_transitions_per_env is None else (num_transitions_per_env, self.num_envs)
            number, timeout = torch.zeros(size), torch.zeros(size, dtype=torch.bool)
            kinds = {"tensor": number, "dict": {"number": number, "timeout": timeout}, "named": Pair(number, timeout)}
            self.buffers[num_transitions_per_env] = kinds[self.kind]
        return self.buffers[num_transitions_per_env]

    def fill_transition(self, buffer, env_ids=None):
        number = {"tensor": lambda: buffer, "dict": lambda: buffer["number"], "named": lambda: buffer.number}
        number[self.kind]().fill_(self.count)
        self.count += 1


class TestBase:
    def test_is_abstract_and_an_iterable_dataset(self):
        assert issubclass(RolloutFileBase, IterableDataset)
        with pytest.raises(TypeError, match="abstract"):
            RolloutFileBase("nowhere", 2)  # pyright: ignore[reportAbstractUsage]

    def test_attributes(self):
        counter = Counter("tensor")
        assert (counter.data_dir, counter.num_envs, counter.device) == ("nowhere", 3, "cpu")
        assert counter.all_env_ids.tolist() == [0, 1, 2]
        assert counter.calls == []

    def test_reset_of_all_or_of_some(self):
        counter = Counter("tensor")
        counter.reset()
        counter.reset([0, 1, 2])
        counter.reset([1])
        assert counter.calls == ["all", "all", [1]]

    @pytest.mark.parametrize("kind", ["tensor", "dict", "named"])
    def test_batches_of_every_kind_of_buffer(self, kind):
        counter = Counter(kind)
        get = {"tensor": lambda b: b, "dict": lambda b: b["number"], "named": lambda b: b.number}[kind]
        assert get(counter.get_batch()).tolist() == [0, 0, 0]
        assert get(counter.get_batch(2)).tolist() == [[1, 1, 1], [2, 2, 2]]
        assert counter.calls == ["all"]
        _, infos = counter.get_transition_batch()
        assert list(infos) == ([] if kind == "tensor" else ["time_outs"])

    def test_iteration_resets_and_returns_new_tensors(self):
        counter = Counter("tensor")
        counter.get_batch()
        stream = iter(counter)
        first, second = next(stream), next(stream)
        assert first.tolist() == [0, 0, 0]
        assert second.tolist() == [1, 1, 1]
        assert counter.calls == ["all", "all"]
