"""`st-rl collect`, `dagger` and `dataset`, as a user would call them."""

import json
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

from st_rl.cli import main
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from st_rl.utils.files.heartbeat import Heartbeat
from tests.runners.test_demonstration import load, on_disk, totals
from tests.storage.recordings import RecordingEnv, record, write_trajectory

SMALL = [
    "--num-envs",
    "8",
    "--runner.num-steps-per-env",
    "8",
    "--runner.save-interval",
    "1",
    "--runner.engine",
    "eager",
]


def error_line(capsys) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    pytest.importorskip("mujoco")
    folder = tmp_path_factory.mktemp("work") / "teacher"
    assert main(["train", "balance", "--iterations", "2", *SMALL, "--log-dir", str(folder)]) == 0
    return folder


class TestCollect:
    def test_collect_records_a_run(self, teacher, tmp_path, capsys):
        folder = tmp_path / "demos"
        arguments = [
            "collect",
            str(teacher),
            "--steps",
            "300",
            "--episodes",
            "3",
            "--num-envs",
            "6",
            "--output",
            str(folder),
        ]
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert "finished trajectories in" in printed
        assert "st-rl dataset info" in printed
        assert totals(folder) == on_disk(folder)
        assert totals(folder)[0] >= 300
        metadata = json.loads((folder / "metadata.json").read_text())
        assert metadata["config"]["task"] == "balance"
        content = load(next(folder.rglob("traj_*.pickle")))
        assert content["policy_iterations"][0] in (1, 2)
        assert not list(folder.rglob(".*"))

    def test_collect_reports_a_complete_dataset(self, teacher, tmp_path, capsys):
        arguments = ["collect", str(teacher), "--steps", "64", "--num-envs", "2", "--output", str(tmp_path / "demos")]
        assert main(arguments) == 0
        assert "Nothing to collect" not in capsys.readouterr().out
        assert main(arguments) == 0
        assert "already has 128 steps" in capsys.readouterr().out

    def test_collect_normalizes_observations_as_in_training(self, teacher, tmp_path):
        import torch

        from st_rl.cli.support.run_folders.loaded_run import LoadedRun
        from st_rl.cli.support.run_folders.run_folder import RunFolder

        folder = tmp_path / "demos"
        options = [
            "--steps",
            "64",
            "--num-envs",
            "4",
            "--checkpoint",
            "last",
            "--format",
            "npz",
            "--output",
            str(folder),
        ]
        assert main(["collect", str(teacher), *options]) == 0
        content = load(next(folder.rglob("traj_*.npz")))
        saved = LoadedRun(RunFolder(teacher))
        env = saved.source.make(saved.env_config, 1, "cpu", 0)
        policy = saved.load_policy(env, teacher / "model_2.pt")
        expected = policy(torch.from_numpy(content["observations"])).detach().numpy()
        np.testing.assert_allclose(content["actions"], expected, rtol=1e-4, atol=1e-5)

    def test_collect_extends_an_existing_dataset(self, teacher, tmp_path):
        for steps in ("200", "400"):
            assert main(["collect", str(teacher), "--steps", steps, "--num-envs", "4", "--output", str(tmp_path)]) == 0
        assert totals(tmp_path) == on_disk(tmp_path)
        assert 400 <= totals(tmp_path)[0] < 400 + 4 * 64

    def test_interrupted_collect_leaves_complete_trajectories(self, teacher, tmp_path):
        def interrupt():
            while not list(tmp_path.rglob("traj_*")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        arguments = ["--steps", "1000000000", "--num-envs", "4", "--output", str(tmp_path)]
        assert main(["collect", str(teacher), *arguments]) == 130
        thread.join()
        assert totals(tmp_path) == on_disk(tmp_path)


class TestDagger:
    def test_dagger_collector_and_student_share_a_dataset(self, teacher, tmp_path, monkeypatch):
        quick = tuple(0.05 if value == 2.0 else value for value in RolloutDataset.__init__.__defaults__)
        monkeypatch.setattr(RolloutDataset.__init__, "__defaults__", quick)
        monkeypatch.setattr("st_rl.runners.dagger_saver._CHECK_INTERVAL_S", 0.05)
        student, data = tmp_path / "student", tmp_path / "data"
        arguments = [
            str(teacher),
            str(student),
            "--num-envs",
            "4",
            "--rollout-length",
            "8",
            "--collector-id",
            "a",
            "--seed",
            "3",
        ]
        codes = []
        collector = threading.Thread(target=lambda: codes.append(main(["dagger", *arguments])))
        collector.start()
        distill = ["distill", str(teacher), "balance", "--dataset", str(data), "--iterations", "10", *SMALL]
        assert main([*distill, "--runner.save-interval", "2", "--log-dir", str(student)]) == 0
        collector.join(timeout=30)
        assert codes == [0]
        folder = data / "collector_a"
        assert totals(folder) == on_disk(folder)
        stamps = {int(i) for path in folder.rglob("traj_*") for i in load(path)["policy_iterations"]}
        assert max(stamps) > 1, "the collector never took over a newer student"
        metadata = json.loads((folder / "metadata.json").read_text())
        assert metadata["training_policy_logdir"] == str(student)
        config = json.loads((student / "config.json").read_text())
        assert config["runner"]["pretrain_dataset"]["data_dir"] == str(data)
        rows = (student / "progress.csv").read_text()
        assert "Perf/dataset_waiting_fraction" in rows

    def test_dagger_reports_a_missing_student(self, teacher, tmp_path, capsys):
        assert main(["dagger", str(teacher), str(tmp_path / "nobody"), "--wait-seconds", "0"]) == 1
        assert "no training started" in error_line(capsys)

    def test_dagger_needs_output_if_the_student_has_no_dataset(self, teacher, capsys):
        assert main(["dagger", str(teacher), str(teacher), "--num-envs", "2"]) == 1
        assert "--output" in error_line(capsys)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    record(tmp_path / "data", RecordingEnv(num_envs=3, termination_prob=0.1, num_privileged_obs=7))
    return tmp_path / "data"


class TestDataset:
    def test_help_and_unknown_actions(self, capsys):
        assert main(["dataset", "--help"]) == 0
        assert "repair" in capsys.readouterr().out
        assert main(["dataset", "checks", "x"]) == 2
        assert "did you mean 'check'" in error_line(capsys)
        assert main(["dataset", "info", "nowhere"]) == 1
        assert "no folder nowhere" in error_line(capsys)

    def test_info(self, recorded, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        assert main(["dataset", "info", str(recorded)]) == 0
        printed = capsys.readouterr().out
        steps, finished = on_disk(recorded)
        assert f"{steps:,}" in printed
        assert f"{finished:,}" in printed
        assert "observations 4, privileged_observations 7, actions 2" in printed
        assert "EchoPolicy of RecordingEnv" in printed

    def test_check_corrects_the_totals(self, recorded, capsys):
        metadata = json.loads((recorded / "metadata.json").read_text())
        (recorded / "metadata.json").write_text(json.dumps({**metadata, "total_timesteps": 7}))
        assert main(["dataset", "check", str(recorded)]) == 0
        assert "metadata.json had 7" in capsys.readouterr().out
        assert totals(recorded) == on_disk(recorded)
        assert json.loads((recorded / "metadata.json").read_text())["env"] == "RecordingEnv"

    def test_check_counts_without_metadata(self, recorded):
        (recorded / "metadata.json").write_text('{"env": "E", "total_timesteps": null}')
        assert main(["dataset", "check", str(recorded)]) == 0
        assert totals(recorded) == on_disk(recorded)

    def test_repair_cuts_at_gaps_and_keeps_moved_files(self, tmp_path, capsys):
        _, middle, last = write_trajectory(tmp_path, 0, (3, 3, 3))
        write_trajectory(tmp_path, 1, (2,))
        for index in (0, 5):
            (tmp_path / f"trajectory_{index}").mkdir(exist_ok=True)
            (tmp_path / f"trajectory_{index}" / "done").touch()
        middle.write_bytes(b"broken")
        assert main(["dataset", "repair", str(tmp_path)]) == 0
        assert main(["dataset", "check", str(tmp_path)]) == 0
        assert (tmp_path / "damaged" / f"trajectory_0_{middle.name}").read_bytes() == b"broken"
        assert not last.exists()
        moved = tmp_path / "trajectory_6" / "traj_000000_000003.pickle"
        assert load(moved)["observations"][:, 1].tolist() == [6, 7, 8]
        assert not (tmp_path / "trajectory_5").exists()
        assert totals(tmp_path) == (8, 2)
        finished = {path.parent.name for path in tmp_path.glob("*/done")}
        assert finished == {"trajectory_1", "trajectory_6"}, "the file done does not say what the last frame says"
        capsys.readouterr()
        assert main(["dataset", "repair", str(tmp_path)]) == 0
        assert "nothing to repair" in capsys.readouterr().out

    def test_repair_keeps_unknown_files(self, tmp_path):
        write_trajectory(tmp_path, 0)
        (tmp_path / "trajectory_1").mkdir()
        (tmp_path / "trajectory_1" / "notes.txt").write_text("mine")
        assert main(["dataset", "repair", str(tmp_path)]) == 0
        assert (tmp_path / "trajectory_1" / "notes.txt").read_text() == "mine"

    def test_info_cuts_no_word_on_a_narrow_terminal(self, recorded, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        assert main(["dataset", "info", str(recorded)]) == 0
        printed = capsys.readouterr().out
        assert "…" not in printed
        assert "trajectories" in printed
        assert "writer" in printed
        assert max(map(len, printed.splitlines())) <= 80

    def test_repair_rejects_a_folder_with_an_active_writer(self, recorded, capsys):
        heart = Heartbeat(recorded, "collector", "busy")
        assert main(["dataset", "repair", str(recorded)]) == 1
        assert "stop it first" in error_line(capsys)
        heart.stop()

    def test_merge(self, recorded, tmp_path, capsys):
        record(tmp_path / "more", RecordingEnv(num_envs=2, seed=9, num_privileged_obs=7))
        target = tmp_path / "all"
        assert main(["dataset", "merge", str(recorded), str(tmp_path / "more"), "--output", str(target)]) == 0
        assert totals(target) == tuple(map(sum, zip(on_disk(recorded), on_disk(tmp_path / "more"))))
        assert totals(target) == on_disk(target)
        indices = sorted(int(path.name.split("_")[1]) for path in target.glob("trajectory_*"))
        assert indices == list(range(len(indices)))
        read = RolloutDataset(target, 1, device="cpu", wait_seconds=0)
        assert sum(1 for _ in read) == totals(target)[0]

    def test_merge_rejects_its_output_as_input(self, recorded, capsys, monkeypatch):
        monkeypatch.chdir(recorded.parent)
        assert main(["dataset", "merge", str(recorded), "--output", recorded.name]) == 1
        assert "with itself" in error_line(capsys)

    def test_merge_rejects_a_folder_given_twice(self, recorded, tmp_path, capsys):
        again = recorded / ".." / recorded.name
        assert main(["dataset", "merge", str(recorded), str(again), "--output", str(tmp_path / "all")]) == 1
        assert f"{recorded} is given twice" in error_line(capsys)
        assert not (tmp_path / "all").exists()

    def test_merge_rejects_different_observation_layouts(self, tmp_path, capsys):
        record(tmp_path / "a", RecordingEnv(num_envs=2))
        record(tmp_path / "b", RecordingEnv(num_envs=2), obs_disassemble_mapping={})
        assert (
            main(["dataset", "merge", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c")]) == 1
        )
        assert "obs_segments" in error_line(capsys)
        assert not (tmp_path / "c").exists()

    @pytest.mark.parametrize("action", ["merge", "export"])
    def test_merge_and_export_reject_different_widths(self, tmp_path, capsys, action):
        record(tmp_path / "both" / "a", RecordingEnv(num_envs=2))
        record(tmp_path / "both" / "b", RecordingEnv(num_envs=2, num_obs=6))
        assert main(["dataset", action, str(tmp_path / "both"), "--output", str(tmp_path / "c")]) == 1
        line = error_line(capsys)
        assert "observations 4" in line
        assert "observations 6" in line
        assert not list(tmp_path.glob("c*"))

    def test_merge_and_export_require_output(self, recorded, capsys):
        for action in ("merge", "export"):
            assert main(["dataset", action, str(recorded)]) == 2
            assert "--output" in error_line(capsys)

    def test_export_npz(self, recorded, tmp_path):
        assert main(["dataset", "export", str(recorded), "--output", str(tmp_path / "all")]) == 0
        arrays = np.load(tmp_path / "all.npz")
        steps, finished = on_disk(recorded)
        assert arrays["observations"].shape == (steps, 4)
        assert arrays["privileged_observations"].shape == (steps, 7)
        assert arrays["episode_lengths"].sum() == steps
        ends = np.cumsum(arrays["episode_lengths"]) - 1
        over = arrays["terminations"] | arrays["truncations"]
        assert np.flatnonzero(over).tolist() == ends.tolist()
        time_outs = [load(p)["timeouts"] & (load(p)["dones"][:, 0] > 0) for p in recorded.rglob("traj_*")]
        unfinished = len(ends) - finished
        assert arrays["truncations"].sum() == sum(t.sum() for t in time_outs) + unfinished

    def test_minari_without_h5py_names_the_package(self, recorded, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "h5py", None)
        arguments = ["dataset", "export", str(recorded), "--format", "minari", "--output", str(tmp_path / "walk")]
        assert main(arguments) == 1
        assert "pip install h5py" in error_line(capsys)

    def test_failed_minari_export_leaves_no_files(self, recorded, tmp_path, monkeypatch):
        stand_in = types.ModuleType("h5py")

        def full_disk(path, mode, **kwargs):
            raise OSError(28, "No space left on device")

        stand_in.File = full_disk  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "h5py", stand_in)
        target = tmp_path / "walk-v0"
        arguments = ["dataset", "export", str(recorded), "--format", "minari", "--output", str(target)]
        assert main(arguments) == 1
        assert list(target.iterdir()) == []

    def test_minari(self, recorded, tmp_path, monkeypatch):
        """With a fake h5py that records its calls; layout according to Minari's documentation."""
        files: dict[str, FakeGroup] = {}
        stand_in = types.ModuleType("h5py")
        stand_in.File = lambda path, mode, **kwargs: files.setdefault(str(path), FakeGroup(path))  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "h5py", stand_in)
        target = tmp_path / "walk-v10"
        arguments = ["dataset", "export", str(recorded), "--format", "minari", "--output", str(target)]
        assert main(arguments) == 0
        steps, _ = on_disk(recorded)
        metadata = json.loads((target / "data" / "metadata.json").read_text())
        (file,) = files.values()
        assert metadata["total_steps"] == steps == sum(g.attrs["total_steps"] for g in file.content.values())
        assert metadata["total_episodes"] == len(file.content)
        assert (metadata["data_format"], metadata["dataset_id"]) == ("hdf5", "walk-v10")
        space = json.loads(metadata["observation_space"])
        assert (space["type"], space["shape"], space["dtype"]) == ("Box", [4], "float32")
        assert len(space["low"]) == 4
        for number, (name, group) in enumerate(file.content.items()):
            assert name == f"episode_{number}"
            assert group.attrs["id"] == number
            length = group.attrs["total_steps"]
            assert {key: len(value) for key, value in group.content.items()} == {
                "observations": length + 1,
                "actions": length,
                "rewards": length,
                "terminations": length,
                "truncations": length,
            }
            assert group.content["terminations"][-1] ^ group.content["truncations"][-1]
        assert main(arguments) == 1, "an existing data set was overwritten"


class FakeGroup:
    """The part of `h5py.Group` that the export uses."""

    def __init__(self, path=None):
        self.attrs: dict[str, int] = {}
        self.content: dict = {}
        if path is not None:
            Path(path).write_bytes(b"hdf5")

    def create_group(self, name):
        return self.content.setdefault(name, FakeGroup())

    def create_dataset(self, name, data):
        self.content[name] = np.asarray(data)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
