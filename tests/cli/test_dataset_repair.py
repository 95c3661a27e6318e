"""`st-rl dataset check` and `repair`: a damaged metadata.json, and entries that lead outside of the dataset."""

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from st_rl.cli import main
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from tests.runners.test_demonstration import on_disk, totals
from tests.storage.recordings import RecordingEnv, record, write_trajectory

COMPONENTS = {"noise": "normalized_image"}


def read_all(folder: Path) -> np.ndarray:
    data = RolloutDataset(folder, 1, device="cpu", wait_seconds=0)
    return np.concatenate([batch.observation.numpy() for batch in data])


def content_of(folder: Path) -> dict[str, bytes | str]:
    """Every entry below a folder: the content of files, the target of links, the kind of others."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "folder" if path.is_dir() else "special"
    return found


@pytest.fixture
def components(tmp_path: Path) -> Path:
    """A dataset that stores observations in components, which only its metadata.json explains."""
    record(tmp_path / "data", RecordingEnv(num_envs=3), obs_disassemble_mapping=COMPONENTS)
    return tmp_path / "data"


def damage(metadata: Path, how: str) -> None:
    text = metadata.read_text()
    content = json.loads(text)
    other = {"obs_segments": {"camera": 4}, "obs_disassemble_mapping": {}}
    metadata.unlink()
    if how != "missing":
        metadata.write_bytes(
            {
                "cut": text[: len(text) // 2].encode(),
                "empty": b"",
                "binary": b"\xff\x00\x80",
                "list": b"[1, 2]",
                "deep": b"[" * 100_000,
                "no segments": json.dumps({"env": content["env"]}).encode(),
                "other segments": json.dumps(content | other).encode(),
                "unknown compression": json.dumps(content | {"obs_disassemble_mapping": {"noise": "zip"}}).encode(),
                "segments as list": json.dumps(content | {"obs_segments": ["target", "noise"]}).encode(),
            }[how]
        )


class TestDamagedMetadata:
    @pytest.mark.parametrize(
        "how",
        [
            "cut",
            "empty",
            "binary",
            "list",
            "deep",
            "no segments",
            "other segments",
            "unknown compression",
            "segments as list",
            "missing",
        ],
    )
    def test_is_reported_by_check_and_rebuilt_by_repair(self, components, capsys, how):
        expected, metadata = read_all(components), components / "metadata.json"
        damage(metadata, how)
        before = content_of(components)
        assert main(["dataset", "check", str(components)]) == 1
        printed = capsys.readouterr().out
        assert f"{metadata}: " in printed
        assert "1 problem" in printed
        assert content_of(components) == before, "check changed the dataset"

        assert main(["dataset", "repair", str(components)]) == 0
        printed = capsys.readouterr().out
        assert f"rebuilt {metadata} from the trajectories" in printed
        after = content_of(components)
        assert {name: after[name] for name in before if "traj_" in name} == {
            name: before[name] for name in before if "traj_" in name
        }, "good files were moved"
        if how != "missing":
            assert after["damaged/damaged_metadata.json"] == before["metadata.json"]
        assert totals(components) == on_disk(components)
        np.testing.assert_array_equal(read_all(components), expected)
        assert main(["dataset", "check", str(components)]) == 0
        assert main(["dataset", "repair", str(components)]) == 0
        assert "nothing to repair" in capsys.readouterr().out

    def test_is_called_damaged(self, components, capsys):
        (components / "metadata.json").write_text("{")
        assert main(["dataset", "check", str(components)]) == 1
        assert "metadata.json: it is damaged" in capsys.readouterr().out

    def test_damaged_trajectories_are_still_moved(self, components):
        (components / "metadata.json").write_text("{")
        broken = next(components.rglob("traj_*"))
        broken.write_bytes(b"broken")
        assert main(["dataset", "repair", str(components)]) == 0
        moved = [path.name for path in (components / "damaged").iterdir()]
        assert sorted(moved) == ["damaged_metadata.json", f"{broken.parent.name}_{broken.name}"]

    def test_files_of_another_layout_do_not_make_metadata_damaged(self, components, capsys):
        write_trajectory(components, 999, (2,), observations=None, obs_foreign=np.zeros((2, 1), np.float32))
        assert main(["dataset", "check", str(components)]) == 1
        printed = capsys.readouterr().out
        assert "metadata.json: " not in printed
        assert "it has no obs_" in printed

    def test_reader_and_saver_continue_with_a_warning(self, components, caplog):
        expected = read_all(components)
        (components / "metadata.json").write_text("{")
        np.testing.assert_array_equal(read_all(components), expected)
        assert caplog.text.count("metadata.json: it is damaged") == 1
        with pytest.raises(ValueError, match="another folder"):
            record(components, RecordingEnv(num_envs=2), min_timesteps=100)
        record(components, RecordingEnv(num_envs=2), obs_disassemble_mapping=COMPONENTS, min_timesteps=100)
        assert totals(components) == on_disk(components)

    def test_reader_takes_the_first_intact_metadata(self, tmp_path):
        for name in ("a", "b"):
            record(tmp_path / name, RecordingEnv(num_envs=2), obs_disassemble_mapping=COMPONENTS)
        (tmp_path / "a" / "metadata.json").write_text("")
        data = RolloutDataset(tmp_path, 1, device="cpu", wait_seconds=0)
        assert data.read_dataset_directory()
        assert data.metadata["env"] == "RecordingEnv"

    def test_merge_and_export_use_rebuilt_metadata(self, components, tmp_path):
        (components / "metadata.json").write_text("{")
        assert main(["dataset", "export", str(components), "--output", str(tmp_path / "all")]) == 0
        assert np.load(tmp_path / "all.npz")["observations"].shape == (on_disk(components)[0], 4)
        assert main(["dataset", "merge", str(components), "--output", str(tmp_path / "merged")]) == 0
        np.testing.assert_array_equal(np.sort(read_all(tmp_path / "merged"), 0), np.sort(read_all(components), 0))

    def test_repair_never_replaces_an_earlier_damaged_file(self, tmp_path):
        for text in (b"first", b"second"):
            write_trajectory(tmp_path, 0, (2, 2))[1].write_bytes(text)
            assert main(["dataset", "repair", str(tmp_path)]) == 0
        assert {path.read_bytes() for path in (tmp_path / "damaged").iterdir()} == {b"first", b"second"}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no command may change: a dataset of its own with damage, leftovers and an empty file."""
    folder = tmp_path / "outside"
    write_trajectory(folder, 0, (3, 3))[0].write_bytes(b"broken")
    write_trajectory(folder, 1, (2,))
    (folder / "trajectory_1" / ".tmp-1-x.pickle").write_bytes(b"left")
    (folder / "trajectory_2").mkdir()
    (folder / "secret").write_bytes(b"precious")
    (folder / ".alive-collector-x").write_text("{}")
    (folder / "metadata.json").write_text('{"total_timesteps": 1}')
    return folder


def make_entry(data: Path, outside: Path, kind: str) -> Path:
    """Put something into a dataset that is not a file or folder of its own; returns its path."""
    trajectory = data / "trajectory_0"
    links = {
        "trajectory": (data / "trajectory_7", outside / "trajectory_0"),
        "saver": (data / "collector", outside),
        "frames": (trajectory / "traj_000004_000006.pickle", outside / "trajectory_1" / "traj_000000_000002.pickle"),
        "damaged": (data / "damaged", outside),
        "done": (trajectory / "done", outside / "made_by_touch"),
        "metadata": (data / "metadata.json", outside / "metadata.json"),
        "temporary": (trajectory / ".tmp-1-x.pickle", outside / "secret"),
        "heartbeat": (data / ".alive-collector-x", outside / ".alive-collector-x"),
        "inside": (data / "trajectory_8", trajectory),
        "loop": (data / "loop", data),
    }
    if kind in links:
        path, target = links[kind]
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        return path
    if kind == "socket":
        path = trajectory / "traj_000004_000006.pickle"
        with socket.socket(socket.AF_UNIX) as server:
            here = os.open(trajectory, os.O_RDONLY)
            server.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
        return path
    path = {
        "pipe of frames": trajectory / "traj_000004_000006.pickle",
        "pipe of metadata": data / "metadata.json",
        "pipe of a heartbeat": data / ".alive-collector-x",
        "pipe of done": trajectory / "done",
    }[kind]
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


KINDS = [
    "trajectory",
    "saver",
    "frames",
    "damaged",
    "done",
    "metadata",
    "temporary",
    "heartbeat",
    "inside",
    "loop",
    "socket",
    "pipe of frames",
    "pipe of metadata",
    "pipe of a heartbeat",
    "pipe of done",
]


class TestRefusedEntries:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        folder = tmp_path / "data"
        write_trajectory(folder, 0)
        write_trajectory(folder, 1, (3, 3))[0].write_bytes(b"broken")
        (folder / "metadata.json").write_text('{"total_timesteps": 5, "total_trajectories": 1}')
        return folder

    @pytest.mark.parametrize("kind", KINDS)
    def test_are_named_and_nothing_is_changed(self, data, outside, capsys, kind):
        path = make_entry(data, outside, kind)
        inside, before = content_of(data), content_of(outside)
        assert main(["dataset", "check", str(data)]) == 1
        what = "a socket" if kind == "socket" else "a named pipe" if "pipe" in kind else "a symbolic link to "
        assert f"{path}: refused, because it is {what}" in capsys.readouterr().out
        assert content_of(data) == inside
        assert main(["dataset", "repair", str(data)]) == 1
        printed = capsys.readouterr()
        assert f"{path}: refused, because it is {what}" in printed.out
        assert "remove" in printed.err
        assert content_of(data) == inside
        assert content_of(outside) == before

    def test_other_folders_of_the_dataset_are_repaired(self, data, outside, capsys):
        write_trajectory(data / "collector_a", 0, (2, 2))[0].write_bytes(b"broken")
        link = data / "collector_b" / "trajectory_0"
        write_trajectory(data / "collector_b", 1)
        link.symlink_to(outside / "trajectory_0")
        before = content_of(outside)
        assert main(["dataset", "repair", str(data)]) == 1
        assert str(link) in capsys.readouterr().out
        assert (data / "collector_a" / "damaged").is_dir()
        assert (data / "damaged").is_dir()
        assert content_of(outside) == before

    def test_dataset_named_by_a_link_is_repaired(self, data, tmp_path):
        (tmp_path / "link").symlink_to(data)
        assert main(["dataset", "repair", str(tmp_path / "link")]) == 0
        assert len(list((data / "damaged").iterdir())) == 1

    def test_folder_with_the_name_of_a_temporary_file_is_kept(self, data):
        (data / ".tmp-folder").mkdir()
        (data / "trajectory_1" / ".tmp-folder").mkdir()
        assert main(["dataset", "repair", str(data)]) == 0
        assert (data / ".tmp-folder").is_dir()

    def test_deeply_nested_folders_are_searched(self, data):
        folder = data
        for _ in range(300):
            folder = folder / "d"
            folder.mkdir()
        write_trajectory(folder, 0)
        assert main(["dataset", "check", str(data / "d")]) == 0


class TestDoneFiles:
    def test_saver_leaves_them_out(self, tmp_path):
        record(tmp_path / "data", RecordingEnv(num_envs=3), done_files=False)
        assert {path.name for path in (tmp_path / "data").rglob("*") if path.is_file()} == {
            "metadata.json",
            *(path.name for path in tmp_path.rglob("traj_*")),
        }
        assert main(["dataset", "repair", str(tmp_path / "data")]) == 0
        assert not list(tmp_path.rglob("done"))

    def test_repair_of_damaged_metadata_adds_none(self, tmp_path):
        record(tmp_path, RecordingEnv(num_envs=3), done_files=False)
        (tmp_path / "metadata.json").write_text("{")
        assert main(["dataset", "repair", str(tmp_path)]) == 0
        assert not list(tmp_path.rglob("done"))
        assert json.loads((tmp_path / "metadata.json").read_text())["done_files"] is False

    def test_reader_finds_finished_episodes_without_them(self, tmp_path):
        record(tmp_path, RecordingEnv(num_envs=3), done_files=False)
        data = RolloutDataset(tmp_path, 1, device="cpu", wait_seconds=0, finished_only=True)
        assert data.read_dataset_directory()
        assert len(data.all_available_trajectory_dirs) == totals(tmp_path)[1] < len(list(tmp_path.glob("trajectory_*")))

    @pytest.mark.parametrize("before", [False, True])
    @pytest.mark.parametrize("after", [False, True])
    def test_merge_adds_them_or_leaves_them_out(self, tmp_path, before, after):
        record(tmp_path / "data", RecordingEnv(num_envs=3), done_files=before)
        option = [] if after else ["--no-done-files"]
        assert main(["dataset", "merge", str(tmp_path / "data"), "--output", str(tmp_path / "all"), *option]) == 0
        assert len(list((tmp_path / "all").rglob("done"))) == (totals(tmp_path / "data")[1] if after else 0)
        assert totals(tmp_path / "all") == totals(tmp_path / "data")
        assert main(["dataset", "repair", str(tmp_path / "all")]) == 0
        assert len(list((tmp_path / "all").rglob("done"))) == (totals(tmp_path / "data")[1] if after else 0)
