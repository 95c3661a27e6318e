"""Compare runs of a task, settings, evaluations and curves side by side: st-rl compare RUN RUN ...."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from st_rl.cli.support.command_line import conf, escape_control, parse_options, program, quote
from st_rl.cli.support.run_folders.run_folder import writable_file

if TYPE_CHECKING:
    from st_rl.cli.support.run_folders.comparison import Band, Comparison

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


@dataclass
class CompareOptions:
    """Options of `st-rl compare`."""

    runs: Annotated[tuple[str, ...], conf("arg", metavar="RUN RUN ...")]
    """Runs to compare: folders, beginnings of names, tasks (their newest run), latest; a folder of runs or of a sweep
    stands for all of its runs. Runs that differ in their seed only are a group."""
    output: Path = Path("compare.html")
    """File of the page."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(CompareOptions, arguments, "compare", __doc__)
    from st_rl.cli.support.report_page.comparison_page import build_comparison_page
    from st_rl.cli.support.run_folders.comparison import compare_runs, find_runs
    from st_rl.utils.files import atomic_write

    runs = find_runs(options.runs)
    target = writable_file(options.output)
    comparison = compare_runs(runs)
    _print(comparison)
    page = build_comparison_page(comparison)
    with atomic_write(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    missing = [run.run for group in comparison.groups for run in group.runs if run.evaluated != "eval"]
    if missing:
        print("Not evaluated yet:", *(f"{program()} eval {quote(name)}" for name in missing), sep="\n  ")
    print(f"{target} ({len(page) / 1e3:,.0f} kB)")
    return 0


def _print(comparison: Comparison) -> None:
    """Print settings, evaluation and curves as tables with a column for each group."""
    from st_rl.cli.support.report_page.sections import MAIN_CURVES
    from st_rl.cli.support.run_folders.comparison import format_statistic

    groups = comparison.groups
    head = [group.label for group in groups]
    _print_table("Settings that differ", head, comparison.different_settings())
    evaluation = {
        title: [format_statistic(name, group.metric(name)) for group in groups]
        for name, title in comparison.metrics().items()
    }
    _print_table("Evaluation without exploration noise, fine physics", head, evaluation)
    curves = {}
    for tag, title, _ in MAIN_CURVES:
        bands = [group.curve(tag, comparison.over_steps) for group in groups]
        if any(bands):
            curves[title] = _curve_cells(bands)
    _print_table("Curves, and their last values", head, curves)


def _curve_cells(bands: Sequence[Band | None]) -> list[str]:
    """Return a small chart of each curve, on a terminal, all with one scale, and its last value."""
    values = [value for band in bands if band is not None for value in band.mean]
    low, high = min(values), max(values)
    cells = []
    for band in bands:
        if band is None:
            cells.append("-")
            continue
        spread = f" ± {band.high[-1] - band.mean[-1]:.3g}" if band.high != band.mean else ""
        chart = f"{_sparkline(band.mean, low, high)} " if sys.stdout.isatty() else ""
        cells.append(f"{chart}{band.mean[-1]:.4g}{spread}")
    return cells


def _sparkline(values: Sequence[float], low: float, high: float) -> str:
    """Return a line of block characters, the means of equal parts of the values."""
    width, scale = min(_WIDTH, len(values)), (high - low) or 1.0
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    parts = [values[begin:end] for begin, end in pairwise(edges)]
    return "".join(_BLOCKS[round((sum(part) / len(part) - low) / scale * (len(_BLOCKS) - 1))] for part in parts)


def _print_table(title: str, head: Sequence[str], rows: dict[str, list[str]]) -> None:
    """Print a table, tab-separated where the output is not a terminal; nothing without rows."""
    if not rows:
        return
    texts = [[escape_control(cell) for cell in (name, *cells)] for name, cells in rows.items()]
    if not sys.stdout.isatty():
        print(title, "\t".join(["", *map(escape_control, head)]), *("\t".join(row) for row in texts), "", sep="\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    table.add_column("")
    for name in head:
        table.add_column(Text(escape_control(name)), justify="right", overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))
    Console().print(table)
