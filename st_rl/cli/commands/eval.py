"""Evaluate a policy without exploration noise, on a grid of commands or on its clips: st-rl eval RUN."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import UsageError, escape_control, parse_options, program
from st_rl.cli.support.metrics import format_metric
from st_rl.cli.support.run_folders.loaded_run import LoadedRun, open_run
from st_rl.cli.support.run_folders.run_folder import EVAL_FILE, RunOptions, writable_file
from st_rl.cli.support.task_source import is_external

if TYPE_CHECKING:
    from rich.table import Table

    from st_rl.sim.evaluation.evaluator import EvaluationCfg

COLUMNS = {"training physics": False, "fine physics": True}


@dataclass
class EvalOptions(RunOptions):
    """Options of `st-rl eval`."""

    num_envs: int = 64
    """Number of robots evaluated in parallel, each with its own command."""
    seconds: float = 20.0
    """Length of the evaluation; clips are tracked to their end."""
    lin_vel_x: tuple[float, float] | None = None
    """Range of forward velocity commands, m/s; None uses the range of the task."""
    lin_vel_y: tuple[float, float] | None = None
    """Range of lateral velocity commands, m/s; None uses the range of the task."""
    ang_vel_yaw: tuple[float, float] | None = None
    """Range of yaw rate commands, rad/s; None uses the range of the task."""
    push_speed: float = 0.5
    """Velocity change of the pushes in a second walk, one every 4 s, m/s; 0 skips that walk."""
    seed: int = 20_001
    """Random seed of the initial states; pushes do not depend on it."""
    fine_physics: bool = True
    """Whether to evaluate with fine physics as well."""
    output: Path | None = None
    """File of the results; None writes eval.json in the run folder."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(EvalOptions, arguments, "eval", __doc__)
    for name in ("lin_vel_x", "lin_vel_y", "ang_vel_yaw"):
        limits = vars(options)[name]
        if limits is not None and limits[0] > limits[1]:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {limits[0]:g} {limits[1]:g}: give the smaller number first")
    run, checkpoint = open_run(options)
    target = writable_file(options.output or run.run.file(EVAL_FILE))
    from st_rl.utils.files import write_json

    result = evaluate_run(run, checkpoint, options)
    result["command_line"] = f"{program()} eval {shlex.join(arguments)}"
    write_json(target, replace_nan(result))
    print_table(result)
    print(f"Results: {target}")
    return 0


def evaluate_run(run: LoadedRun, checkpoint: Path, options: EvalOptions) -> dict[str, Any]:
    """Return all metrics of a checkpoint as `eval.json` stores them."""
    from st_rl.sim.envs.legged_walk import LeggedWalk
    from st_rl.sim.envs.motion_tracking import MotionTracking
    from st_rl.sim.evaluation.clip_tracking import CLIP_METRICS, evaluate_clips
    from st_rl.sim.evaluation.evaluator import (
        AXES,
        EPISODE_METRICS,
        WALK_METRICS,
        EvaluationCfg,
        evaluate_episodes,
        evaluate_walk,
    )

    names = ("num_envs", "seconds", *AXES, "push_speed", "seed")
    plan = EvaluationCfg(**{name: vars(options)[name] for name in names})
    columns: dict[str, dict[str, Any]] = {}
    grid: dict[str, dict[str, Any]] = {}
    clips: dict[str, list[dict[str, Any]]] = {}
    rows, iteration = EPISODE_METRICS, 0
    for name, fine in {"environment": False}.items() if is_external(run.source.name) else COLUMNS.items():
        if fine and not options.fine_physics:
            continue
        env = run.make_eval_env(plan.num_envs, plan.seconds, plan.seed, fine)
        policy = run.load_policy(env, checkpoint)
        iteration = policy.iteration
        if isinstance(env, LeggedWalk):
            rows = WALK_METRICS
            columns[name], grid[name] = evaluate_walk(env, policy, plan)
        elif isinstance(env, MotionTracking):
            rows = CLIP_METRICS
            columns[name], clips[name] = evaluate_clips(env, policy)
        else:
            columns[name] = evaluate_episodes(env, policy)
    return {
        "task": run.source.name,
        "checkpoint": checkpoint.name,
        "iteration": iteration,
        "seed": plan.seed,
        "description": _describe(plan, rows, any(COLUMNS.get(name) for name in columns)),
        "rows": {key: title for key, title in rows.items() if any(key in column for column in columns.values())},
        "columns": columns,
        "grid": grid,
        **({"clips": clips} if clips else {}),
    }


def replace_nan(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None: metrics that could not be measured."""
    if isinstance(value, Mapping):
        return {key: replace_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe(plan: EvaluationCfg, rows: Mapping[str, str], is_fine: bool) -> str:
    physics = "Fine physics: 5 ms steps, 50 solver iterations." if is_fine else ""
    if "reached_end" in rows:
        return (
            f"{plan.num_envs} robots, divided over the clips, start near the first frame, without exploration noise, "
            "sensor noise or randomization. Errors are means over the steps before a failure; positions of bodies are "
            f"relative to the anchor. {physics}"
        ).rstrip()
    if "falls" not in rows:
        return f"First episode of {plan.num_envs} environments, without exploration noise."
    pushes = f"Pushes of {plan.push_speed:g} m/s every {plan.push_interval_s:g} s in a second walk. "
    return (
        f"{plan.num_envs} robots walk for {plan.seconds:g} s on a grid of commands, without exploration noise, sensor "
        f"noise or randomization; the first {plan.warmup_s:g} s is not counted. "
        f"{pushes if plan.pushes else ''}{physics}"
    ).rstrip()


def print_table(result: Mapping[str, Any]) -> None:
    """Print the metrics."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title = escape_control(f"{result['task']}, {result['checkpoint']} (iteration {result['iteration']})")
    table = Table(title=Text(title), title_justify="left")
    table.add_column("")
    for name in result["columns"]:
        table.add_column(name, justify="right")
    for key, row_title in result["rows"].items():
        cells = [format_metric(key, column.get(key), column["num_envs"]) for column in result["columns"].values()]
        table.add_row(row_title, *cells)
    console = Console()
    console.print(table)
    for name, clips in (result.get("clips") or {}).items():
        console.print(_clip_table(name, clips))
    console.print(result["description"], style="dim", highlight=False)


def _clip_table(physics: str, clips: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table by clip of one physics setting."""
    from rich import box
    from rich.table import Table

    table = Table(title=f"By clip, {physics}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("clip", "s", "reached end", "body, m", "joints, rad", "worst moment"):
        is_text = column in ("clip", "worst moment")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for clip in clips:
        table.add_row(
            escape_control(clip["clip"]),
            f"{clip['seconds']:.1f}",
            f"{clip['reached_end']:.0%}",
            f"{clip['body_pos_error']:.3f}",
            f"{clip['joint_pos_error']:.3f}",
            f"{clip['worst_s']:.2f} s, {escape_control(clip['worst_body'])} {clip['worst_error']:.2f} m",
        )
    return table
