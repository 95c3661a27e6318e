"""Identity of a process."""

import os
import subprocess
import sys

import pytest

from st_rl.utils.files.process_id import ProcessId


def test_this_process_is_running():
    current = ProcessId.current()
    assert current.pid == os.getpid()
    assert current.is_running() is True
    assert ProcessId.parse(str(current)) == current


def test_killed_process_is_not_running_even_before_its_parent_waits():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start = (f"/proc/{child.pid}/stat",)
        if not os.path.exists(*start):
            pytest.skip("needs /proc")
        process = running_process(child.pid)
        assert process.is_running() is True
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.is_running() is False
    assert process.is_running() is False


def running_process(pid):
    with open(f"/proc/{pid}/stat") as file:
        return ProcessId.current()._replace(pid=pid, start=file.read().rpartition(")")[2].split()[19])


def test_reused_pid_is_another_process():
    assert ProcessId.current()._replace(start="1").is_running() is False


def test_process_of_another_machine_is_unknown():
    assert ProcessId.current()._replace(machine="00000000").is_running() is None


def test_forked_child_has_its_own_id():
    parent = ProcessId.current()
    pid = os.fork()
    if pid == 0:
        child = ProcessId.current()
        os._exit(0 if child.pid == os.getpid() and child != parent and parent.is_running() else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("text", ["", "None", "12", "12-34", "12-34-xyz", "a-34-00000000", "12-b-00000000", "-12-3-0"])
def test_other_text_is_no_process(text):
    assert ProcessId.parse(text) is None
