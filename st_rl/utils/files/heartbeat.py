"""Signs of life between processes, also of different machines, that share nothing but a folder."""

import contextlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

PREFIX = ".alive-"
INTERVAL_S = 1.0
GONE_AFTER_S = 5.0


def new_writer_id() -> str:
    """A name that no other process has, on any machine, and that says which one this is."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class Heartbeat:
    """Touches a file every second until it is stopped, and removes it then; a killed process leaves it behind."""

    def __init__(self, folder: str | os.PathLike[str], role: str, identity: str):
        self.path = Path(folder) / f"{PREFIX}{role}-{identity}"
        self._stopped = threading.Event()
        content = {"role": role, "id": identity, "host": socket.gethostname(), "pid": os.getpid()}
        self.path.write_text(json.dumps(content), encoding="utf-8")
        # A daemon that knows only the file: it neither keeps a process alive nor its owner in memory.
        threading.Thread(target=_beat, args=(self.path, self._stopped), daemon=True, name="st_rl heartbeat").start()

    def stop(self) -> None:
        """Say goodbye."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self.path.unlink()


def _beat(path: Path, stopped: threading.Event) -> None:
    while not stopped.wait(INTERVAL_S):
        # Touched, not written: a full disk stops nobody's heart.
        with contextlib.suppress(OSError):
            os.utime(path)


def heartbeats(folder: str | os.PathLike[str], role: str) -> list[Path]:
    """The files of all who work, or were killed, in a folder."""
    return sorted(Path(folder).glob(f"{PREFIX}{role}-*"))


def is_heartbeat(name: str, role: str) -> bool:
    """Whether a file of this name is the heartbeat of somebody in this role."""
    return name.startswith(f"{PREFIX}{role}-")


def is_alive(path: Path) -> bool:
    """Whether the owner of a heartbeat lives; asked of the process itself where it is one of this machine."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        age_s = _file_system_time(path.parent) - path.stat().st_mtime
    except (OSError, ValueError):
        return False
    if about.get("host") == socket.gethostname():
        try:
            os.kill(int(about["pid"]), 0)
        except (ProcessLookupError, KeyError, ValueError):
            return False
        except PermissionError:  # somebody else's process, but there
            pass
        return age_s < 10 * GONE_AFTER_S
    return age_s < GONE_AFTER_S


def _file_system_time(folder: Path) -> float:
    """The present time by the clock that stamps files in a folder, which may be another machine's."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


class Watch:
    """Notices who comes, who leaves and who is gone without a word, by looking at heartbeats every now and then.

    A heart beats as long as its file changes, by the clock of whoever looks: clocks of other machines do not matter.
    """

    def __init__(self, gone_after_s: float = GONE_AFTER_S):
        self.gone_after_s = gone_after_s
        self.num_finished = 0
        self._seen: dict[Path, _Seen] = {}

    @property
    def num_alive(self) -> int:
        """How many are at work."""
        return sum(seen.alive for seen in self._seen.values())

    def look(self, paths: Iterable[Path]) -> list[str]:
        """Look at these heartbeats and at those seen before; returns a line for everything that is new."""
        now, news = time.monotonic(), []
        for path in dict.fromkeys([*self._seen, *paths]):
            try:
                changed = path.stat().st_mtime_ns
            except OSError:
                if path in self._seen and self._seen.pop(path).alive:
                    self.num_finished += 1
                    news.append(f"{_name(path)} has finished")
                continue
            seen = self._seen.get(path)
            if seen is None:
                # One that was left behind long ago gets no obituary.
                seen = self._seen[path] = _Seen(changed, now, is_alive(path))
                news += [f"{_name(path)} is at work"] if seen.alive else []
            elif seen.changed != changed:
                news += [] if seen.alive else [f"{_name(path)} is back at work"]
                self._seen[path] = _Seen(changed, now, True)
            elif seen.alive and now - seen.at >= self.gone_after_s:
                seen.alive = False
                news.append(f"{_name(path)} is gone: no sign of life for {now - seen.at:.0f} s")
        return news


class _Seen:
    """What was seen of a heartbeat, and when."""

    def __init__(self, changed: int, at: float, alive: bool):
        self.changed, self.at, self.alive = changed, at, alive


def _name(path: Path) -> str:
    """Who it is, for a person."""
    return f"{path.name.removeprefix(PREFIX).replace('-', ' ', 1)} in {path.parent}"
