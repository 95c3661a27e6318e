"""Build a report from the files of a run folder."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from st_rl.cli.support.report_page import sections
from st_rl.cli.support.report_page.curves import Curves

_HERE = Path(__file__).parent
# The page may not load anything from the network.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:"


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


def build_page(data: ReportData) -> str:
    """Return the page as HTML."""
    settings = data.settings
    task = str(settings.get("task", "run"))
    body = [
        sections.tiles(data.curves, data.evaluation),
        sections.video(_data_address(data.video), data.traces),
        sections.evaluation(data.evaluation),
        sections.tracking(data.traces, data.evaluation),
        sections.gait(data.traces),
        sections.joints(data.traces),
        sections.learning(data.curves),
        sections.configuration(settings, data.config),
        sections.reproduction(settings, data.evaluation, data.traces, data.export),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        # An empty icon, so that the browser does not request one from a server.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(task)} · st_rl run report</title><style>{_read('page.css')}</style>"
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>'
        f"<header><div>{sections.heading(task, settings)}</div></header>"
        f"<main>{''.join(body)}<footer>Written by st-rl report; loads nothing from the network.</footer></main>"
        f"<script>{_read('page.js')}</script></body></html>\n"
    )


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _data_address(video: bytes | None) -> str | None:
    return None if video is None else "data:video/mp4;base64," + base64.b64encode(video).decode("ascii")
