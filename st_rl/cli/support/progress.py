"""Progress of long work and its remaining time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Item = TypeVar("Item")
_LINE_INTERVAL_S = 5.0


class ProgressBar:
    """A bar on a terminal, otherwise a line every few seconds; for use in a `with` block.

    With `show_remaining=False` the notes of the caller say how long it takes.
    """

    def __init__(self, label: str, show_remaining: bool = True):
        self._label = label
        self._show_remaining = show_remaining
        self._start = self._last_line = time.monotonic()
        # Set on a terminal only.
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> ProgressBar:
        from st_rl.loggers.console_panel import is_live_terminal

        self._start = self._last_line = time.monotonic()
        if is_live_terminal():
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            note = TextColumn("{task.fields[note]}", style="dim")
            columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
            progress = Progress(*columns, *([TimeRemainingColumn()] if self._show_remaining else []), note)
            progress.start()
            self._bar = progress, progress.add_task(self._label, total=1.0, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def update(self, fraction: float | None, note: str = "") -> None:
        """Show the fraction done, in [0, 1] or None if the total is unknown, and a short note."""
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, total=None if fraction is None else 1.0, completed=fraction or 0.0, note=note)
            return
        now = time.monotonic()
        if now - self._last_line >= _LINE_INTERVAL_S:
            self._last_line = now
            done = "" if fraction is None else f"{fraction:.0%}{self._remaining(now, fraction)}"
            print(f"{self._label}: {', '.join(part for part in (done, note) if part)}", flush=True)

    def _remaining(self, now: float, fraction: float) -> str:
        if not (self._show_remaining and 0.0 < fraction < 1.0):
            return ""
        seconds = (now - self._start) * (1.0 - fraction) / fraction
        return f", {int(seconds // 60)}:{int(seconds % 60):02d} left"


def track(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Iterate over items with a progress bar."""
    with ProgressBar(label) as bar:
        for count, item in enumerate(items):
            bar.update(count / len(items), f"{count:,} of {len(items):,}")
            yield item
        bar.update(1.0, f"{len(items):,} of {len(items):,}")
