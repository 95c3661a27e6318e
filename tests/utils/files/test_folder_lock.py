"""One writer per folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from st_rl.utils.files import process_id
from st_rl.utils.files.folder_lock import LOCK_FILE, FolderInUseError, FolderLock
from st_rl.utils.files.process_id import ProcessId

HOLDER = """
import sys, time
from st_rl.utils.files.folder_lock import FolderLock
lock = FolderLock(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of the folder."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def write_lock(folder: Path, age_s: float = 0.0, **changes: object) -> None:
    """Write the lock of another process."""
    content = {"pid": 7, "host": "elsewhere", "since": "2026-01-02 03:04:05", **changes}
    (folder / LOCK_FILE).write_text(json.dumps(content))
    changed = time.time() - age_s
    os.utime(folder / LOCK_FILE, (changed, changed))


def test_lock_file_names_process_host_and_time(tmp_path):
    lock = FolderLock(tmp_path)
    content = json.loads((tmp_path / LOCK_FILE).read_text())
    assert content["pid"] == os.getpid()
    assert content["host"] == os.uname().nodename
    assert content["since"] <= time.strftime("%Y-%m-%d %H:%M:%S")
    lock.release()
    assert list(tmp_path.iterdir()) == []
    FolderLock(tmp_path).release()


def test_rejects_second_process_until_holder_is_killed(tmp_path, holder):
    with pytest.raises(
        FolderInUseError,
        match=rf"{tmp_path} is being written by process {holder.pid} on this machine since 20.*stop it",
    ):
        FolderLock(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / LOCK_FILE).exists()
    FolderLock(tmp_path).release()


def test_normal_exit_releases_the_lock(tmp_path, holder):
    holder.send_signal(signal.SIGINT)
    holder.wait()
    assert not (tmp_path / LOCK_FILE).exists()


def test_rejects_second_runner_of_same_process(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(FolderInUseError, match="by another runner of this process"):
        FolderLock(tmp_path)
    del lock
    FolderLock(tmp_path).release()


def test_lock_with_reused_pid_is_taken_over(tmp_path):
    write_lock(tmp_path, process=str(ProcessId.current()._replace(start="1")))
    FolderLock(tmp_path).release()


def test_rejects_touched_lock_of_another_machine(tmp_path):
    other = str(ProcessId.current()._replace(machine="00000000"))
    write_lock(tmp_path, age_s=50, process=other)
    with pytest.raises(FolderInUseError, match=r"process 7 on elsewhere since 2026-01-02 03:04:05.*or delete .*\.lock"):
        FolderLock(tmp_path)
    write_lock(tmp_path, age_s=70, process=other)
    FolderLock(tmp_path).release()


@pytest.mark.parametrize("content", ["", "half a", "[]", "{}"])
def test_corrupt_lock_is_taken_over_when_untouched(tmp_path, content):
    (tmp_path / LOCK_FILE).write_text(content)
    with pytest.raises(FolderInUseError):
        FolderLock(tmp_path)
    os.utime(tmp_path / LOCK_FILE, (0, 0))
    FolderLock(tmp_path).release()


def test_lock_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(process_id, "INTERVAL_S", 0.01)
    lock = FolderLock(tmp_path)
    os.utime(tmp_path / LOCK_FILE, (0, 0))
    while (tmp_path / LOCK_FILE).stat().st_mtime < 1:
        time.sleep(0.01)
    lock.release()


def test_release_leaves_a_lock_that_another_process_took_over(tmp_path):
    lock = FolderLock(tmp_path)
    write_lock(tmp_path)
    lock.release()
    assert (tmp_path / LOCK_FILE).exists()


def test_forked_child_neither_holds_nor_removes_the_lock(tmp_path):
    lock = FolderLock(tmp_path)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            FolderLock(tmp_path)
        except FolderInUseError as error:
            lock.release()
            status = 0 if f"process {os.getppid()} on this machine" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / LOCK_FILE).exists()


def test_one_of_many_simultaneous_processes_gets_the_lock(tmp_path):
    write_lock(tmp_path, process=str(ProcessId.current()._replace(start="1")))  # of a killed process
    results, result_end = os.pipe()
    start, start_end = os.pipe()
    finish, finish_end = os.pipe()
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(start_end)
                os.close(finish_end)
                os.read(start, 1)
                result, lock = b"locked ", FolderLock(tmp_path)
            except FolderInUseError:
                result, lock = b"refused ", None
            os.write(result_end, result)
            os.read(finish, 1)  # holds its lock until all have tried
            os._exit(lock is not None)
        children.append(pid)
    os.close(start_end)
    text = b""
    while text.count(b" ") < len(children):
        text += os.read(results, 100)
    os.close(finish_end)
    for pid in children:
        os.waitpid(pid, 0)
    for descriptor in (results, result_end, start, finish):
        os.close(descriptor)
    assert sorted(text.split()) == [b"locked", *[b"refused"] * 7]
