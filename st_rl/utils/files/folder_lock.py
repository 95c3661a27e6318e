"""A lock that makes one process the only writer of a folder."""

import contextlib
import os
import secrets
import socket
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from st_rl.utils.files.atomic import StrPath, write_json
from st_rl.utils.files.process_id import ProcessId, is_writer_running, keep_touched
from st_rl.utils.files.readers import read_json

LOCK_FILE = ".lock"
# A lock of another machine is taken over when it has not been touched for this long.
GONE_AFTER_S = 60.0


class FolderInUseError(OSError):
    """Another process, or another runner of this process, is writing to the folder."""


class FolderLock:
    """Locks a folder until `release`: `FolderInUseError` with process, host and time if another writer holds it.

    The file `.lock` names the writer and is touched every second. A lock of a process that is gone is taken over: on
    this machine by the process, otherwise when it was not touched for a minute.
    """

    def __init__(self, folder: StrPath) -> None:
        path = Path(folder) / LOCK_FILE
        content = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "process": str(ProcessId.current()),
            "id": secrets.token_hex(8),
        }
        with _exclusive(path.parent):
            _check_free(path)
            write_json(path, content, durable=False)
        stopped = keep_touched(path)
        # Also runs when the object is deleted and when the process exits.
        self.release = weakref.finalize(self, _release, path, content, stopped.set)


def lock_state(folder: StrPath) -> Literal["free", "held", "abandoned"]:
    """Return whether a process is writing to a folder; the lock of a killed one is abandoned."""
    path = Path(folder) / LOCK_FILE
    holder = _read(path)
    if holder is None:
        return "free"
    return "held" if is_writer_running(holder, path, GONE_AFTER_S) else "abandoned"


def _check_free(path: Path) -> None:
    """FolderInUseError if a running process holds the lock."""
    holder = _read(path)
    if holder is None or not is_writer_running(holder, path, GONE_AFTER_S):
        return
    process = ProcessId.parse(str(holder.get("process")))
    since = f"since {holder.get('since')}"
    if process == ProcessId.current():
        who, remedy = "another runner of this process", "Wait until its learn() returns"
    elif process is not None and process.is_running():
        who, remedy = f"process {holder.get('pid')} on this machine", "Wait until it has finished, or stop it"
    else:
        who = f"process {holder.get('pid')} on {holder.get('host')}"
        remedy = f"Wait until it has finished; if it is gone, wait {GONE_AFTER_S:.0f} s or delete {path}"
    raise FolderInUseError(f"{path.parent} is being written by {who} {since}. {remedy}, or choose another folder")


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a lock, empty if it is corrupt; None if there is none."""
    try:
        content = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _release(path: Path, content: dict[str, Any], stop: Any) -> None:
    """Remove the lock, unless this is a forked child or another process has taken it over."""
    if content["process"] == str(ProcessId.current()):
        stop()
        with contextlib.suppress(OSError):
            if _read(path) == content:
                path.unlink()


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Let other processes of this machine wait: of two that start together, one sees the lock of the other."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems do not support it.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
