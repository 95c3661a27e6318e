"""Sections of a report as HTML; empty if the run has no data for them."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from st_rl.cli.support.command_line import count_of
from st_rl.cli.support.metrics import describe_size, format_duration, format_metric
from st_rl.cli.support.report_page.charts import Series, finite, gait_chart, line_chart, scatter_chart
from st_rl.cli.support.report_page.curves import Curves
from st_rl.cli.support.run_folders.run_folder import CHANGED, PARENTS
from st_rl.cli.support.task_source import flatten

AXES = (("lin_vel_x", "m/s"), ("lin_vel_y", "m/s"), ("ang_vel_yaw", "rad/s"))
GAIT_SECONDS = 4.0
MAIN_CURVES = (
    ("Evaluation/score", "Score of checkpoints without noise", False),
    ("Evaluation/falls", "Fraction of robots that fall, without noise", False),
    ("Evaluation/lin_vel_x_error", "Error of mean lin_vel_x without noise, m/s", False),
    ("Evaluation/reached_end", "Fraction of robots that reach the end of their clip, without noise", False),
    ("Evaluation/body_pos_error", "Body position error without noise, m", False),
    ("Train/mean_reward", "Mean episode return", False),
    ("Train/mean_episode_length", "Mean episode length, steps", False),
    ("Metrics/velrmsd", "Velocity tracking error in training, m/s", False),
    ("Metrics/CoT", "Cost of transport", False),
    ("Loss/value_loss", "Value loss", False),
    ("Loss/surrogate_loss", "Surrogate loss", False),
    ("Policy/mean_noise_std", "Exploration noise (std)", False),
    ("Loss/learning_rate", "Learning rate (log scale)", True),
    ("Perf/total_fps", "Steps per second", False),
)

# Curves of the machine and the training loop, not shown.
_NOT_SHOWN = ("Perf/", "Train/ratio", "Train/mean_reward_each")


def make_section(title: str, content: str, words: str = "", name: str = "") -> str:
    """Return a titled section; empty without content."""
    if not content:
        return ""
    remark = f"<p>{words}</p>" if words else ""
    return (
        f'<section id="{name or title.lower().replace(" ", "-")}"><h2>{escape(title)}</h2>{remark}{content}</section>'
    )


def is_shown(tag: str) -> bool:
    """Whether a curve is one of the learning, not of the machine or the training loop."""
    return "/" in tag and not tag.startswith(_NOT_SHOWN)


def heading(task: str, settings: Mapping[str, Any], curves: Curves) -> str:
    """Return the title and a line about the run."""
    facts = [f"started {settings['started']}" if settings.get("started") else ""]
    facts += [f"seed {settings['seed']}" if "seed" in settings else ""]
    facts += [describe_size(settings["num_envs"], settings.get("num_ranks", 1)) if "num_envs" in settings else ""]
    if reward := curves.get("Train/mean_reward"):
        iterations = count_of(int(reward[0][-1]) + 1, "iteration")
        facts.append(f"mean episode return {reward[1][-1]:.1f} after {iterations}")
    rate = curves.get("Perf/total_fps")
    seconds = sum(sum(curves[tag][1]) for tag in ("Perf/collection time", "Perf/learning_time") if tag in curves)
    facts += [f"trained for {format_duration(seconds)} at {fmean(rate[1]):,.0f} steps/s" if rate and seconds else ""]
    line = " · ".join(escape(fact) for fact in facts if fact)
    return f'<h1>{escape(task)}</h1><p class="lead">{line}</p>'


def reported_column(evaluation: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any]] | None:
    """Return the column to report: the last one, with the finest physics."""
    columns = (evaluation or {}).get("columns") or {}
    return list(columns.items())[-1] if columns else None


def describe_checkpoint(part: Mapping[str, Any] | None, note: str) -> str:
    """Return a sentence on the checkpoint that a part of the report shows, with a note; empty if it is unknown."""
    if not part or part.get("iteration") is None:
        return escape(note)
    file = f"{part['checkpoint']}, " if part.get("checkpoint") else ""
    return escape(f"{file}after {count_of(part['iteration'], 'iteration')}. {note}".strip())


def video(address: str | None, traces: Mapping[str, Any] | None, note: str = "") -> str:
    """Return the video player; `note` says if the video is outdated."""
    if address is None:
        return ""
    arrows = ""
    if traces and traces.get("command"):
        arrows = (
            '<p><i class="arrow" style="background:#2bb673"></i>commanded velocity '
            '<i class="arrow" style="background:#3b82f6"></i>measured velocity</p>'
        )
    player = f'<video controls autoplay muted loop playsinline src="{address}"></video>'
    return make_section("Video", f'<div class="card video">{player}{arrows}</div>', describe_checkpoint(traces, note))


def evaluation(result: Mapping[str, Any] | None, note: str = "") -> str:
    """Return the evaluation table: a row per metric, a column per physics setting; `note` says if it is outdated."""
    columns = (result or {}).get("columns") or {}
    if not result or not columns:
        return ""
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in columns)
    rows = []
    for key, row in (result.get("rows") or {}).items():
        cells = "".join(
            f'<td class="n">{escape(format_metric(key, column.get(key), column.get("num_envs")))}</td>'
            for column in columns.values()
        )
        rows.append(f"<tr><td>{escape(row)}</td>{cells}</tr>")
    words = f"{describe_checkpoint(result, note)} {escape(str(result.get('description', '')))}".strip()
    table = f'<div class="card scroll"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'
    return make_section("Evaluation", table, words)


def tracking(traces: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> str:
    """Plot measured velocity against command: one robot over time, and all robots of the evaluation."""
    charts = []
    if traces and traces.get("command"):
        times = _times(traces)
        for index, (name, unit) in enumerate(AXES):
            command, measured = traces["command"][index], traces["velocity"][index]
            if not any(command) and name != "lin_vel_x":
                continue
            pair = [Series("command", times, command, 0, dashed=True), Series("measured", times, measured, index + 1)]
            charts.append(line_chart(f"{name}, {unit}", pair, "time, s"))
    points = []
    column = reported_column(result)
    grid = (result or {}).get("grid") or {}
    if column is not None and column[0] in grid:
        robots = grid[column[0]]
        for index, (name, unit) in enumerate(AXES):
            pairs = [(c[index], v[index]) for c, v in zip(robots["command"], robots["velocity"])]
            if len({a for a, _ in pairs}) > 1:
                note = f"one dot per robot (mean), {column[0]}"
                points.append(scatter_chart(f"{name}: measured, {unit}", pairs, f"commanded, {unit}", note))
    groups = "".join(f'<div class="charts">{"".join(group)}</div>' for group in (charts, points) if any(group))
    return make_section("Tracking", groups, "Measured velocity and command.")


def gait(traces: Mapping[str, Any] | None) -> str:
    """Plot the foot contacts."""
    if not traces or not traces.get("contact"):
        return ""
    steps = round(GAIT_SECONDS / traces["period"])
    contact = traces["contact"]
    begin = _walking_window(traces, steps)
    shown = [[bool(value) for value in foot[begin : begin + steps]] for foot in contact]
    names = [str(name).removesuffix("_foot") for name in traces["feet"]]
    chart = gait_chart("Foot contacts", names, shown, traces["period"], f"from {begin * traces['period']:.1f} s")
    duty = ", ".join(f"{name} {sum(map(bool, foot)) / max(1, len(foot)):.0%}" for name, foot in zip(names, contact))
    return make_section(
        "Gait", chart, f"Bars: foot in contact with the ground. Stance fraction of the recording: {escape(duty)}."
    )


def _walking_window(traces: Mapping[str, Any], steps: int) -> int:
    """Return the start of the window with the fastest commands."""
    command = traces.get("command")
    total = len(traces["contact"][0])
    if not command or total <= steps:
        return 0
    speed = [abs(a) for a in command[0]]
    sums = [sum(speed[i : i + steps]) for i in range(0, total - steps + 1, max(1, steps // 8))]
    return max(1, steps // 8) * sums.index(max(sums))


def joints(traces: Mapping[str, Any] | None) -> str:
    """Plot position and torque of every joint."""
    if not traces or not traces.get("joints"):
        return ""
    steps = min(len(traces["position"][0]), round(GAIT_SECONDS / traces["period"]))
    begin = _walking_window(traces, steps) if traces.get("contact") else 0
    times = _times(traces)[begin : begin + steps]
    buttons, groups = [], []
    for index, (key, name, unit) in enumerate((("position", "positions", "rad"), ("torque", "torques", "N m"))):
        rows = [row[begin : begin + steps] for row in traces.get(key) or []]
        values = finite([value for row in rows for value in row])
        if not values:
            continue
        # Torques share a range so that joints can be compared; positions do not, or slow joints would look flat.
        common = (min(values), max(values)) if key == "torque" else None
        charts = [
            line_chart(joint, [Series(name[:-1], times, row, index + 1)], "s", f"{unit} over s", common, small=True)
            for joint, row in by_kind(traces["joints"], rows)
        ]
        buttons.append(f'<button type="button" data-shows="joint-{key}">{name.capitalize()}, {unit}</button>')
        groups.append(f'<div class="charts many" id="joint-{key}">{"".join(charts)}</div>')
    return make_section("Joints", f'<div class="tabs">{"".join(buttons)}</div>{"".join(groups)}')


def by_kind(names: Sequence[str], rows: Sequence[Any]) -> list[tuple[str, Any]]:
    """Group joints by kind, all hips, then all thighs, if names consist of a leg and a kind."""
    short = [str(name).removesuffix("_joint") for name in names]
    kinds = [name.split("_", 1)[-1] for name in short]
    order = sorted(range(len(short)), key=lambda i: kinds.index(kinds[i]))
    return [(short[i], rows[i]) for i in order]


def _times(traces: Mapping[str, Any]) -> list[float]:
    return [round(i * traces["period"], 4) for i in range(len(traces["position"][0]))]


def learning(curves: Curves) -> str:
    """Plot the main learning curves, and all others in a collapsed block."""
    errors = [(name, f"Tracking/{name}_error") for name, _ in AXES if f"Tracking/{name}_error" in curves]
    charts = []
    for tag, title, logarithmic in MAIN_CURVES:
        if tag == "Metrics/velrmsd" and errors:  # the task logs the errors of each axis
            lines = [Series(name, *curves[error], color) for color, (name, error) in enumerate(errors, 1)]
            charts.append(line_chart("Velocity tracking errors in training", lines, "iteration"))
        elif tag in curves:
            charts.append(line_chart(title, [Series(title, *curves[tag])], "iteration", logarithmic=logarithmic))
    shown = {tag for tag, _, _ in MAIN_CURVES} | {tag for _, tag in errors}
    rest = [tag for tag in curves if tag not in shown and is_shown(tag)]
    more = "".join(line_chart(tag, [Series(tag, *curves[tag], 4)], "iteration", small=True) for tag in sorted(rest))
    main = f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""
    details = f'<details><summary>More curves ({len(rest)})</summary><div class="charts many">{more}</div></details>'
    return make_section("Learning curves", main + (details if more else ""))


def changed(settings: Mapping[str, Any]) -> str:
    """Return a table of the settings that differ from the defaults of the task."""
    values = settings.get(CHANGED) or {}
    rows = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(_value_text(default))}</td><td>{escape(_value_text(value))}</td></tr>"
        for name, (default, value) in values.items()
    )
    head = "<tr><th>Setting</th><th>Default</th><th>This run</th></tr>"
    table = f'<div class="card scroll"><table class="config">{head}{rows}</table></div>'
    return make_section("Settings that differ from the defaults", table if rows else "", name="changed")


def parents(settings: Mapping[str, Any]) -> str:
    """Return the runs that a run started from, the nearest first."""
    items = []
    for parent in settings.get(PARENTS) or []:
        iteration = "" if parent.get("iteration") is None else f", after {count_of(parent['iteration'], 'iteration')}"
        task = "" if parent.get("task") in (None, settings.get("task")) else f", of {parent['task']}"
        items.append(
            f"<li>{escape(str(parent['run']))} ({escape(str(parent['checkpoint']))}{escape(iteration + task)})</li>"
        )
    content = f'<div class="card"><ol class="chain">{"".join(items)}</ol></div>' if items else ""
    words = "The weights and normalizers of the first one; that one started from the second, and so on."
    return make_section("Started from", content, words if len(items) > 1 else "", name="parents")


def configuration(settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return tables of all settings, collapsed."""
    parts = {
        "Task": settings.get("task_config") or {},
        **{name.capitalize(): config.get(name) or {} for name in config},
    }
    blocks = []
    for name, values in parts.items():
        if values and isinstance(values, Mapping):
            blocks.append(f"<details><summary>{escape(name)}</summary>{_key_table(flatten(values))}</details>")
    return make_section("Configuration", "".join(blocks))


def _value_text(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _key_table(values: Mapping[str, Any]) -> str:
    """Return a table of keys and values."""
    texts = {key: "None" if value is None else _value_text(value) for key, value in values.items()}
    rows = "".join(f"<tr><td>{escape(str(key))}</td><td>{escape(text)}</td></tr>" for key, text in texts.items())
    return f'<table class="config">{rows}</table>'


def reproduction(
    settings: Mapping[str, Any],
    result: Mapping[str, Any] | None,
    traces: Mapping[str, Any] | None,
    export: Mapping[str, Any] | None,
) -> str:
    """Return the commands, versions and machine of the run."""
    made = [part for part in (settings, *settings.get("resumed", []), result, traces, export) if part]
    commands = [str(part["command_line"]) for part in made if part.get("command_line")]
    commands.append("st-rl report latest")
    script = escape("\n".join(commands))
    git = settings.get("git") or {}
    changes = " with uncommitted changes (see git/ in the run folder)" if git.get("changed") else ""
    code = f"{git['commit'][:12]}{changes}" if git else "-"
    facts = {"seed": settings.get("seed", "-"), "code": code, **flatten(settings.get("machine") or {})}
    blocks = [_facts("Run", facts), _facts("Versions", settings.get("versions") or {})]
    if export:
        keys = ("file", "opset", "largest_difference", "observations_compared")
        shown = {key.replace("_", " "): export[key] for key in keys if key in export}
        blocks.append(_facts("Exported policy", shown))
    copy = f'<div class="copy"><button type="button">copy</button><pre>{script}</pre></div>'
    columns = f'<div class="columns" style="margin-top:12px">{"".join(blocks)}</div>'
    words = "The same seed, machine and versions give the same run."
    return make_section("How to reproduce", copy + columns, words, name="reproduce")


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    texts = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in facts.items()}
    return f'<div class="card"><h3>{escape(title)}</h3>{_key_table(texts)}</div>' if facts else ""
