"""Heartbeat files: processes that share only a folder, also on different machines, see which of them are running."""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from st_rl.utils.files.atomic import StrPath, files_with_prefix, write_json
from st_rl.utils.files.process_id import ProcessId, is_writer_running, keep_touched
from st_rl.utils.files.readers import read_json_object

PREFIX = ".alive-"
GONE_AFTER_S = 5.0


def new_writer_id() -> str:
    """Return an id of this process that is unique over all machines: host, pid and a random suffix."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class Heartbeat:
    """Touches a file every second until `stop` removes it; a killed process leaves the file behind."""

    def __init__(self, folder: StrPath, role: str, identity: str):
        self.path = Path(folder) / f"{PREFIX}{role}-{identity}"
        content = {"role": role, "id": identity, "host": socket.gethostname(), "process": str(ProcessId.current())}
        # Complete from the start: others remove a heartbeat that they cannot read.
        write_json(self.path, content, durable=False)
        self._stopped = keep_touched(self.path)

    def stop(self) -> None:
        """Stop the thread and remove the file."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self.path.unlink()


def heartbeats(folder: StrPath, role: str) -> list[Path]:
    """Heartbeat files of a role in a folder, those of killed processes included."""
    return files_with_prefix(folder, f"{PREFIX}{role}-")


def dead_heartbeats(folder: StrPath, role: str) -> list[Path]:
    """Heartbeats that killed processes left in a folder."""
    return [path for path in heartbeats(folder, role) if not is_alive(path)]


def is_heartbeat(name: str, role: str) -> bool:
    """Whether a file is a heartbeat of this role, by its name."""
    return name.startswith(f"{PREFIX}{role}-")


def is_alive(path: Path) -> bool:
    """Whether the process behind a heartbeat is running; by its pid on this machine, else by the file's age."""
    try:
        return is_writer_running(read_json_object(path), path, GONE_AFTER_S)
    except (OSError, ValueError):
        return False


@dataclass
class _Seen:
    """Last modification time of a heartbeat file (ns), when it was seen to change, and whether it is alive."""

    changed: int
    at: float
    alive: bool


class HeartbeatMonitor:
    """Detects which processes have started, finished or died, by polling their heartbeat files.

    A process is alive while its file changes, measured by the local clock, so that clocks may differ.
    """

    def __init__(self, gone_after_s: float = GONE_AFTER_S):
        self.gone_after_s = gone_after_s
        self.num_finished = 0
        self._seen: dict[Path, _Seen] = {}

    @property
    def num_alive(self) -> int:
        """Number of running processes."""
        return sum(seen.alive for seen in self._seen.values())

    def check(self, paths: Iterable[Path]) -> list[str]:
        """Poll these heartbeats and those seen before; returns one log line for every change."""
        now, lines = time.monotonic(), []
        for path in dict.fromkeys([*self._seen, *paths]):
            try:
                changed = path.stat().st_mtime_ns
            except OSError:
                if path in self._seen and self._seen.pop(path).alive:
                    self.num_finished += 1
                    lines.append(f"{_name(path)} has finished")
                continue
            seen = self._seen.get(path)
            if seen is None:
                # A stale file of a process that died earlier is not reported.
                seen = self._seen[path] = _Seen(changed, now, is_alive(path))
                lines += [f"{_name(path)} is running"] if seen.alive else []
            elif seen.changed != changed:
                lines += [] if seen.alive else [f"{_name(path)} is running again"]
                self._seen[path] = _Seen(changed, now, True)
            elif seen.alive and now - seen.at >= self.gone_after_s:
                seen.alive = False
                lines.append(f"{_name(path)} is gone: no heartbeat for {now - seen.at:.0f} s")
        return lines


def _name(path: Path) -> str:
    """Role, id and folder, for log lines."""
    return f"{path.name.removeprefix(PREFIX).replace('-', ' ', 1)} in {path.parent}"
