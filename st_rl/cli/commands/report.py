"""Write one page about a run that opens anywhere, report.html: st-rl report RUN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from st_rl.cli.commands.eval import EVAL_FILE
from st_rl.cli.commands.export import EXPORT_FILE
from st_rl.cli.commands.play import TRACES_FILE, VIDEO_FILE
from st_rl.cli.support.command_line import parse_options
from st_rl.cli.support.run_folder import CONFIG_FILE, find_run, writable_file
from st_rl.utils.old_names import EVALUATION_METRICS, rename_keys

REPORT_FILE = "report.html"
PROGRESS_FILE = "progress.csv"


@dataclass
class ReportOptions:
    """Options of `st-rl report`."""

    run: str
    """Folder of the run, the beginning of its name, a task (its newest run), or: latest."""
    output: Path | None = None
    """Where the page goes; report.html in the run folder when None."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ReportOptions, arguments, "report", __doc__ or "")
    run = find_run(options.run)
    settings = run.settings
    target = writable_file(options.output or run.file(REPORT_FILE))
    from st_rl.cli.support.report_page import ReportData, build_page
    from st_rl.cli.support.report_page.curves import read_curves
    from st_rl.utils.files import atomic_write

    video = run.file(VIDEO_FILE)
    data = ReportData(
        settings=settings,
        config=run.read_json_if_there(CONFIG_FILE) or {},
        curves=read_curves(run.file(PROGRESS_FILE)),
        evaluation=rename_keys(run.read_json_if_there(EVAL_FILE), EVALUATION_METRICS),
        traces=run.read_json_if_there(TRACES_FILE),
        video=video.read_bytes() if video.is_file() else None,
        export=run.read_json_if_there(EXPORT_FILE),
    )
    page = build_page(data)
    with atomic_write(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    print(f"{target} ({len(page) / 1e3:,.0f} kB, one file)")
    missing = [
        f"st-rl {command} {run.path}"
        for part, command in ((data.evaluation, "eval"), (data.video, "play"))
        if part is None
    ]
    if missing:
        print(f"It would show more after: {'; '.join(missing)}")
    return 0
