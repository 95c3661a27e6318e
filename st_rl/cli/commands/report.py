"""Write a report of a run as a single HTML file, report.html: st-rl report RUN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from st_rl.cli.support.command_line import conf, parse_options, program, quote
from st_rl.cli.support.run_folders.run_folder import REPORT_FILE, RunFolder, find_run, writable_file
from st_rl.cli.support.task_source import task_option

if TYPE_CHECKING:
    from st_rl.cli.support.report_page import ReportData


@dataclass
class ReportOptions:
    """Options of `st-rl report`."""

    run: Annotated[str, conf("arg", metavar="RUN")]
    """Run: its folder, the beginning of its name, a task (its newest run), or latest."""
    output: Path | None = None
    """File of the report; None writes report.html in the run folder."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ReportOptions, arguments, "report", __doc__)
    run = find_run(options.run)
    target = writable_file(options.output or run.file(REPORT_FILE))
    from st_rl.cli.support.report_page import build_run_page
    from st_rl.utils.files import atomic_write

    data, page = build_run_page(run)
    with atomic_write(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(f"{target} ({len(page) / 1e3:,.0f} kB)")
    if data.settings.get("task") is not None:
        _print_commands(run, data)
    return 0


def _print_commands(run: RunFolder, data: ReportData) -> None:
    """Print the commands that add missing parts to the report, and those that update parts of earlier checkpoints."""
    missing = [command for command, part in {"eval": data.evaluation, "play": data.video}.items() if part is None]
    made = {"eval": data.evaluation, "play": data.traces, "export": (data.export or {}).get("metadata")}
    outdated = [command for command, part in made.items() if data.is_outdated(part)]
    place = f"{quote(run.path)}{task_option(str(data.settings.get('task')))}"
    for title, commands in {"add the missing": missing, "update outdated": outdated}.items():
        if commands:
            print(f"To {title} parts, run:", *(f"{program()} {command} {place}" for command in commands), sep="\n  ")
