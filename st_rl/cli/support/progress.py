"""Progress of long work and its remaining time."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
_LINE_INTERVAL_S = 5.0


@contextmanager
def progress_bar(label: str, show_remaining: bool = True) -> Iterator[Callable[[float | None, str], None]]:
    """Show a bar on a terminal, otherwise a line every few seconds.

    Yields a function of the fraction done, in [0, 1] or None if the total is unknown, and of a short note. With
    `show_remaining=False` the notes of the caller say how long it takes.
    """
    from st_rl.loggers.console_panel import is_live_terminal

    if not is_live_terminal():
        yield _line_printer(label, show_remaining)
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn()]
    columns += [TimeRemainingColumn()] if show_remaining else []
    with Progress(*columns, TextColumn("{task.fields[note]}", style="dim")) as progress:
        task = progress.add_task(label, total=1.0, note="")
        yield lambda fraction, note: progress.update(
            task, total=None if fraction is None else 1.0, completed=fraction or 0.0, note=note
        )


def _line_printer(label: str, show_remaining: bool) -> Callable[[float | None, str], None]:
    """Return a function that prints the fraction done and a note, at most once every few seconds."""
    start = last_line = time.monotonic()

    def update(fraction: float | None, note: str) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line < _LINE_INTERVAL_S:
            return
        last_line = now
        done = "" if fraction is None else f"{fraction:.0%}"
        if show_remaining and fraction is not None and 0.0 < fraction < 1.0:
            seconds = (now - start) * (1.0 - fraction) / fraction
            done += f", {int(seconds // 60)}:{int(seconds % 60):02d} left"
        print(f"{label}: {', '.join(part for part in (done, note) if part)}", flush=True)

    return update


def track(items: Sequence[Item], label: str) -> Iterator[Item]:
    """Iterate over items with a progress bar."""
    with progress_bar(label) as update:
        for count, item in enumerate(items):
            update(count / len(items), f"{count:,} of {len(items):,}")
            yield item
        update(1.0, f"{len(items):,} of {len(items):,}")
