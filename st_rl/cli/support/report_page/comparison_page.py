"""The page of `st-rl compare`: settings, evaluations and curves of several runs side by side."""

from html import escape

from st_rl.cli.support.metrics import format_duration
from st_rl.cli.support.report_page.charts import NUM_COLORS, Series, line_chart
from st_rl.cli.support.report_page.page import make_page
from st_rl.cli.support.report_page.sections import MAIN_CURVES, is_shown, make_section
from st_rl.cli.support.run_folders.comparison import Band, Comparison, RunGroup, format_statistic


def build_comparison_page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    num_runs = sum(len(group.runs) for group in comparison.groups)
    body = [_runs(comparison), _settings(comparison), _evaluation(comparison), _curves(comparison)]
    title = f"{comparison.task}: {num_runs} runs"
    lead = "Runs that differ in their seed only are a group: mean and standard deviation."
    header = f'<h1>{escape(title)}</h1><p class="lead">{lead}</p>'
    return make_page(f"{title} · st_rl comparison", header, "".join(body), "st-rl compare")


def _color(index: int) -> int:
    return index % NUM_COLORS + 1


def _head(comparison: Comparison) -> str:
    cells = "".join(
        f'<th class="n"><i class="swatch c{_color(index)}"></i> {escape(group.label)}</th>'
        for index, group in enumerate(comparison.groups)
    )
    return f"<tr><th></th>{cells}</tr>"


def _table(comparison: Comparison, rows: str) -> str:
    return f'<div class="card scroll"><table class="compared">{_head(comparison)}{rows}</table></div>'


def _runs(comparison: Comparison) -> str:
    """Return a table of what was trained."""
    rows = []
    for title, values in (
        ("Runs", [_names(group) for group in comparison.groups]),
        ("Seeds", [", ".join(str(run.seed) for run in group.runs) for group in comparison.groups]),
        ("State", [", ".join(dict.fromkeys(run.state for run in group.runs)) for group in comparison.groups]),
        ("Steps", [_join(group, "steps") for group in comparison.groups]),
        ("Time", [_join(group, "seconds") for group in comparison.groups]),
        ("Started from", [group.runs[0].parent or "-" for group in comparison.groups]),
    ):
        rows.append(f"<tr><td>{title}</td>{_cells(values)}</tr>")
    return make_section("Runs", _table(comparison, "".join(rows)))


def _cells(texts: list[str]) -> str:
    return "".join(f'<td class="n">{escape(text)}</td>' for text in texts)


def _names(group: RunGroup) -> str:
    return ", ".join(run.run for run in group.runs)


def _join(group: RunGroup, name: str) -> str:
    values = [vars(run)[name] for run in group.runs]
    texts = [
        "-" if value is None else format_duration(value) if name == "seconds" else f"{value:,}" for value in values
    ]
    return ", ".join(dict.fromkeys(texts))


def _settings(comparison: Comparison) -> str:
    settings = comparison.different_settings()
    rows = "".join(f"<tr><td>{escape(name)}</td>{_cells(texts)}</tr>" for name, texts in settings.items())
    content = _table(comparison, rows) if rows else '<p class="soft">None but the seed.</p>'
    return make_section("Settings that differ", content)


def _evaluation(comparison: Comparison) -> str:
    """Return the evaluation table, the best mean of a row in bold."""
    rows = []
    for name, title in comparison.metrics().items():
        best = comparison.best(name)
        texts = [escape(format_statistic(name, group.metric(name))) for group in comparison.groups]
        cells = "".join(
            f'<td class="n">{f"<b>{text}</b>" if index == best else text}</td>' for index, text in enumerate(texts)
        )
        rows.append(f"<tr><td>{escape(title)}</td>{cells}</tr>")
    words = "Without exploration noise, by st-rl eval; the column with the finest physics. Best mean in bold."
    missing = '<p class="soft">No run has an eval.json: st-rl eval RUN writes it.</p>'
    content = _table(comparison, "".join(rows)) if rows else missing
    return make_section("Evaluation", content, words if rows else "")


def _curves(comparison: Comparison) -> str:
    """Draw the main curves of all groups, and all others in a collapsed block."""
    tags = dict.fromkeys(tag for group in comparison.groups for curves in group.curves for tag in curves)
    main = {tag: (title, logarithmic) for tag, title, logarithmic in MAIN_CURVES if tag in tags}
    charts = [_chart(comparison, tag, title, logarithmic) for tag, (title, logarithmic) in main.items()]
    rest = [tag for tag in sorted(tags) if tag not in main and is_shown(tag)]
    more = [_chart(comparison, tag, tag, small=True) for tag in rest]
    content = f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""
    if any(more):
        summary = f"<summary>More curves ({sum(map(bool, more))})</summary>"
        content += f'<details>{summary}<div class="charts many">{"".join(more)}</div></details>'
    has_groups = any(len(group.runs) > 1 for group in comparison.groups)
    return make_section("Curves", content, "Bands: standard deviation over seeds." if has_groups else "")


def _chart(comparison: Comparison, tag: str, title: str, logarithmic: bool = False, small: bool = False) -> str:
    series = []
    for index, group in enumerate(comparison.groups):
        band = group.curve(tag, comparison.over_steps)
        if band is not None:
            series.append(_series(group, band, _color(index)))
    x_label = "steps" if comparison.over_steps else "iteration"
    return line_chart(title, series, x_label, logarithmic=logarithmic, small=small)


def _series(group: RunGroup, band: Band, color: int) -> Series:
    spread = (band.low, band.high) if len(group.runs) > 1 else None
    return Series(group.label, band.x, band.mean, color, band=spread)
