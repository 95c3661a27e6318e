"""The console output of a training: a live panel on a terminal, plain lines elsewhere."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

# Width of a column of rows from which on several stand side by side, and that of the values in it.
_COLUMN_WIDTH = 60
_VALUE_WIDTH = 24

if TYPE_CHECKING:
    from rich.live import Live
    from rich.panel import Panel


class ConsolePanel:
    """Shows the rows of one iteration after the other: in place on a terminal, as plain lines elsewhere."""

    def __init__(self) -> None:
        # Created with the first panel.
        self._live: Live | None = None

    def show(self, title: str, rows: Sequence[tuple[str, str]], width: int, pad: int) -> None:
        """Show `label: value` rows under a title, labels right-aligned in `pad` columns.

        Plain lines have this `width`, a panel that of the terminal.
        """
        if self._live is not None or is_live_terminal():
            self._show_live(title, rows, pad)
            return
        lines = [f"{label + ':':>{pad}} {value}" for label, value in rows]
        sys.stdout.write("\n".join(["#" * width, title.center(width).rstrip(), "", *lines, ""]) + "\n")
        sys.stdout.flush()

    def _show_live(self, title: str, rows: Sequence[tuple[str, str]], pad: int) -> None:
        from rich.live import Live

        if self._live is None:
            # Refreshed on update only: no flicker and no refresh thread during training. Output of others appears
            # above the panel; stderr that is redirected to a file stays there.
            self._live = Live(auto_refresh=False, redirect_stderr=sys.stderr.isatty())
            self._live.start()
        console = self._live.console
        panel = make_panel(title, rows, console.width, pad, console.height)
        self._live.update(panel, refresh=True)

    def close(self) -> None:
        """Leave the last panel on the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def is_live_terminal() -> bool:
    """Return whether standard output is a terminal that can redraw text."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def make_panel(title: str, rows: Sequence[tuple[str, str]], width: int, pad: int, height: int) -> "Panel":
    """Return a panel of at most `height` lines with the rows under a title, side by side where `width` has room.

    Rows in the middle are dropped first.
    """
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    lines = max(1, height - 4)
    num_columns = max(1, min(-(-len(rows) // lines), width // _COLUMN_WIDTH))
    shown = fit_rows(rows, num_columns * (height - 4))
    lines = -(-len(shown) // num_columns)
    longest = max((len(label) for label, _ in shown), default=0)
    # Labels longer than `pad` get the width that the values do not need.
    pad, room = (pad, width) if num_columns == 1 else (0, (width - 4) // num_columns)
    label_width = min(max(pad, longest), max(pad, room - _VALUE_WIDTH))
    table = Table.grid(padding=(0, 1), expand=True)
    for _ in range(num_columns):
        table.add_column(justify="right", style="dim", no_wrap=True, width=label_width)
        table.add_column(no_wrap=True, ratio=1)
    for line in range(lines):
        table.add_row(*(Text(text) for row in shown[line::lines] for text in row))
    return Panel(table, title=Text(title, style="bold"), width=width, border_style="blue")


def fit_rows(rows: Sequence[tuple[str, str]], height: int) -> list[tuple[str, str]]:
    """Return the rows, or the first and last of them that fit into `height` lines."""
    if len(rows) <= height or height < 3:
        return list(rows)
    last = min(4, height - 2)
    first = height - last - 1
    return [*rows[:first], ("...", f"{len(rows) - first - last} more"), *rows[-last:]]
