"""Heartbeat files of writers."""

import json
import os
import socket
import time

import pytest

from st_rl.utils.files import process_id
from st_rl.utils.files.heartbeat import (
    Heartbeat,
    HeartbeatMonitor,
    dead_heartbeats,
    heartbeats,
    is_alive,
    is_heartbeat,
    new_writer_id,
)
from st_rl.utils.files.process_id import ProcessId

# A pid with more digits than Python converts.
DIGITS = json.dumps({"process": f"{'9' * 5000}-1-{ProcessId.current().machine}"})


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(process_id, "INTERVAL_S", 0.02)


def test_writer_ids_are_unique_and_contain_host_and_pid():
    ids = {new_writer_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(f"{socket.gethostname()}-{os.getpid()}-" in each for each in ids)


def test_heartbeat_touches_file_until_stopped(tmp_path, quick):
    heart = Heartbeat(tmp_path, "collector", "a")
    assert heartbeats(tmp_path, "collector") == [heart.path]
    assert heartbeats(tmp_path, "trainer") == []
    assert is_heartbeat(heart.path.name, "collector")
    first = heart.path.stat().st_mtime_ns
    time.sleep(0.1)
    assert heart.path.stat().st_mtime_ns > first
    assert is_alive(heart.path)
    heart.stop()
    assert heartbeats(tmp_path, "collector") == []
    time.sleep(0.05)
    assert not heart.path.exists(), "it came back"


def test_dead_local_process_is_not_alive(tmp_path):
    path = tmp_path / ".alive-collector-x"
    path.write_text(json.dumps({"process": str(ProcessId.current()._replace(pid=2**22 - 3))}))
    assert not is_alive(path)


@pytest.mark.parametrize(("age_s", "alive"), [(0, True), (60, False)])
def test_remote_process_is_alive_by_file_age(tmp_path, age_s, alive):
    path = tmp_path / ".alive-collector-x"
    path.write_text(json.dumps({"process": str(ProcessId.current()._replace(machine="00000000"))}))
    now = time.time()
    os.utime(path, (now - age_s, now - age_s))
    assert is_alive(path) is alive


@pytest.mark.parametrize("content", ["", "half a fi", "[]", "{}", "[" * 100_000, DIGITS])
def test_old_unreadable_heartbeat_is_not_alive(tmp_path, content):
    path = tmp_path / ".alive-collector-x"
    path.write_text(content)
    os.utime(path, (0, 0))
    assert not is_alive(path)


def test_finds_heartbeats_of_dead_processes(tmp_path):
    heart = Heartbeat(tmp_path, "collector", "a")
    dead = tmp_path / ".alive-collector-x"
    dead.write_text(json.dumps({"process": str(ProcessId.current()._replace(pid=2**22 - 3))}))
    assert dead_heartbeats(tmp_path, "collector") == [dead]
    heart.stop()


def test_monitor_reports_start_death_return_and_end(tmp_path, quick):
    monitor = HeartbeatMonitor(gone_after_s=0.15)
    assert monitor.check(heartbeats(tmp_path, "collector")) == []
    heart = Heartbeat(tmp_path, "collector", "a")
    (line,) = monitor.check(heartbeats(tmp_path, "collector"))
    assert line == f"collector a in {tmp_path} is running"
    assert monitor.num_alive == 1
    time.sleep(0.05)
    assert monitor.check([]) == []
    heart._stopped.set()  # as if it had been killed
    time.sleep(0.03)
    monitor.check([])
    time.sleep(0.2)
    (line,) = monitor.check([])
    assert "is gone: no heartbeat" in line
    assert (monitor.num_alive, monitor.num_finished) == (0, 0)
    os.utime(heart.path)
    assert "is running again" in monitor.check([])[0]
    heart.stop()
    assert "has finished" in monitor.check([])[0]
    assert (monitor.num_alive, monitor.num_finished) == (0, 1)


def test_stale_heartbeat_is_not_reported(tmp_path):
    path = tmp_path / ".alive-collector-x"
    path.write_text(json.dumps({"process": str(ProcessId.current()._replace(pid=2**22 - 3))}))
    monitor = HeartbeatMonitor()
    assert monitor.check([path]) == []
    assert monitor.num_alive == 0


def test_heartbeat_keeps_neither_owner_nor_process_alive(tmp_path):
    heart = Heartbeat(tmp_path, "collector", "a")
    threads = [thread for thread in __import__("threading").enumerate() if thread.name == "st_rl heartbeat"]
    assert threads
    assert all(thread.daemon for thread in threads)
    heart.stop()
