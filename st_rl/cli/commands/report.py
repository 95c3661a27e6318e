"""Write a report of a run as a single HTML file, report.html: st-rl report RUN."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from st_rl.cli.support.command_line import CommandError, parse_options
from st_rl.cli.support.run_folder import (
    CONFIG_FILE,
    EVAL_FILE,
    EXPORT_FILE,
    PROGRESS_FILE,
    REPORT_FILE,
    TRACES_FILE,
    VIDEO_FILE,
    RunFolder,
    find_run,
    writable_file,
)
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
    from st_rl.cli.support.report_page import ReportData, SectionError, build_page
    from st_rl.cli.support.report_page.curves import read_curves
    from st_rl.sim.old_names import EVALUATION_METRICS, rename_keys
    from st_rl.utils.files import atomic_write

    video = run.file(VIDEO_FILE)
    data = ReportData(
        settings=settings,
        config=run.read_optional_json(CONFIG_FILE) or {},
        curves=read_curves(run.file(PROGRESS_FILE)),
        evaluation=rename_keys(run.read_optional_json(EVAL_FILE), EVALUATION_METRICS),
        traces=run.read_optional_json(TRACES_FILE),
        video=_read_video(run) if video.is_file() else None,
        export=run.read_optional_json(EXPORT_FILE),
    )
    try:
        page = build_page(data)
    except SectionError as error:
        files = " or ".join(str(run.file(name)) for name in error.files if run.file(name).is_file())
        remedies = "; ".join(f"{name}: {run.remedy(name)}" for name in error.files if run.file(name).is_file())
        raise CommandError(f"the content of {files} is damaged ({error}); {remedies}") from error
    with atomic_write(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(f"{target} ({len(page) / 1e3:,.0f} kB)")
    missing = {"eval": data.evaluation, "play": data.video}
    place = f"{shlex.quote(str(run.path))}{task_option(str(settings.get('task')))}"
    commands = [f"st-rl {command} {place}" for command, part in missing.items() if part is None]
    if commands:
        print("To add the missing parts, run:", *commands, sep="\n  ")
    return 0


def _read_video(run: RunFolder) -> bytes:
    """Return the video of `st-rl play`; CommandError if it is too large for a page."""
    from st_rl.utils.files import limits, name_file

    with name_file(run.file(VIDEO_FILE), run.remedy(VIDEO_FILE), CommandError):
        return limits.read_bytes(run.file(VIDEO_FILE), limits.MAX_TEXT_BYTES)
