"""Runs side by side: groups by seed, settings that differ, evaluations and curves with mean and spread."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from st_rl.cli.support.command_line import CommandError, UsageError
from st_rl.cli.support.metrics import format_metric
from st_rl.cli.support.report_page.curves import Curves, read_curves
from st_rl.cli.support.run_folders.run_folder import (
    CONFIG_FILE,
    EVAL_FILE,
    PROGRESS_FILE,
    RUN_FILE,
    RunFolder,
    find_run,
    list_runs,
)
from st_rl.cli.support.run_folders.run_summary import RunSummary, parent_name, summarize
from st_rl.cli.support.training.settings_file import flat_settings

# Metrics of an evaluation for which less, or more, is better.
_LESS = ("falls", "error", "mae", "diverged", "cost_of_transport", "step_asymmetry")
_MORE = ("success", "push_survival", "return", "length_mean", "reached_time_limit", "reached_end", "completed")
_MISSING = "-"
_LABEL_LENGTH = 30


class Statistic(NamedTuple):
    """Mean and standard deviation of a number over the runs of a group."""

    mean: float
    spread: float
    num_runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic | None:
        """Return the statistic of the finite values; None without any."""
        known = [float(value) for value in values if math.isfinite(value)]
        return cls(fmean(known), pstdev(known), len(known)) if known else None


class Band(NamedTuple):
    """A curve of a group: mean, and mean minus and plus the standard deviation."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


@dataclass
class RunGroup:
    """Runs that differ in their seed only."""

    label: str
    runs: list[RunSummary]
    settings: dict[str, Any]
    """All settings by dotted name, without the seed."""
    evaluations: list[Mapping[str, Any]]
    """Metrics in the finest physics, of the runs that have an `eval.json`."""
    titles: dict[str, str]
    """Headings of these metrics."""
    curves: list[Curves]
    steps_per_iteration: int

    def metric(self, name: str) -> Statistic | None:
        """Return a metric of the evaluations; None if no run has it."""
        values = [evaluation.get(name) for evaluation in self.evaluations]
        return Statistic.of([value for value in values if isinstance(value, int | float) and value is not None])

    def curve(self, tag: str, over_steps: bool) -> Band | None:
        """Return a curve over iterations or steps, where all runs of the group have it; None if one has it not."""
        curves = [dict(zip(*curve[tag])) for curve in self.curves if tag in curve]
        if len(curves) < len(self.curves) or not curves:
            return None
        x = sorted(set.intersection(*(set(curve) for curve in curves)))
        points = [[curve[step] for curve in curves] for step in x]
        means, spreads = [fmean(values) for values in points], [pstdev(values) for values in points]
        low = [mean - spread for mean, spread in zip(means, spreads)]
        high = [mean + spread for mean, spread in zip(means, spreads)]
        places = [(step + 1) * self.steps_per_iteration if over_steps else step for step in x]
        return Band(places, means, low, high) if x else None


@dataclass
class Comparison:
    """Groups of runs of one task."""

    task: str
    groups: list[RunGroup]

    @property
    def over_steps(self) -> bool:
        """Whether curves are drawn over environment steps, because iterations have different numbers of them."""
        return len({group.steps_per_iteration for group in self.groups}) > 1

    def different_settings(self) -> dict[str, list[str]]:
        """Return the settings that differ, dotted name -> value of each group."""
        names = dict.fromkeys(name for group in self.groups for name in group.settings)
        values = {name: [_text(group.settings.get(name)) for group in self.groups] for name in names}
        return {name: texts for name, texts in sorted(values.items()) if len(set(texts)) > 1}

    def metrics(self) -> dict[str, str]:
        """Return name and heading of the numbers that an evaluation of the runs has."""
        titles = {name: title for group in self.groups for name, title in group.titles.items()}
        return {name: title for name, title in titles.items() if any(group.metric(name) for group in self.groups)}

    def best(self, name: str) -> int | None:
        """Return the group with the best mean of a metric; None where neither less nor more is better, or all agree."""
        is_less, is_more = (any(word in name and "std" not in name for word in words) for words in (_LESS, _MORE))
        statistics = [group.metric(name) for group in self.groups]
        known = {index: statistic.mean for index, statistic in enumerate(statistics) if statistic is not None}
        if not (is_less or is_more) or len(set(known.values())) < 2:
            return None
        choose: Callable[..., int] = min if is_less else max
        return choose(known, key=lambda index: known[index])


def find_runs(names: Sequence[str]) -> list[RunFolder]:
    """Return the runs that a user names, all runs of a folder of runs or of a sweep; UsageError for less than two."""
    runs: list[RunFolder] = []
    for name in names:
        folder = Path(name).expanduser()
        inside = list_runs(folder) if folder.is_dir() and not (folder / RUN_FILE).is_file() else []
        runs += inside or [find_run(name, announce=False)]
    unique = list({run.path.resolve(): run for run in runs}.values())
    if len(unique) < 2:
        raise UsageError("which runs? st-rl compare A B ..., with at least two runs, or a folder of runs")
    return unique


def compare_runs(runs: Sequence[RunFolder]) -> Comparison:
    """Read the runs and group them; CommandError if they are of different tasks or a file is damaged."""
    tasks = {str(run.path): str(run.settings.get("task") or run.settings.get("environment")) for run in runs}
    first, task = next(iter(tasks.items()))
    other = next((name for name in tasks if tasks[name] != task), None)
    if other is not None:
        raise CommandError(f"{first} is a run of {task}, {other} of {tasks[other]}: compare runs of one task")
    groups: dict[str, RunGroup] = {}
    for run in runs:
        member = _read(run)
        key = json.dumps(member.settings, sort_keys=True, default=str)
        # Two runs of one seed are two runs, not two samples of a group.
        taken = {summary.seed for summary in groups[key].runs} if key in groups else set()
        key = key if member.runs[0].seed not in taken else f"{key} {run.path}"
        if key not in groups:
            groups[key] = member
            continue
        for part in ("runs", "evaluations", "curves"):
            vars(groups[key])[part] += vars(member)[part]
    found = list(groups.values())
    for group, label in zip(found, _labels(found)):
        group.label = label
    return Comparison(task, found)


def _read(run: RunFolder) -> RunGroup:
    """Return the group of a single run."""
    from st_rl.utils.files import name_file

    settings, config = run.settings, run.read_optional_json(CONFIG_FILE) or {}
    result = run.read_optional_json(EVAL_FILE) or {}
    with name_file(run.file(CONFIG_FILE), run.remedy(CONFIG_FILE), CommandError):
        flat = flat_settings(settings, config)
        per_env = int(flat.get("runner.num_steps_per_env") or 1)
    for name in ("runner.max_iterations", "runner.experiment_name", "runner.update_threads", "env.num_envs"):
        flat.pop(name, None)
    flat |= {name: settings.get(name) for name in ("num_envs", "iterations", "minutes", "num_ranks")}
    with name_file(run.file(EVAL_FILE), run.remedy(EVAL_FILE), CommandError):
        columns = list(result.get("columns", {}).values())
        titles = {str(name): str(title) for name, title in result.get("rows", {}).items()}
        evaluations: list[Mapping[str, Any]] = [dict(columns[-1])] if columns else []
    with name_file(run.file(RUN_FILE), run.remedy(RUN_FILE), CommandError):
        flat["from"] = parent_name(settings)
        size = per_env * int(settings.get("num_envs") or 1) * int(settings.get("num_ranks") or 1)
    summary, curves = summarize(run), read_curves(run.file(PROGRESS_FILE))
    return RunGroup(str(run.path), [summary], flat, evaluations, titles, [curves], size)


def _labels(groups: Sequence[RunGroup]) -> list[str]:
    """Return short names of the runs of each group: the last part of a folder, or as many as make it unique."""
    paths = [[Path(run.run).resolve() for run in group.runs] for group in groups]
    count = 1
    while len({path.parts[-count:] for group in paths for path in group}) < sum(map(len, paths)):
        count += 1
    names = [["/".join(path.parts[-count:]) for path in group] for group in paths]
    joined = [", ".join(group) for group in names]
    return [
        text if len(text) <= _LABEL_LENGTH else f"{group[0]} and {len(group) - 1} more" if group[1:] else group[0]
        for text, group in zip(joined, names)
    ]


def _text(value: object) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def format_statistic(name: str, statistic: Statistic | None) -> str:
    """Return a mean, with its spread if there are several runs; fractions in percent."""
    if statistic is None:
        return _MISSING
    is_whole = all(value == int(value) for value in statistic[:2])
    texts = [format_metric(name, int(value) if is_whole else value) for value in statistic[:2]]
    return texts[0] if statistic.num_runs == 1 else f"{texts[0]} ± {texts[1]}"
