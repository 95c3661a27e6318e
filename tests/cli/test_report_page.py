"""The report: correct values in the charts, one self-contained file, rendered in a real browser."""

import dataclasses
import html
import itertools
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import Any

import pytest

from st_rl.cli import main
from st_rl.cli.support.report_page import ReportData, build_page
from st_rl.cli.support.report_page.charts import (
    Series,
    downsample,
    format_number,
    gait_chart,
    line_chart,
    nice_ticks,
    runs_of_true,
    scatter_chart,
)
from st_rl.cli.support.report_page.comparison_page import build_comparison_page
from st_rl.cli.support.report_page.curves import read_curves
from st_rl.cli.support.report_page.sections import by_kind
from st_rl.cli.support.report_page.verdict import find_verdict
from st_rl.cli.support.run_folders.comparison import Comparison, RunGroup
from st_rl.cli.support.run_folders.run_summary import RunSummary
from st_rl.cli.support.task_source import flatten

JOINTS = [f"{leg}_{joint}_joint" for leg in ("FR", "FL", "RR", "RL") for joint in ("hip", "thigh", "calf")]


def make_data(**changes) -> ReportData:
    steps = 300
    wave = [[math.sin(0.2 * t + k) for t in range(steps)] for k in range(12)]
    forward = [0.3] * 100 + [1.0] * 200
    column = {"num_envs": 2, "falls": 0, "lin_vel_x_error": 0.034, "stance_fraction": [0.5, 0.6], "push_survival": 0.5}
    data = {
        "settings": {
            "task": "quadruped-walk",
            "seed": 7,
            "num_envs": 256,
            "started": "2026-01-01 10:00:00",
            "command_line": "st-rl train quadruped-walk --seed 7",
            "task_config": {"commands": {"lin_vel_x": [0.3, 1.0]}},
            "versions": {"torch": "2.13"},
            "machine": {"cpu": "a processor", "cores": 2},
            "git": {"commit": "0123456789abcdef", "changed": True},
        },
        "config": {"algorithm": {"gamma": 0.99}},
        "curves": {"Train/mean_reward": (list(range(50)), [0.5 * i for i in range(50)])},
        "evaluation": {
            "description": "Two robots.",
            "rows": {
                "falls": "Falls",
                "lin_vel_x_error": "Forward error",
                "stance_fraction": "Stance",
                "push_survival": "Pushes",
            },
            "columns": {
                "training physics": column,
                "fine physics": {**column, "lin_vel_x_error": 0.051, "stance_fraction": [None, 0.6]},
            },
            "grid": {
                "fine physics": {
                    "command": [[0.3, 0.0, 0.0], [1.0, 0.0, 0.0]],
                    "velocity": [[0.31, 0.0, 0.0], [None, None, None]],
                }
            },
        },
        "traces": {
            "period": 0.02,
            "command": [forward, [0.0] * steps, [0.0] * steps],
            "velocity": [[v + 0.05 for v in forward], [0.0] * steps, [0.0] * steps],
            "feet": ["FR_foot", "FL_foot", "RR_foot", "RL_foot"],
            "contact": [[int((t + k) % 25 < 13) for t in range(steps)] for k in (0, 12, 12, 0)],
            "joints": JOINTS,
            "position": wave,
            "torque": wave,
        },
        "video": b"\x00\x01video",
        "export": {"file": "policy.onnx", "opset": 18, "largest_difference": 2e-7, "observations_compared": 300},
    }
    return ReportData(**{**data, **changes})


class Collector(HTMLParser):
    """Collects every tag with its attributes; raises on tags closed in the wrong order."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_and_complete():
    page = build_page(make_data())
    parsed = Collector(page)
    assert parsed.open == []
    sections = [attrs["id"] for tag, attrs in parsed.tags if tag == "section"]
    assert sections == [
        "video",
        "evaluation",
        "tracking",
        "gait",
        "joints",
        "learning-curves",
        "configuration",
        "reproduce",
    ]
    for words in (
        "0.051",
        "50%",
        "st-rl train quadruped-walk --seed 7",
        "0123456789ab",
        "commands.lin_vel_x",
        "a processor",
    ):
        assert words in page


def test_page_has_no_external_references():
    page = build_page(make_data())
    for tag, attrs in Collector(page).tags:
        for name in ("src", "href", "srcset", "poster", "action"):
            assert attrs.get(name, "data:").startswith("data:"), (tag, attrs)
    assert not re.search(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in html.unescape(page)


def test_missing_parts_are_left_out():
    page = build_page(ReportData({"task": "balance"}))
    parsed = Collector(page)
    assert [attrs["id"] for tag, attrs in parsed.tags if tag == "section"] == ["reproduce"]
    assert "NaN" not in page


def test_text_of_a_run_cannot_become_markup():
    settings = {"task": "<script>alert(1)</script>", "command_line": "st-rl train '<b>'", "task_config": {"<i>": "<u>"}}
    page = build_page(ReportData(settings))
    assert "<script>alert" not in page
    assert "<b>'" not in page
    assert "<u>" not in page


def test_curve_is_drawn_at_its_values():
    chart = line_chart("t", [Series("a", [0, 5, 10], [1.0, 2.0, 3.0])], "x")
    points = re.search(r'points="([^"]+)"', chart)
    assert points is not None
    drawn = [tuple(map(float, p.split(","))) for p in points[1].split()]
    ticks = nice_ticks(1.0, 3.0)
    height = [1000 * (1 - (y - ticks[0]) / (ticks[-1] - ticks[0])) for y in (1.0, 2.0, 3.0)]
    assert drawn == [pytest.approx((x, y), abs=0.1) for x, y in zip((0, 500, 1000), height)]


def test_tooltip_values_are_in_the_page():
    chart = line_chart("t", [Series("a", [0, 1], [1.0, 2.0]), Series("b", [0, 1], [3.0, 4.0])], "iteration")
    numbers = json.loads(html.unescape(re.search(r"data-numbers='([^']+)'", chart)[1]))  # pyright: ignore
    assert [series["y"] for series in numbers["series"]] == [[1.0, 2.0], [3.0, 4.0]]
    assert numbers["xl"] == "iteration"


def test_charts_without_numbers_are_empty():
    nan = float("nan")
    assert line_chart("t", [Series("a", [0, 1], [nan, nan])]) == ""
    assert line_chart("t", []) == ""
    assert scatter_chart("t", [(nan, 1.0)], "x") == ""
    assert gait_chart("t", [], [], 0.02) == ""


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-0.37, 12.1), (5.0, 5.0), (0.0, 0.0), (-3e-6, 2e-6), (99.0, 101.0), (1e6, 3e7)]
)
def test_ticks_are_round_and_cover_the_range(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 8
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    assert all(step == pytest.approx(steps[0]) for step in steps)
    mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
    assert any(mantissa == pytest.approx(m) for m in (1, 2, 2.5, 5, 10))


def test_downsampling_keeps_the_mean_and_drops_nan():
    xs, ys = list(range(1000)), [float(i % 10) for i in range(1000)]
    ys[500] = float("nan")
    x, y = downsample(xs, ys, 100)
    assert len(x) <= 100
    assert sum(y) / len(y) == pytest.approx(4.5, abs=0.05)
    assert all(math.isfinite(v) for v in y)


def test_gait_bars_show_foot_contacts():
    assert runs_of_true([True, True, False, True]) == [(0, 2), (3, 4)]
    assert runs_of_true([False]) == []
    chart = gait_chart("t", ["FR"], [[False, True, True, False]], 0.5)
    assert re.findall(r'x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', chart) == [("250.0", "500.0")]


def test_tick_labels_are_short():
    shown = [format_number(v) for v in (0, 1.5, 12345.0, 2.5e6, 1e-4, -0.25, 100)]
    assert shown == ["0", "1.5", "12.3k", "2.5M", "1.0e-4", "-0.25", "100"]


def test_joints_are_grouped_by_kind():
    names = [name for name, _ in by_kind(JOINTS, list(range(12)))]
    assert names[:4] == ["FR_hip", "FL_hip", "RR_hip", "RL_hip"]
    assert [row for _, row in by_kind(["slider", "hinge"], [1, 2])] == [1, 2]


def test_settings_are_flattened_to_dotted_names():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": (2,), "e": None}


def test_curves_are_read_from_the_csv(tmp_path):
    path = tmp_path / "progress.csv"
    path.write_text("step,wall_time,Loss/a,Train/b\n0,1.0,0.5,\n1,2.0,nan,7\n2,3.0,0.25,8\nbroken\n")
    curves = read_curves(path)
    assert curves["Loss/a"] == ([0.0, 2.0], [0.5, 0.25])
    assert curves["Train/b"] == ([1.0, 2.0], [7.0, 8.0])
    assert read_curves(tmp_path / "none.csv") == {}


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


# Runs first in the page and counts its requests, even those blocked by its content policy.
WATCHER = """<script>
let refused = 0;
document.addEventListener("securitypolicyviolation", () => { refused += 1; });
addEventListener("load", () => setTimeout(() => {
  const asked = performance.getEntriesByType("resource").filter((entry) => !entry.name.startsWith("data:")).length;
  document.documentElement.dataset.asked = String(asked + refused);
}, 300));
</script>"""


def dump_dom(page: str, folder) -> str:
    """Elements of the page after its script ran in an offline browser."""
    path = folder / "report.html"
    path.write_text(page.replace('<meta name="viewport"', WATCHER + '<meta name="viewport"', 1), encoding="utf-8")
    command = [
        str(CHROMIUM),
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage"),
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=390,844",
        "--virtual-time-budget=3000",
        "--dump-dom",
        path.as_uri(),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr[-500:]
    return result.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium")
def test_browser_shows_the_page_without_requests(tmp_path):
    dom = dump_dom(build_page(make_data()), tmp_path)
    # Set by the last line of the page's script: all of it ran.
    assert 'data-ready="yes"' in dom
    assert 'data-asked="0"' in dom
    assert dom.count("<polyline") >= 12
    assert dom.count('class="tip"') == dom.count("data-numbers=")
    # The second tab is folded away, the first is not.
    assert re.search(r'id="joint-torque"[^>]*hidden', dom)
    assert not re.search(r'id="joint-position"[^>]*hidden', dom)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium")
def test_browser_test_detects_requests(tmp_path):
    page = build_page(make_data()).replace("</main>", '<img src="http://example.invalid/x.png"></main>')
    assert re.search(r'data-asked="[1-9]', dump_dom(page, tmp_path))


def test_evaluation_of_an_older_checkpoint_is_not_shown_as_current():
    data = make_data(iteration=300)
    old = {"checkpoint": "best.pt", "iteration": 120}
    data.evaluation, data.traces = {**data.evaluation, **old}, {**data.traces, **old}
    page = build_page(data)
    assert page.count("best.pt, after 120 iterations. Outdated: the training has continued to iteration 300.") == 2
    assert "forward velocity error" not in page.split("<h2>")[0]
    data.iteration = 120
    page = build_page(data)
    assert "best.pt, after 120 iterations." in page
    assert "Outdated" not in page
    assert "forward velocity error" in page.split("<h2>")[0]


def test_report_prints_commands_for_outdated_parts(tmp_path, capsys):
    folder = tmp_path / "my run"
    small = ["--num-envs", "4", "--runner.num-steps-per-env", "2", "--env.physics.num-threads", "1"]
    assert main(["train", "balance", "--iterations", "1", *small, "--log-dir", str(folder)]) == 0
    assert main(["eval", str(folder), "--num-envs", "2", "--seconds", "0.2", "--no-fine-physics"]) == 0
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert "To update" not in capsys.readouterr().out
    (folder / "best.pt").unlink()
    assert main(["resume", str(folder), "--iterations", "1"]) == 0
    (folder / "best.pt").unlink(missing_ok=True)
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert f"To update outdated parts, run:\n  st-rl eval '{folder}'\n" in capsys.readouterr().out
    assert "Outdated: the training has continued to iteration 2." in (folder / "report.html").read_text()
    curve = {"Train/mean_reward": ([0], [1.0])}
    assert "mean episode return 1.0 after 1 iteration<" in build_page(ReportData({}, curves=curve))


def evaluated(falls, error, **others):
    """An evaluation of 64 robots."""
    return {"columns": {"fine physics": {"num_envs": 64, "falls": falls, "lin_vel_x_error": error, **others}}}


@pytest.mark.parametrize(
    ("evaluation", "text", "is_good"),
    [
        (evaluated(0, 0.03), "Walks: no robot falls, forward velocity error 0.030 m/s.", True),
        (evaluated(3, 0.03), "Walks: 3 of 64 robots fall, forward velocity error 0.030 m/s.", True),
        (evaluated(9, 0.03), "Walks, but falls too often: 9 of 64 robots fall", False),
        (evaluated(0, 0.4), "Stays up, but does not follow its commands: no robot falls", False),
        (evaluated(60, None), "Falls: 60 of 64 robots fall.", False),
        (evaluated(0, 0.1, success=0.75), "Walks: no robot falls, 75% pass their obstacles, forward", True),
        ({"columns": {"environment": {"return_mean": 498.25, "reached_time_limit": 1.0}}}, "Mean episode return", None),
        (None, "Not evaluated: st-rl eval", None),
    ],
)
def test_verdict_says_whether_the_policy_walks(evaluation, text, is_good):
    verdict = find_verdict(evaluation, {}, None)
    assert verdict.text.startswith(text)
    assert verdict.is_good is is_good


def tracked(reached, error, **others):
    """An evaluation of motion tracking with two clips of ten steps."""
    column = {"num_envs": 4, "reached_end": reached, "body_pos_error": error, "joint_pos_error": 0.1, **others}
    rows = {"reached_end": "Reached the end", "body_pos_error": "Body position error, m"}
    clip = {"seconds": 0.2, "worst_s": 0.08, "worst_body": "left_<foot>", "worst_error": 0.21, "period": 0.02}
    clip |= {"body_pos_error_by_step": [error + 0.01 * step for step in range(10)], "acceleration_ratio": 1.4}
    clips = [{"clip": name, **clip, **column} for name in ("wave", "kick & <turn>")]
    physics = ("training physics", "fine physics")
    return {"columns": dict.fromkeys(physics, column), "rows": rows, "clips": dict.fromkeys(physics, clips)}


@pytest.mark.parametrize(
    ("evaluation", "text", "is_good"),
    [
        (
            tracked(1.0, 0.04),
            "Tracks its clips: 100% of the robots reach the end of their clip, body error 0.040 m",
            True,
        ),
        (tracked(0.5, 0.04), "Fails in its clips: 50% of the robots", False),
        (tracked(1.0, 0.14), "Tracks inexactly: 100% of the robots", False),
    ],
)
def test_verdict_says_whether_the_policy_tracks_its_clips(evaluation, text, is_good):
    verdict = find_verdict(evaluation, {}, None)
    assert verdict.text.startswith(text)
    assert verdict.is_good is is_good


def test_clips_have_a_row_for_each_physics_and_a_chart_of_the_error():
    page = build_page(ReportData({"task": "humanoid-track"}, evaluation=tracked(0.75, 0.05)))
    section = page.split('<section id="clips">')[1].split("</section>")[0]
    assert section.count("<td>wave</td>") == 2
    assert "kick &amp; &lt;turn&gt;</td><td>fine physics</td>" in section
    assert "0.08 s, left_&lt;foot&gt;, 0.21 m" in section
    assert ">75%</td>" in section
    assert section.count("<figure") == 2
    (numbers,) = re.findall(r"data-numbers='([^']*)'", section.split("<figure")[1])
    lines = json.loads(html.unescape(numbers))["series"]
    assert [line["n"] for line in lines] == ["training physics", "fine physics"]
    assert lines[0]["x"][-1] == pytest.approx(0.2)
    assert lines[0]["y"] == pytest.approx([0.05 + 0.01 * step for step in range(10)])


def test_verdict_is_of_the_physics_in_which_most_robots_fall():
    columns = {"training physics": {"num_envs": 10, "falls": 6}, "fine physics": {"num_envs": 10, "falls": 0}}
    assert find_verdict({"columns": columns}, {}, None).text.startswith("Falls: 6 of 10")


def test_verdict_compares_with_the_pretrained_policy():
    verdict = find_verdict(evaluated(1, 0.05), {}, ("pretrained:quadruped-walk", evaluated(0, 0.02)))
    assert verdict.text == (
        "Walks: 1 of 64 robots fall, forward velocity error 0.050 m/s. "
        "pretrained:quadruped-walk: no robot falls, forward velocity error 0.020 m/s."
    )


def test_verdict_of_a_run_without_evaluation_is_of_the_training():
    steps = [1.0, 3.0]
    curves = {"Evaluation/falls": (steps, [1.0, 0.25]), "Evaluation/lin_vel_x_error": (steps, [0.5, 0.1])}
    assert find_verdict(None, curves, None).text.startswith("Walks, but falls too often: 25% of the robots fall")
    assert "Fraction of robots that fall, without noise" in build_page(make_data(curves=curves))


def test_changed_settings_and_parents_are_shown():
    settings = {
        "task": "quadruped-walk",
        "changed_settings": {"env.gait.swing_height": [0.06, 0.1], "policy.actor_hidden_dims": [[8], [16, 16]]},
        "parents": [
            {"run": "/runs/<b>", "checkpoint": "best.pt", "iteration": 300, "task": "quadruped-walk"},
            {"run": "pretrained:go1", "checkpoint": "best.pt", "iteration": None, "task": "other"},
        ],
    }
    page = build_page(make_data(settings=settings))
    assert "<td>env.gait.swing_height</td><td>0.06</td><td>0.1</td>" in page
    assert "<td>8</td><td>16, 16</td>" in page
    assert "<li>/runs/&lt;b&gt; (best.pt, after 300 iterations)</li><li>pretrained:go1 (best.pt, of other)</li>" in page


def test_video_is_at_the_top():
    page = build_page(make_data())
    assert page.index('class="verdict') < page.index("<video") < page.index('id="evaluation"')


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install -y chromium")
def test_browser_shows_a_comparison_without_requests(tmp_path):
    curves = {"Train/mean_reward": ([0.0, 1.0, 2.0], [1.0, 2.0, 4.0])}
    groups = []
    for name, seeds in (("a", (1, 2)), ("b", (3,))):
        nothing = dict.fromkeys(field.name for field in dataclasses.fields(RunSummary))
        runs = [RunSummary(**{**nothing, "run": f"runs/{name}{seed}", "state": "finished"}) for seed in seeds]
        evaluations: list[Any] = [{"num_envs": 64, "falls": seed} for seed in seeds]
        titles = {"falls": "Falls"}
        groups.append(RunGroup(name, runs, {"x": name}, evaluations, titles, [curves] * len(runs), 10))
    dom = dump_dom(build_comparison_page(Comparison("walk", groups)), tmp_path)
    assert 'data-ready="yes"' in dom
    assert 'data-asked="0"' in dom
    assert "<b>1.500 ± 0.500</b>" in dom
    assert dom.count("<polyline") == 2
    assert dom.count("<polygon") == 1
