"""The console output of a training: rows of an iteration, as a live panel on a terminal, as plain lines elsewhere."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

# Width of a column of rows from which on several stand side by side, and that of the values in it.
_COLUMN_WIDTH = 60
_VALUE_WIDTH = 24

if TYPE_CHECKING:
    from rich.live import Live
    from rich.panel import Panel


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def console_rows(
    scalars: Mapping[str, float],
    episodes: Mapping[str, float],
    locs: Mapping[str, Any],
    total_steps: int,
    total_seconds: float,
    seconds_left: float,
) -> list[tuple[str, str]]:
    """Return the rows (label, value) that the console shows of one iteration."""
    rows = [
        ("Computation", f"{scalars['Perf/total_fps']:,.0f} steps/s"),
        ("Collection + learning", f"{locs['collection_time']:.3f} s + {locs['learn_time']:.3f} s"),
    ]
    rows += [(tag.removeprefix("Loss/"), f"{v:.4g}") for tag, v in scalars.items() if tag.startswith("Loss/")]
    rows.append(("Mean action noise std", f"{scalars['Policy/mean_noise_std']:.3f}"))
    if "Train/mean_reward" in scalars:
        rows.append(("Mean reward", f"{scalars['Train/mean_reward']:.2f}"))
        rows.append(("Mean episode length", f"{scalars['Train/mean_episode_length']:.1f}"))
    rows += [(tag, f"{value:.4f}") for tag, value in episodes.items()]
    metrics = {"Metrics/velrmsd": "Velocity error", "Metrics/CoT": "Cost of transport"}
    rows += [(label, f"{scalars[tag]:.4f}") for tag, label in metrics.items() if not math.isnan(scalars[tag])]
    return [
        *rows,
        ("Total timesteps", f"{total_steps:,}"),
        *_memory_rows(scalars),
        ("Iteration time", f"{locs['collection_time'] + locs['learn_time']:.3f} s"),
        ("Total time", format_duration(total_seconds)),
        ("ETA", format_duration(seconds_left)),
    ]


def _memory_rows(scalars: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the row of the memory that `memory_scalars` has measured, if any."""
    if "Perf/gpu_total" in scalars:
        total = scalars["Perf/gpu_total"]
        return [("GPU memory", f"{total - scalars['Perf/gpu_global_free_mem']:.2f} of {total:.2f} GiB")]
    if "Perf/process_memory" in scalars:
        return [("Process memory", f"{scalars['Perf/process_memory']:.2f} GiB")]
    return []


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
