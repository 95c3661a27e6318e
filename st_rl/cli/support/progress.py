"""How far a long piece of work is, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")
_LINE_EVERY_S = 5.0


class ProgressBar:
    """A bar on a terminal, a plain line every few seconds elsewhere; for use in a `with` block.

    Without `says_time_left` the notes do it.
    """

    def __init__(self, words: str, says_time_left: bool = True):
        self.words = words
        self.says_time_left = says_time_left
        self._begin = self._said = time.monotonic()
        # Both exist on a terminal only.
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        from st_rl.loggers.console_panel import is_live_terminal

        self._begin = self._said = time.monotonic()
        if is_live_terminal():
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            note = TextColumn("{task.fields[note]}", style="dim")
            columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
            self._progress = Progress(*columns, *([TimeRemainingColumn()] if self.says_time_left else []), note)
            self._progress.start()
            self._task = self._progress.add_task(self.words, total=1.0, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, share: float | None, note: str = "") -> None:
        """Show the share that is done, from 0 to 1 or None where nobody knows the end, and a few words."""
        if self._progress is not None:
            self._progress.update(self._task, total=None if share is None else 1.0, completed=share or 0.0, note=note)
            return
        now = time.monotonic()
        if now - self._said >= _LINE_EVERY_S:
            self._said = now
            done = "" if share is None else f"{share:.0%}{self._time_left(now, share)}"
            print(f"{self.words}: {', '.join(part for part in (done, note) if part)}", flush=True)

    def _time_left(self, now: float, share: float) -> str:
        if not (self.says_time_left and 0.0 < share < 1.0):
            return ""
        seconds = (now - self._begin) * (1.0 - share) / share
        return f", {int(seconds // 60)}:{int(seconds % 60):02d} left"


def track(items: Sequence[Item], words: str) -> Iterator[Item]:
    """Go through items and show how far it is."""
    with ProgressBar(words) as bar:
        for count, item in enumerate(items):
            bar.update(count / len(items), f"{count:,} of {len(items):,}")
            yield item
        bar.update(1.0, f"{len(items):,} of {len(items):,}")
