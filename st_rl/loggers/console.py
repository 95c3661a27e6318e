"""The console of a training."""

import os
import sys
from collections.abc import Sequence
from typing import Any


class Console:
    """Shows one block of text after the other: in place on a terminal, as plain lines elsewhere."""

    def __init__(self) -> None:
        # The panel on a terminal; there is none before the first block.
        self._live: Any = None

    def show(self, title: str, rows: Sequence[tuple[str, str]], width: int, pad: int) -> None:
        """Show `label: value` rows under a title, labels right-aligned in `pad` columns."""
        if self._live is not None or is_live_terminal():
            self._show_live(title, rows, width, pad)
            return
        lines = [f"{label + ':':>{pad}} {value}" for label, value in rows]
        sys.stdout.write("\n".join(["#" * width, title.center(width).rstrip(), "", *lines, ""]) + "\n")
        sys.stdout.flush()

    def _show_live(self, title: str, rows: Sequence[tuple[str, str]], width: int, pad: int) -> None:
        from rich.live import Live

        if self._live is None:
            # Drawn when there is something new, not by the clock: nothing flickers and no thread runs beside training.
            # What others print meanwhile appears above the panel; an error stream that goes to a file stays there.
            self._live = Live(auto_refresh=False, redirect_stderr=sys.stderr.isatty())
            self._live.start()
        panel = make_panel(title, rows, width, pad, self._live.console.height)
        self._live.update(panel, refresh=True)

    def close(self) -> None:
        """Leave the last block standing on the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def is_live_terminal() -> bool:
    """Whether standard output is a terminal on which text can be drawn over."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def make_panel(title: str, rows: Sequence[tuple[str, str]], width: int, pad: int, height: int) -> Any:
    """A panel of at most `height` lines with the rows under a title; the rows in the middle give way first."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    shown = fitting(rows, height - 4)
    longest = max((len(label) for label, _ in shown), default=0)
    table = Table.grid(padding=(0, 1), expand=True)
    # Long labels take what the values leave: tags of large tasks are longer than any fixed width.
    table.add_column(justify="right", style="dim", no_wrap=True, width=min(max(pad, longest), max(pad, width - 24)))
    table.add_column(no_wrap=True)
    for label, value in shown:
        table.add_row(Text(label), Text(value))
    return Panel(table, title=Text(title, style="bold"), width=width, border_style="blue")


def fitting(rows: Sequence[tuple[str, str]], height: int) -> list[tuple[str, str]]:
    """The rows, or as many of the first and the last ones as fit into `height` lines."""
    if len(rows) <= height or height < 3:
        return list(rows)
    last = min(4, height - 2)
    first = height - last - 1
    return [*rows[:first], ("...", f"{len(rows) - first - last} more"), *rows[-last:]]
