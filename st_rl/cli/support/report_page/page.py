"""Build a report from the files of a run folder."""

import base64
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from st_rl.cli.support.report_page import sections
from st_rl.cli.support.report_page.clips import clips
from st_rl.cli.support.report_page.curves import Curves
from st_rl.cli.support.report_page.verdict import verdict
from st_rl.cli.support.run_folders.run_folder import (
    CONFIG_FILE,
    EVAL_FILE,
    EXPORT_FILE,
    PROGRESS_FILE,
    RUN_FILE,
    TRACES_FILE,
    VIDEO_FILE,
)
from st_rl.utils.files.readers import explain

_HERE = Path(__file__).parent
# The page may not load anything from the network.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:"


class SectionError(ValueError):
    """A section that cannot be built from the content of its files."""

    def __init__(self, reason: str, files: Sequence[str]):
        super().__init__(reason)
        self.files = files


@dataclass
class ReportData:
    """Contents of a report; missing parts are left out of the page."""

    settings: Mapping[str, Any]
    """`run.json`: task, options and machine."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """`config.json`: the training configuration."""
    curves: Curves = field(default_factory=dict)
    """Learning curves by log tag."""
    evaluation: Mapping[str, Any] | None = None
    """`eval.json`."""
    traces: Mapping[str, Any] | None = None
    """`play.json`: time series of one robot."""
    video: bytes | None = None
    """The mp4 of `st-rl play`."""
    export: Mapping[str, Any] | None = None
    """`policy.json`: exported file and its difference from torch."""
    reference: tuple[str, Mapping[str, Any]] | None = None
    """A pretrained policy of the task, its name and its `eval.json`."""
    iteration: int | None = None
    """Iteration of the checkpoint that commands take by default; parts of earlier iterations are outdated."""

    def is_outdated(self, part: object) -> bool:
        """Whether a part of the report belongs to an earlier checkpoint than the current one."""
        iteration = part.get("iteration") if isinstance(part, Mapping) else None
        return isinstance(iteration, int) and self.iteration is not None and iteration < self.iteration


def build_page(data: ReportData) -> str:
    """Return the page as HTML."""
    settings = data.settings
    task = str(settings.get("task") or settings.get("environment") or "run")
    evaluation, traces = (EVAL_FILE, data.evaluation), (TRACES_FILE, data.traces)
    curves, run, config = (PROGRESS_FILE, data.curves), (RUN_FILE, settings), (CONFIG_FILE, data.config)
    outdated = f"Outdated: the training has continued to iteration {data.iteration}."
    eval_note, video_note = ((name, outdated if data.is_outdated(part) else "") for name, part in (evaluation, traces))
    current = (EVAL_FILE, None if eval_note[1] else data.evaluation)
    body = [
        _build(sections.video, (VIDEO_FILE, _data_address(data.video)), traces, video_note),
        _build(sections.evaluation, evaluation, eval_note),
        _build(clips, evaluation),
        _build(sections.tracking, traces, evaluation),
        _build(sections.gait, traces),
        _build(sections.joints, traces),
        _build(sections.learning, curves),
        _build(sections.changed, run),
        _build(sections.parents, run),
        _build(sections.configuration, run, config),
        _build(sections.reproduction, run, evaluation, traces, (EXPORT_FILE, data.export)),
    ]
    header = _build(functools.partial(sections.heading, task), run, curves)
    header += _build(functools.partial(verdict, reference=data.reference), current, curves)
    return make_page(f"{task} · st_rl run report", header, "".join(body), "st-rl report")


def make_page(title: str, header: str, body: str, command: str) -> str:
    """Return a self-contained page of HTML parts; `title` is text."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        # An empty icon, so that the browser does not request one from a server.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_read('page.css')}</style>"
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body><header><div>{header}</div></header>'
        f"<main>{body}<footer>Written by {command}; loads nothing from the network.</footer></main>"
        f"<script>{_read('page.js')}</script></body></html>\n"
    )


def _build(section: Callable[..., str], *contents: tuple[str, Any]) -> str:
    """Return a section of the contents of files; SectionError, with the files, if it cannot use them."""
    try:
        return section(*(content for _, content in contents))
    # A file with other content than commands write may raise nearly anything.
    except Exception as error:
        raise SectionError(explain(error), [name for name, _ in contents]) from error


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _data_address(video: bytes | None) -> str | None:
    return None if video is None else "data:video/mp4;base64," + base64.b64encode(video).decode("ascii")
