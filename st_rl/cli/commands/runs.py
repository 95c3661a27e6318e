"""List runs with their results, sorted and filtered: st-rl runs [FOLDER]."""

from __future__ import annotations

import dataclasses
import json
import operator
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from st_rl.cli.support.command_line import (
    UsageError,
    conf,
    count_of,
    escape_control,
    parse_options,
)
from st_rl.cli.support.metrics import format_duration
from st_rl.cli.support.run_folders.run_folder import RUNS, list_runs
from st_rl.cli.support.run_folders.run_summary import RunSummary, summarize
from st_rl.utils.config import unknown_name_message

COLUMNS = ("run", "task", "robot", "algorithm", "state", "steps", "time", "error", "falls", "parent")
_FIELDS = {"time": "seconds", "return": "episode_return"}
_FILTER = re.compile(r"([\w-]+)\s*(!=|<=|>=|=|<|>|~)\s*(.*)")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


@dataclass
class RunsOptions:
    """Options of `st-rl runs`."""

    folder: Annotated[Path, conf("Positional"), conf("arg", metavar="[FOLDER]")] = RUNS
    """Folder of the runs."""
    sort: str = "started"
    """Column to sort by, the largest or newest last; -COLUMN (as in --sort=-error) sorts the other way round. Besides
    the columns shown: started, seed, iterations, return, evaluated."""
    filter: Annotated[tuple[tuple[str, ...], ...], conf("UseAppendAction")] = ()
    """Conditions that all must hold, such as task=quadruped-walk, state!=failed, 'error<0.1', run~heavy (contains)."""
    json: bool = False
    """Whether to print JSON, with all values."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(RunsOptions, arguments, "runs", __doc__)
    if not options.folder.is_dir():
        raise UsageError(f"no folder {options.folder}: name a folder of runs, or start a run with st-rl train TASK")
    conditions = [_read_condition(text) for words in options.filter for text in words]
    key, is_reversed = _field(options.sort.removeprefix("-"), "--sort"), options.sort.startswith("-")
    found = [summarize(run) for run in list_runs(options.folder)]
    shown = [summary for summary in found if all(holds(summary) for holds in conditions)]
    known = [summary for summary in shown if _value(summary, key) is not None]
    # Runs without a value are first, whatever the direction.
    unknown = [summary for summary in shown if _value(summary, key) is None]
    shown = unknown + sorted(known, key=lambda summary: _value(summary, key), reverse=is_reversed)
    if options.json:
        print(json.dumps([dataclasses.asdict(summary) for summary in shown], indent=2))
        return 0
    rows = [_cells(summary, options.folder) for summary in shown]
    if sys.stdout.isatty():
        _print_table(rows, len(found))
    else:
        print(*("\t".join(row) for row in (COLUMNS, *rows)), sep="\n")
    return 0


def _value(summary: RunSummary, key: str) -> Any:
    return vars(summary)[key]


def _field(name: str, option: str) -> str:
    """Return the field of a column; UsageError for an unknown one."""
    known = [_name_of(field.name) for field in dataclasses.fields(RunSummary)]
    if name not in known:
        raise UsageError(f"{option}: {unknown_name_message('column', name, known)}")
    return _FIELDS.get(name, name)


def _name_of(field: str) -> str:
    return next((name for name, value in _FIELDS.items() if value == field), field)


def _read_condition(text: str) -> Callable[[RunSummary], bool]:
    """Return the test of a `--filter`; a run without a value passes no comparison but `!=`."""
    match = _FILTER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--filter takes COLUMN=VALUE, with =, !=, <, >, <=, >= or ~ (contains); got '{text}'")
    name, sign, wanted = match.groups()
    key = _field(name, "--filter")
    number = _to_number(wanted)

    def holds(summary: RunSummary) -> bool:
        value = _value(summary, key)
        if sign == "~":
            return wanted in str(value)
        if value is None:
            return sign == "!="
        if isinstance(value, int | float) and number is not None:
            return _COMPARISONS[sign](value, number)
        return _COMPARISONS[sign](str(value), wanted)

    return holds


def _to_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cells(summary: RunSummary, folder: Path) -> list[str]:
    """Return the cells of a row; results of the evaluations in the training are marked by `~`."""
    mark = "~" if summary.evaluated == "training" else ""
    error = "-" if summary.error is None else f"{mark}{summary.error:.3f}"
    if summary.error is None and summary.episode_return is not None:
        error = f"return {mark}{summary.episode_return:.4g}"
    path = Path(summary.run)
    cells = {
        "run": str(path.relative_to(folder)) if path.is_relative_to(folder) and path != folder else summary.run,
        "steps": "-" if summary.steps is None else format_steps(summary.steps),
        "time": "-" if summary.seconds is None else format_duration(summary.seconds),
        "error": error,
        "falls": "-" if summary.falls is None else f"{mark}{summary.falls:.0%}",
    }
    texts = (cells.get(name) or _value(summary, _FIELDS.get(name, name)) or "-" for name in COLUMNS)
    return [escape_control(text) for text in texts]


def format_steps(steps: int) -> str:
    """Return a number of steps in thousands or millions."""
    return f"{steps / 1e6:.1f}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k" if steps >= 1e4 else str(steps)


def _print_table(rows: Sequence[Sequence[str]], num_found: int) -> None:
    """Print the rows as a table, and what its columns show."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colors = {"running": "cyan", "finished": "green", "failed": "red", "damaged": "red", "stopped": "yellow"}
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for column in COLUMNS:
        is_number = column in ("steps", "time", "error", "falls")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for row in rows:
        table.add_row(*(Text(cell, style=colors.get(cell, "")) for cell in row))
    console = Console()
    console.print(table)
    hidden = f" of {num_found}" if len(rows) < num_found else ""
    console.print(
        f"{count_of(len(rows), 'run')}{hidden}; error: of the mean forward velocity, m/s; ~: measured in the training",
        style="dim",
        highlight=False,
    )
