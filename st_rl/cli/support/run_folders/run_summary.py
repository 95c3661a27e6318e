"""A summary of the training in a run folder, read quickly and without torch."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from st_rl.cli.support.report_page.curves import read_number
from st_rl.cli.support.run_folders.pretrained import PRETRAINED_PREFIX
from st_rl.cli.support.run_folders.run_folder import (
    CONFIG_FILE,
    ENDED,
    EVAL_FILE,
    PARENTS,
    PROGRESS_FILE,
    RUN_FILE,
    RunFolder,
)

State = Literal["running", "finished", "stopped", "failed", "damaged"]
# Bytes of the beginning and of the end of `progress.csv` that are read.
_HEAD_BYTES, _TAIL_BYTES = 2**15, 2**16
_MAX_BYTES = 2**40


@dataclass(frozen=True)
class RunSummary:
    """A run in a line of `st-rl runs`; None for what its files do not say."""

    run: str
    """Its folder."""
    task: str | None
    robot: str | None
    algorithm: str | None
    state: State
    iterations: int | None
    """Completed iterations."""
    steps: int | None
    """Steps of all robots together."""
    seconds: float | None
    """Time of the training."""
    error: float | None
    """Error of the mean forward velocity in the evaluation, m/s; of the body positions in motion tracking, m."""
    falls: float | None
    """Fraction of robots that fell in the evaluation, or failed before the end of their clip."""
    episode_return: float | None
    """Mean episode return in the evaluation, of a task without commands."""
    evaluated: Literal["eval", "training"] | None
    """Whether the evaluation is the one of `st-rl eval` or the best of the last ones in the training."""
    parent: str | None
    """Run that it started from."""
    seed: int | None
    started: str | None


def summarize(run: RunFolder) -> RunSummary:
    """Read `run.json`, `config.json`, `eval.json` and the end of `progress.csv`; never fails on a damaged file."""
    from st_rl.utils.files import read_json_object

    files: dict[str, dict[str, Any]] = {}
    is_damaged = False
    for name in (RUN_FILE, CONFIG_FILE, EVAL_FILE):
        try:
            files[name] = read_json_object(run.file(name))
        except FileNotFoundError:
            files[name] = {}
        except (OSError, ValueError):
            files[name], is_damaged = {}, True
    settings, config = files[RUN_FILE], files[CONFIG_FILE]
    progress = read_progress_ends(run.file(PROGRESS_FILE))
    end = _mapping(settings.get(ENDED))
    iterations = _count(end.get("iterations"))
    if iterations is None and progress:
        last = read_number(progress[-1].get("step"))
        iterations = None if last is None else int(last) + 1
    evaluation = _evaluation(files[EVAL_FILE], progress)
    return RunSummary(
        run=str(run.path),
        task=_text(settings.get("task") or settings.get("environment")),
        robot=_robot(settings),
        algorithm=_algorithm(config),
        state="damaged" if is_damaged else find_state(run, settings, iterations),
        iterations=iterations,
        steps=_steps(settings, config, end, iterations),
        seconds=_seconds(end, progress),
        **evaluation,
        parent=parent_name(settings),
        seed=_count(settings.get("seed")),
        started=_text(settings.get("started")),
    )


def find_state(run: RunFolder, settings: Mapping[str, Any], iterations: int | None) -> State:
    """Return whether a training is running, or how it ended; one that was killed has failed."""
    from st_rl.utils.files.folder_lock import lock_state

    lock = lock_state(run.path)
    recorded = _mapping(settings.get(ENDED)).get("state")
    if lock == "held":
        return "running"
    if recorded in ("finished", "stopped", "failed"):
        return recorded
    planned = _count(settings.get("iterations"))
    if planned is not None and iterations is not None and iterations >= planned:
        return "finished"
    return "failed" if lock == "abandoned" else "stopped"


def parent_name(settings: Mapping[str, Any]) -> str | None:
    """Return the run that a run started from, by the last two parts of its folder."""
    parents = settings.get(PARENTS)
    if not isinstance(parents, list) or not parents:
        return None
    name = str(_mapping(parents[0]).get("run"))
    return name if name.startswith(PRETRAINED_PREFIX) else "/".join(Path(name).parts[-2:])


def read_progress_ends(path: Path) -> list[dict[str, str]]:
    """Return the first row of `progress.csv` and those in its last 64 kB, without reading what is between."""
    from st_rl.utils.files.readers import check_file

    try:
        # Not a named pipe, which would be waited for.
        size = check_file(path, _MAX_BYTES)
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
        return _parse_ends(head, tail, size <= _TAIL_BYTES)
    except (OSError, ValueError, csv.Error):
        return []


def _parse_ends(head: bytes, tail: bytes, is_whole: bool) -> list[dict[str, str]]:
    """Return the first row and the rows of the tail; only the latter if the tail `is_whole`, the complete file."""
    first = head.decode("utf-8-sig", "replace").split("\n")
    lines = tail.decode("utf-8", "replace").split("\n")
    # The first line of the tail is the header, or part of a row; the last one may be incomplete.
    rows = [line for line in lines[1:-1] if line.strip()]
    rows = rows if is_whole else [*first[1:2], *rows]
    columns = next(csv.reader(first[:1]), [])
    return [dict(zip(columns, cells)) for cells in csv.reader(rows) if len(cells) == len(columns)]


def _evaluation(evaluation: Mapping[str, Any], progress: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return error, falls and return of `eval.json`, else of the best evaluation at the end of `progress.csv`."""
    columns = _mapping(evaluation.get("columns"))
    found = _mapping(list(columns.values())[-1]) if columns else {}
    if found:
        falls, count = read_number(found.get("falls")), read_number(found.get("num_envs"))
        fraction = None if falls is None or not count else falls / count
        return _result(found, fraction, "eval")
    rows = [(score, row) for row in progress if (score := read_number(row.get("Evaluation/score"))) is not None]
    if not rows:
        return _result({}, None, None)
    best = max(rows, key=lambda item: item[0])[1]
    found = {name.removeprefix("Evaluation/"): value for name, value in best.items()}
    return _result(found, found.get("falls"), "training")


def _result(found: Mapping[str, Any], falls: object, evaluated: str | None) -> dict[str, Any]:
    """Return error, fraction of falls and return of the metrics of a walk, of motion tracking, or of episodes."""
    error, reached = read_number(found.get("lin_vel_x_error")), read_number(found.get("reached_end"))
    return {
        "error": read_number(found.get("body_pos_error")) if error is None else error,
        "falls": read_number(falls) if reached is None else 1.0 - reached,
        "episode_return": read_number(found.get("return_mean")),
        "evaluated": evaluated,
    }


def _steps(
    settings: Mapping[str, Any], config: Mapping[str, Any], end: Mapping[str, Any], iterations: int | None
) -> int | None:
    """Return the steps that were recorded at the end, else the product of iterations, environments and rollout."""
    if _count(end.get("steps")) is not None:
        return _count(end.get("steps"))
    num_envs, per_env = _count(settings.get("num_envs")), _count(_runner(config).get("num_steps_per_env"))
    if iterations is None or num_envs is None or per_env is None:
        return None
    return iterations * num_envs * per_env * (_count(settings.get("num_ranks")) or 1)


def _seconds(end: Mapping[str, Any], progress: Sequence[Mapping[str, str]]) -> float | None:
    """Return the time that was recorded at the end, else the one between the first and the last row of the log."""
    recorded = read_number(end.get("seconds"))
    times = [read_number(row.get("wall_time")) for row in (*progress[:1], *progress[-1:])]
    known = [value for value in times if value is not None]
    return recorded if recorded is not None else known[-1] - known[0] if len(known) == 2 else None


def _runner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(config.get("runner", config))


def _algorithm(config: Mapping[str, Any]) -> str | None:
    name = _runner(config).get("algorithm_class_name") or _mapping(config.get("algorithm")).get("class_name")
    return _text(name)


def _robot(settings: Mapping[str, Any]) -> str | None:
    robot = _mapping(settings.get("task_config")).get("robot")
    return Path(robot).stem if isinstance(robot, str) and "/" in robot else _text(robot)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
