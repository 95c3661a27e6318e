"""Evaluate a policy without its exploration noise, on a grid of commands: st-rl eval RUN."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import UsageError, parse_options
from st_rl.cli.support.run_folder import find_run, writable_file

if TYPE_CHECKING:
    from st_rl.cli.support.loaded_run import LoadedRun

EVAL_FILE = "eval.json"
COLUMNS = {"training physics": False, "fine physics": True}


@dataclass
class EvalOptions:
    """Options of `st-rl eval`."""

    run: str
    """Folder of the run, the beginning of its name, a task (its newest run), or: latest."""
    robots: int = 64
    """Robots judged together, each under a command of its own."""
    seconds: float = 20.0
    """Length of the walk."""
    lin_vel_x: tuple[float, float] | None = None
    """Range of forward speeds, m/s; the range of the task when None."""
    lin_vel_y: tuple[float, float] | None = None
    """Range of lateral speeds, m/s; the range of the task when None."""
    ang_vel_yaw: tuple[float, float] | None = None
    """Range of yaw rates, rad/s; the range of the task when None."""
    push_speed: float = 0.5
    """Size of the pushes in a second walk, one every 4 s, m/s; 0 leaves it out."""
    seed: int = 20_001
    """Of starting poses; pushes are always the same."""
    checkpoint: str = "best"
    """Which policy: best, last, an iteration number, or a file."""
    fine: bool = True
    """Whether to judge under fine physics too."""
    output: Path | None = field(default=None)
    """Where the figures go; eval.json in the run folder when None."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(EvalOptions, arguments, "eval", __doc__ or "")
    for name in ("lin_vel_x", "lin_vel_y", "ang_vel_yaw"):
        limits = getattr(options, name)
        if limits is not None and limits[0] > limits[1]:
            raise UsageError(f"--{name.replace('_', '-')} {limits[0]:g} {limits[1]:g}: give the smallest number first")
    run = find_run(options.run)
    checkpoint = run.checkpoint(options.checkpoint)
    target = writable_file(options.output or run.file(EVAL_FILE))
    from st_rl.cli.support.loaded_run import LoadedRun
    from st_rl.utils.files import write_json

    result = evaluate_run(LoadedRun(run), checkpoint, options)
    result["command_line"] = f"st-rl eval {shlex.join(arguments)}"
    write_json(target, without_nan(result))
    show_table(result)
    print(f"written to {target}")
    return 0


def evaluate_run(saved: LoadedRun, checkpoint: Path, options: EvalOptions) -> dict[str, Any]:
    """All figures of a checkpoint, ready for JSON."""
    from st_rl.cli.support.task_source import BuiltInTask
    from st_rl.sim.evaluation.evaluator import (
        EPISODE_METRICS,
        WALK_METRICS,
        EvaluationCfg,
        evaluate_episodes,
        evaluate_walk,
        is_commanded,
        make_eval_task,
    )

    plan = EvaluationCfg(
        robots=options.robots,
        seconds=options.seconds,
        lin_vel_x=options.lin_vel_x,
        lin_vel_y=options.lin_vel_y,
        ang_vel_yaw=options.ang_vel_yaw,
        push_speed=options.push_speed,
        seed=options.seed,
    )
    columns: dict[str, dict[str, Any]] = {}
    grid: dict[str, dict[str, Any]] = {}
    rows, iteration = EPISODE_METRICS, 0
    built_in = isinstance(saved.source, BuiltInTask)
    for name, fine in COLUMNS.items() if built_in else {"environment": False}.items():
        if fine and not options.fine:
            continue
        if built_in:
            env = make_eval_task(saved.source.name, saved.env_config, plan.robots, plan.seconds, plan.seed, fine)
        else:
            env = saved.source.make(saved.env_config, plan.robots, "cpu", plan.seed)
        loaded = saved.load_policy(env, checkpoint)
        iteration = loaded.iteration
        if is_commanded(env):
            rows = WALK_METRICS
            columns[name], grid[name] = evaluate_walk(env, loaded.policy, plan)
        else:
            columns[name] = evaluate_episodes(env, loaded.policy)
    shown = {key: words for key, words in rows.items() if any(key in column for column in columns.values())}
    return {
        "task": saved.source.name,
        "checkpoint": checkpoint.name,
        "iteration": iteration,
        "description": _describe(plan, rows is WALK_METRICS, any(COLUMNS.get(name) for name in columns)),
        "rows": shown,
        "columns": columns,
        "grid": grid,
    }


def without_nan(value: Any) -> Any:
    """The same with null in place of NaN, which JSON does not know: a figure that could not be measured."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe(plan: Any, walking: bool, fine: bool) -> str:
    """What was done, in a sentence."""
    if not walking:
        return f"The first episode of {plan.robots} robots, without exploration noise."
    pushes = f"Pushes of {plan.push_speed:g} m/s every {plan.push_interval_s:g} s in a second walk. "
    return (
        f"{plan.robots} robots walk {plan.seconds:g} s each under a grid of commands, without exploration noise, "
        f"sensor noise or randomisation; the first {plan.warmup_s:g} s does not count. "
        f"{pushes if plan.pushes else ''}{'Fine physics: 5 ms steps, 50 solver iterations.' if fine else ''}"
    ).rstrip()


def format_figure(key: str, value: Any, robots: int) -> str:
    """A figure for the table."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if key == "falls":
        return f"{value} of {robots}"
    if key in ("success", "push_survival", "reached_time_limit"):
        return f"{value:.0%}"
    if isinstance(value, (list, tuple)):
        return " ".join("-" if item is None or not math.isfinite(item) else f"{item:.2f}" for item in value)
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def show_table(result: Mapping[str, Any]) -> None:
    """The figures on the screen."""
    from rich.console import Console
    from rich.table import Table

    title = f"{result['task']}, {result['checkpoint']} (iteration {result['iteration']})"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in result["columns"]:
        table.add_column(name, justify="right")
    for key, words in result["rows"].items():
        cells = [format_figure(key, column.get(key), column["robots"]) for column in result["columns"].values()]
        table.add_row(words, *cells)
    console = Console()
    console.print(table)
    console.print(result["description"], style="dim", highlight=False)
