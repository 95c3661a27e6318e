"""Write a report of a run as a single HTML file, report.html: st-rl report RUN."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from st_rl.cli.support.command_line import parse_options
from st_rl.cli.support.run_folder import REPORT_FILE, find_run, writable_file
from st_rl.cli.support.task_source import task_option


@dataclass
class ReportOptions:
    """Options of `st-rl report`."""

    run: str
    """Run: its folder, the beginning of its name, a task (its newest run), or latest."""
    output: Path | None = None
    """File of the report; None writes report.html in the run folder."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ReportOptions, arguments, "report", __doc__)
    run = find_run(options.run)
    settings = run.settings
    target = writable_file(options.output or run.file(REPORT_FILE))
    from st_rl.cli.support.report_page import build_run_page
    from st_rl.utils.files import atomic_write

    data, page = build_run_page(run)
    with atomic_write(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(f"{target} ({len(page) / 1e3:,.0f} kB)")
    missing = {"eval": data.evaluation, "play": data.video}
    place = f"{shlex.quote(str(run.path))}{task_option(str(settings.get('task')))}"
    commands = [f"st-rl {command} {place}" for command, part in missing.items() if part is None]
    if commands:
        print("To add the missing parts, run:", *commands, sep="\n  ")
    return 0
