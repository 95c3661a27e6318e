"""Identity of a process over all machines, and whether it is running: elsewhere, by a file that it touches."""

import contextlib
import functools
import os
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

INTERVAL_S = 1.0


class ProcessId(NamedTuple):
    """Identifies a process; its text `pid-start-machine` fits into a file name.

    A pid alone does not: it is used again after a reboot, in another container and, with time, by another process.
    """

    pid: int
    start: str
    """Start in clock ticks since boot; `0` where the system does not tell."""
    machine: str
    """Hash of host name, boot and pid namespace."""

    @classmethod
    def current(cls) -> "ProcessId":
        """Return the id of this process; in a forked child, that of the child."""
        return _process_id(os.getpid())

    @classmethod
    def parse(cls, text: str) -> "ProcessId | None":
        """Return the id with this text; None for any other text."""
        pid, _, rest = text.partition("-")
        start, _, machine = rest.partition("-")
        is_valid = pid.isdecimal() and len(pid) < 20 and start.isdecimal() and len(machine) == _MACHINE_DIGITS
        return cls(int(pid), start, machine) if is_valid else None

    def __str__(self) -> str:
        return f"{self.pid}-{self.start}-{self.machine}"

    def is_running(self) -> bool | None:
        """Return whether the process is running; None for one of another machine, for which this is unknown."""
        return _start(self.pid) == self.start if self.machine == _machine() else None


_MACHINE_DIGITS = 8


@functools.lru_cache(maxsize=1)
def _process_id(pid: int) -> ProcessId:
    return ProcessId(pid, _start(pid) or "0", _machine())


@functools.cache
def _machine() -> str:
    """Hash of what a pid depends on: the host name, and on Linux the boot and the pid namespace (the container)."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # another system
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return f"{zlib.crc32(' '.join(parts).encode()):0{_MACHINE_DIGITS}x}"


def _start(pid: int) -> str | None:
    """Start of a process on this machine; None if it is not running."""
    if Path("/proc/self/stat").exists():
        try:
            # The name, in parentheses, may itself contain spaces and parentheses.
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if state in "ZX" else fields[18]
    try:
        os.kill(pid, 0)
    except PermissionError:  # it runs under another user
        pass
    except OSError:
        return None
    return "0"


def keep_touched(path: Path) -> threading.Event:
    """Touch a file every second in the background until the returned event is set."""
    stopped = threading.Event()

    def touch() -> None:
        while not stopped.wait(INTERVAL_S):
            # Touched, not written, so that it works on a full disk.
            with contextlib.suppress(OSError):
                os.utime(path)

    # A daemon thread that references only the path keeps neither the process nor the owner of the file alive.
    threading.Thread(target=touch, daemon=True, name="st_rl heartbeat").start()
    return stopped


def is_writer_running(content: Mapping[str, Any], path: Path, gone_after_s: float) -> bool:
    """Whether the process that wrote a file, named in its `content`, is running.

    A process of another machine counts as running while it touches the file.
    """
    process = ProcessId.parse(str(content.get("process")))
    is_running = None if process is None else process.is_running()
    return _file_age_s(path) < gone_after_s if is_running is None else is_running


def _file_age_s(path: Path) -> float:
    """Seconds since a file was touched, by the clock of the file system, which may be another machine's."""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:
        now = time.time()
    return now - path.stat().st_mtime
