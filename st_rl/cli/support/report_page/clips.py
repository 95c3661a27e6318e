"""The section of a report on motion tracking: a table by clip, and errors over each clip."""

from collections.abc import Mapping
from html import escape
from typing import Any

from st_rl.cli.support.metrics import format_metric
from st_rl.cli.support.report_page.charts import Series, line_chart
from st_rl.cli.support.report_page.sections import make_section

_COLUMNS = {
    "seconds": "s",
    "reached_end": "reached the end",
    "body_pos_error": "body error, m",
    "joint_pos_error": "joint error, rad",
    "acceleration_ratio": "joint acceleration, times that of the clip",
}
# Larger folders get charts of the clips with the largest errors only.
_MAX_CHARTS = 12


def clips(result: Mapping[str, Any] | None) -> str:
    """Return a table with a row for each clip and physics setting, and charts of the error over each clip."""
    by_physics = (result or {}).get("clips") or {}
    if not by_physics:
        return ""
    head = "".join(f'<th class="n">{escape(title)}</th>' for title in _COLUMNS.values())
    rows = [
        f"<tr><td>{escape(str(clip['clip']))}</td><td>{escape(physics)}</td>{_cells(clip)}"
        f"<td>{clip['worst_s']:.2f} s, {escape(str(clip['worst_body']))}, {clip['worst_error']:.2f} m</td></tr>"
        for physics, found in by_physics.items()
        for clip in found
    ]
    table = (
        f'<div class="card scroll"><table><tr><th>clip</th><th>physics</th>{head}<th>worst moment</th></tr>'
        f"{''.join(rows)}</table></div>"
    )
    words = (
        "Body error: mean distance of the tracked bodies from the reference, relative to the anchor, over the robots "
        "that still track the clip. Worst moment: time, body and distance."
    )
    return make_section("Clips", table + f'<div class="charts">{"".join(_charts(by_physics))}</div>', words)


def _cells(clip: Mapping[str, Any]) -> str:
    return "".join(f'<td class="n">{format_metric(key, clip.get(key))}</td>' for key in _COLUMNS)


def _charts(by_physics: Mapping[str, Any]) -> list[str]:
    """Return a chart of the body error over time for each clip, with a line for each physics setting."""
    lines: dict[str, list[Series]] = {}
    worst: dict[str, float] = {}
    for color, (physics, found) in enumerate(by_physics.items(), 1):
        for clip in found:
            name, errors = str(clip["clip"]), clip["body_pos_error_by_step"]
            times = [(step + 1) * clip["period"] for step in range(len(errors))]
            lines.setdefault(name, []).append(Series(physics, times, errors, color))
            worst[name] = max(worst.get(name, 0.0), float(clip["body_pos_error"]))
    shown = sorted(sorted(worst, key=lambda name: -worst[name])[:_MAX_CHARTS], key=list(worst).index)
    return [line_chart(f"{name}: body error, m", lines[name], "time in the clip, s") for name in shown]
