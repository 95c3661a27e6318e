"""Collectors and trainers continue after kills of the other side, truncated and malicious files."""

import json
import os
import pickle
import random
import signal
import time
import traceback
from pathlib import Path

import pytest
import torch

from st_rl.cli import main
from st_rl.runners import DaggerSaver, DemonstrationSaver
from st_rl.storage.rollout_files import maintenance, rollout_dataset
from st_rl.storage.rollout_files.rollout_dataset import RolloutDataset
from st_rl.utils.files import newest_checkpoint
from st_rl.utils.files.heartbeat import Heartbeat
from st_rl.utils.files.process_id import ProcessId
from tests.runners.killed_collectors import EPISODE_LENGTH, kill_collectors
from tests.runners.test_demonstration import load, on_disk, totals
from tests.runners.test_two_stage_runner import demonstrations, make
from tests.storage.recordings import EchoPolicy, RecordingEnv, record

NUM_KILLS = 50


class Watcher:
    """Reads like a trainer and checks that the step numbers of every episode are complete."""

    def __init__(self, folder: Path, num_envs: int = 4):
        self.data = RolloutDataset(folder, num_envs, dataset_loops=0, device="cpu", mark_first_frame_done=False)
        self.data.random_shuffle_traj_order = True
        self.before: torch.Tensor | None = None
        self.over = torch.ones(num_envs, dtype=torch.bool)
        self.num_checked = 0

    def read(self) -> None:
        batch = self.data.get_batch()
        obs = batch.observation
        assert torch.equal(obs[:, :4].sum(dim=1), obs[:, 4]), "a frame of mixed origin"
        assert torch.equal(batch.action[:, 0], obs[:, 3])
        assert torch.equal(batch.reward, obs[:, 3])
        if self.before is not None:
            assert torch.equal(self.before, obs), "the promised next observation did not come"
        follows = (batch.next_observation[:, :3] == obs[:, :3]).all(dim=1)
        follows &= batch.next_observation[:, 3] == obs[:, 3] + 1
        assert (follows | batch.done).all(), "an episode went on elsewhere without an end"
        ends = obs[:, 3] == EPISODE_LENGTH + obs[:, 1] - 1
        assert torch.equal(batch.done & ~batch.timeout, ends & (obs[:, 2] % 2 == 0))
        self.before = batch.next_observation.clone()
        self.num_checked += len(obs)


@pytest.fixture(scope="module")
def killed_collectors(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watcher, int]:
    """A folder in which `NUM_KILLS` collectors, two at a time, were killed while a trainer read from it."""
    folder = tmp_path_factory.mktemp("data")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            kill_collectors(str(folder), NUM_KILLS, seed=1)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    watcher = Watcher(folder)
    ended, status = 0, 0
    while not ended:
        watcher.read()
        ended, status = os.waitpid(pid, os.WNOHANG)
    return folder, watcher, status


def test_no_collector_crashed_and_no_partial_file_was_read(killed_collectors):
    _, watcher, status = killed_collectors
    assert status == 0, "a collector exited before it was killed; its traceback is above"
    assert watcher.num_checked > 1000
    assert watcher.data.num_files_skipped == 0


def test_no_two_collectors_shared_a_trajectory(killed_collectors):
    folder, _, _ = killed_collectors
    writers = set()
    for trajectory in folder.glob("trajectory_*"):
        frames = [load(path)["observations"] for path in sorted(trajectory.glob("traj_*"))]
        origins = {tuple(row[:3]) for part in frames for row in part}
        assert len(origins) <= 1
        writers |= {origin[0] for origin in origins}
    assert len(writers) > 10


def test_totals_equal_the_files_on_disk(killed_collectors, capsys):
    folder, _, _ = killed_collectors
    assert main(["dataset", "check", str(folder)]) in (0, 1)
    assert totals(folder) == on_disk(folder)
    assert main(["dataset", "repair", str(folder)]) == 0
    assert main(["dataset", "check", str(folder)]) == 0
    assert totals(folder) == on_disk(folder)
    assert not list(folder.rglob(".*"))
    assert "finished trajectories" in capsys.readouterr().out


def test_truncated_files_are_skipped_and_repaired(tmp_path, capsys):
    record(tmp_path, RecordingEnv(num_envs=6, termination_prob=0.05), min_timesteps=600)
    generator, paths = random.Random(0), sorted(tmp_path.rglob("traj_*"))
    cut = generator.sample(paths, 12)
    for path in cut:
        content = path.read_bytes()
        path.write_bytes(content[: generator.randrange(len(content))])
    data = RolloutDataset(tmp_path, 3, device="cpu", wait_seconds=0, dataset_loops=2)
    expected = {tuple(obs) for path in set(paths) - set(cut) for obs in load(path)["observations"]}
    read = {tuple(obs) for batch in data for obs in batch.observation.numpy()}
    assert read <= expected
    assert data.num_files_skipped == 12
    assert main(["dataset", "check", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert all(str(path) in printed for path in cut)
    assert main(["dataset", "repair", str(tmp_path)]) == 0
    assert main(["dataset", "check", str(tmp_path)]) == 0
    assert totals(tmp_path) == (len(expected), totals(tmp_path)[1])
    after = RolloutDataset(tmp_path, 1, device="cpu", wait_seconds=0)
    assert len({tuple(obs) for batch in after for obs in batch.observation.numpy()}) == len(expected)
    assert after.num_files_skipped == 0


def test_next_start_recovers_after_killed_collector(tmp_path):
    record(tmp_path, RecordingEnv(num_envs=3, termination_prob=0.1), min_timesteps=100)
    expected = on_disk(tmp_path)
    marks = sorted(tmp_path.glob("trajectory_*/done"))
    # As after a kill between the last frame of an episode and its totals.
    marks[0].unlink()
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    (tmp_path / "metadata.json").write_text(json.dumps({**metadata, "total_timesteps": 7, "total_trajectories": 0}))
    dead = ProcessId.current()._replace(start="1")
    (tmp_path / ".alive-collector-dead").write_text(json.dumps({"process": str(dead)}))
    for folder in (tmp_path, marks[0].parent):
        (folder / f".tmp-{dead}-0a1b-traj_000000_000007.pickle").write_bytes(b"half")
    for index in range(900, 909):
        (tmp_path / f"trajectory_{index}").mkdir()
    saver = DemonstrationSaver(RecordingEnv(num_envs=3), EchoPolicy(), tmp_path)
    saver.init_traj_handlers()
    assert (saver.total_timesteps, saver.total_traj_completed) == expected
    saver.close()
    assert totals(tmp_path) == expected == on_disk(tmp_path)
    assert sorted(tmp_path.glob("trajectory_*/done")) == marks
    assert not list(tmp_path.rglob(".*"))
    assert all(any(folder.iterdir()) for folder in tmp_path.glob("trajectory_*"))


def test_recovery_killed_halfway_is_completed_by_next_start(tmp_path, monkeypatch):
    dead = tmp_path / ".alive-collector-dead"
    dead.write_text(json.dumps({"process": str(ProcessId.current()._replace(start="1"))}))

    def die(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "recover_folder", die)
        with pytest.raises(KeyboardInterrupt):
            DemonstrationSaver(RecordingEnv(num_envs=3), EchoPolicy(), tmp_path).init_traj_handlers()
    assert dead.exists()
    saver = DemonstrationSaver(RecordingEnv(num_envs=3), EchoPolicy(), tmp_path)
    saver.init_traj_handlers()
    assert not dead.exists()
    saver.close()


@pytest.mark.parametrize("checks_first", [False, True])
def test_simultaneous_starts_share_no_trajectory(tmp_path, monkeypatch, checks_first):
    """The second collector starts right before or right after the first one checks for other writers."""
    first, second = (DemonstrationSaver(RecordingEnv(num_envs=3), EchoPolicy(), tmp_path) for _ in range(2))
    active_writers = maintenance.active_writers

    def start_second(folder):
        monkeypatch.setattr(maintenance, "active_writers", active_writers)
        found = active_writers(folder) if checks_first else None
        second.init_traj_handlers()
        return active_writers(folder) if found is None else found

    monkeypatch.setattr(maintenance, "active_writers", start_second)
    first.init_traj_handlers()
    assert not set(first.traj_idxs) & set(second.traj_idxs)
    first.close()
    second.close()


def test_foreign_and_malicious_pickles_are_not_loaded(tmp_path, caplog):
    record(tmp_path, RecordingEnv(num_envs=2))

    class Malicious:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'caught'}",)

    folder = tmp_path / "trajectory_90"
    folder.mkdir()
    (folder / "traj_000000_000007.pickle").write_bytes(pickle.dumps(Malicious()))
    (folder / "traj_000007_000010.pickle").write_bytes(pickle.dumps({"something": "else"}))
    data = RolloutDataset(tmp_path, 2, device="cpu", wait_seconds=0)
    assert len(list(data)) > 0
    assert data.num_files_skipped == 2
    assert "system" in caplog.text
    assert not (tmp_path / "caught").exists()


def test_trainer_detects_killed_collector_within_seconds(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(rollout_dataset, "_CHECK_INTERVAL_S", 0.05)
    record(tmp_path, RecordingEnv(num_envs=2))
    pid = os.fork()
    if pid == 0:
        try:
            Heartbeat(tmp_path, "collector", "x")
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    # As from another machine, where the process cannot be checked.
    path = next(tmp_path.glob(".alive-*"))
    elsewhere = ProcessId.current()._replace(machine="00000000")
    path.write_text(json.dumps({**json.loads(path.read_text()), "process": str(elsewhere)}))
    data = RolloutDataset(tmp_path, 2, device="cpu", wait_seconds=0, dataset_loops=0)
    data.collectors.gone_after_s = 0.3
    begin = time.monotonic()
    caplog.set_level("INFO", "st_rl")
    while "is gone" not in caplog.text and time.monotonic() - begin < 5:
        data.get_batch()
        time.sleep(0.01)
    assert "is running" in caplog.text
    assert "is gone: no heartbeat" in caplog.text
    assert data.collectors.num_alive == 0


def test_killed_trainer_is_detected_and_resumes(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("st_rl.runners.dagger_saver._CHECK_INTERVAL_S", 0.0)
    data, run = demonstrations(tmp_path / "data"), tmp_path / "run"
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            make(data, log_dir=run, pretrain_iterations=-1, save_interval=1, log_interval=1000, engine="eager").learn(
                10**6
            )
        finally:
            os._exit(1)
    while not (run / "model_3.pt").is_file():
        time.sleep(0.01)
    saver = DaggerSaver(RecordingEnv(num_envs=2), EchoPolicy(), tmp_path / "more", 4, training_policy_logdir=run)
    saver.trainers.gone_after_s = 0.3
    saver.init_traj_handlers()
    caplog.set_level("INFO", "st_rl")
    saver.collect_step(0)
    assert "is running" in caplog.text
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    begin = time.monotonic()
    while "is gone" not in caplog.text and time.monotonic() - begin < 5:
        saver.collect_step(0)
        saver.load_latest_training_policy()
    assert "is gone" in caplog.text
    newest = newest_checkpoint(run)
    assert newest is not None
    resumed = make(data, log_dir=run, pretrain_iterations=-1)
    resumed.load(newest)
    done = resumed.current_learning_iteration
    assert done >= 3
    resumed.learn(2)
    resumed.close()
    saver.check_stop()
    assert saver.training_policy_iteration == done + 2, "the collector did not follow the resumed training"
    saver.close()
