"""One training per run folder, one `learn` per runner."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from st_rl.cli import main
from st_rl.utils.files import newest_checkpoint
from st_rl.utils.files.folder_lock import LOCK_FILE, FolderInUseError, FolderLock
from st_rl.utils.files.process_id import ProcessId
from tests.runners.training import make_runner, progress, small_config

REPOSITORY = Path(__file__).parents[2]
TRAINING = """
import sys
from tests.runners.training import make_runner, small_config
config = small_config(save_interval=1, keep_best=False, engine="eager")
make_runner(config=config, log_dir=sys.argv[1]).learn(10**9)
"""


@pytest.fixture
def training(tmp_path):
    """Another process that trains in the folder, after its first checkpoint."""
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        begin = time.monotonic()
        while newest_checkpoint(tmp_path) is None:
            assert process.poll() is None
            assert time.monotonic() - begin < 60
            time.sleep(0.01)
        yield process
        process.kill()


def test_rejects_second_training_until_first_is_killed(tmp_path, training):
    runner = make_runner(config=small_config(save_interval=1), log_dir=tmp_path)
    os.kill(training.pid, signal.SIGSTOP)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != LOCK_FILE}
    with pytest.raises(FolderInUseError, match=f"is being written by process {training.pid} on this machine since 20"):
        runner.learn(1)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert runner.current_learning_iteration == 0
    training.kill()
    training.wait()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    runner.load(newest)
    done = runner.current_learning_iteration
    runner.learn(1)
    assert [int(row["step"]) for row in progress(tmp_path)] == list(range(done + 1))
    assert not list(tmp_path.rglob(".*"))


def test_folder_is_free_between_two_calls_of_learn(tmp_path):
    first, second = make_runner(log_dir=tmp_path), make_runner(log_dir=tmp_path)
    for runner in (first, second, first):
        runner.learn(1)
    assert not (tmp_path / LOCK_FILE).exists()


def test_failed_learn_frees_the_folder(tmp_path):
    runner = make_runner(log_dir=tmp_path)

    def fail():
        assert (tmp_path / LOCK_FILE).exists()
        raise ZeroDivisionError

    runner.evaluation = fail
    with pytest.raises(ZeroDivisionError):
        runner.learn(1)
    assert not (tmp_path / LOCK_FILE).exists()


def test_start_removes_temporary_files_of_dead_writers_only(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    dead, alive = ProcessId.current()._replace(start="1"), ProcessId.current()
    elsewhere = ProcessId.current()._replace(machine="00000000")
    (tmp_path / "git").mkdir()
    gone = [tmp_path / f".tmp-{dead}-0a1b-model_1.pt", tmp_path / "git" / f".tmp-{dead}-0a1b-st_rl.diff"]
    old, kept = tmp_path / f".tmp-{elsewhere}-0a-model_1.pt", tmp_path / f".tmp-{elsewhere}-0b-model_1.pt"
    video = tmp_path / f".tmp-{alive}-0a1b-play.mp4"
    for path in [*gone, old, kept, video]:
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    runner.learn(1)
    assert sorted(path.name for path in tmp_path.rglob(".*")) == sorted([kept.name, video.name])


def test_rejects_recursive_learn(tmp_path):
    runner = make_runner(log_dir=tmp_path)
    runner.evaluation = lambda: runner.learn(1)
    with pytest.raises(RuntimeError, match=r"learn\(\) is already running in this runner"):
        runner.learn(2)
    assert not (tmp_path / LOCK_FILE).exists()


def test_rejects_learn_in_second_thread_and_first_continues():
    runner = make_runner()
    errors = []

    def learn_again():
        try:
            runner.learn(1)
        except RuntimeError as error:
            errors.append(str(error))

    def evaluate():
        thread = threading.Thread(target=learn_again)
        thread.start()
        thread.join()

    runner.evaluation = evaluate
    runner.learn(2)
    assert runner.current_learning_iteration == 2
    assert len(errors) == 2
    assert "already running" in errors[0]


@pytest.mark.parametrize("command", ["train", "resume"])
def test_commands_reject_locked_folder_before_writing(tmp_path, capsys, command):
    run = tmp_path / "run"
    options = ["--iterations", "1", "--num-envs", "4", "--log-dir", str(run)]
    if command == "resume":
        assert main(["train", "balance", *options]) == 0
    run.mkdir(exist_ok=True)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    lock = FolderLock(run)
    arguments = ["resume", str(run), "--iterations", "1"] if command == "resume" else ["train", "balance", *options]
    assert main(arguments) == 1
    assert f"{run} is being written by another runner of this process" in capsys.readouterr().err
    lock.release()
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert main(arguments) == 0
    assert not (run / LOCK_FILE).exists()
