"""Summarize a dataset: trajectories, steps, lengths, returns, writers: st-rl dataset info FOLDER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from st_rl.cli.commands.dataset.folders import inspect, size
from st_rl.cli.support.command_line import parse_options


@dataclass
class InfoOptions:
    """Options of `st-rl dataset info`."""

    folder: Path
    """Folder of the dataset."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(InfoOptions, arguments, "dataset info", __doc__)
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from st_rl.storage.rollout_files import layout, maintenance

    found = inspect(options.folder, "reading")
    # On a narrow terminal long folder names wrap, and no word is cut.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=True)
    for column in ("folder", "trajectories", "finished", "steps", "mean length", "mean return", "size", "writer"):
        table.add_column(
            column,
            justify="left" if column in ("folder", "writer") else "right",
            overflow="fold",
            min_width=max(map(len, column.split())),
        )
    for folder, states in found.items():
        kept = [state for state in states if state.num_frames]
        steps, finished = maintenance.totals(kept)
        writers = maintenance.active_writers(folder)
        table.add_row(
            folder,
            f"{len(kept):,}",
            f"{finished:,}",
            f"{steps:,}",
            f"{steps / len(kept):.1f}" if kept else "-",
            f"{fmean(state.total_reward for state in kept):.2f}" if kept else "-",
            size(sum(state.num_bytes for state in kept)),
            ", ".join(writers) or "-",
        )
    console = Console()
    console.print(table)
    for folder, states in found.items():
        metadata = layout.read_metadata(folder) or {}
        widths = next((state.widths for state in states if state.widths), {})
        words = ", ".join(f"{name} {width}" for name, width in widths.items() if name not in ("dones", "timeouts"))
        made_by = " of ".join(str(metadata[key]) for key in ("policy", "env") if key in metadata)
        console.print(f"{folder}: {words or 'empty'}" + (f"; {made_by}" if made_by else ""), highlight=False)
    damaged = sum(len(state.damaged) for states in found.values() for state in states)
    if damaged:
        console.print(f"{damaged} corrupt files; list them with: st-rl dataset check {options.folder}")
    return 0
