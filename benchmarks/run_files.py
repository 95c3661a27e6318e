"""Command line and run folders of the scripts that train several seeds and evaluate them in a second stage."""

import argparse
import ast
import csv
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from st_rl.utils.files import load_checkpoint, save_checkpoint

TRAINED = "trained.json"
"""File in a run folder with the time, the curves and the arguments of the training."""
RESUME_ONLY = ("optimizer_state_dict", "rng_state_dict", "runner_state_dict", "env_state_dict")


def make_parser(description: str | None, runs: Path | None, out: Path | None) -> argparse.ArgumentParser:
    """A parser with the options of all scripts; parse with `parse_options`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("train", "evaluate"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, help="time limit of each training")
    parser.add_argument("--runs", type=Path, default=runs, help="folder of the run folders")
    parser.add_argument("--out", type=Path, default=out, help="results file")
    return parser


def add_sizes(parser: argparse.ArgumentParser, iterations: int, cpu_robots: int) -> None:
    """Add the number of robots, by default 4,096 on a GPU, the iterations and the engine."""
    parser.add_argument("--robots", type=int, help=f"4,096 on a GPU and {cpu_robots} on a CPU by default")
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument("--engine", default="compile", choices=("auto", "eager", "compile", "graph"))
    parser.set_defaults(cpu_robots=cpu_robots)


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments before `--`; those after it, options of `st-rl train`, are in `more`."""
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    options.more = more
    options.device = "cuda:0" if options.device == "cuda" else options.device
    if "cpu_robots" in options:
        options.robots = options.robots or (4096 if options.device.startswith("cuda") else options.cpu_robots)
    return options


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings `NAME=VALUE` by name, with values in Python's notation."""
    return {name: ast.literal_eval(value) for name, value in (pair.split("=", 1) for pair in pairs)}


def run_training(
    arguments: Sequence[str], run: Path, curves: Mapping[str, str], folder: Path | None = None
) -> dict[str, Any]:
    """Run an `st-rl` command that trains into `run`, in `folder`; returns its time and `read_progress`.

    Its output is in a file beside the run folder.
    """
    run.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with open(run.with_name(f"{run.name}.log"), "w") as log:
        command = [sys.executable, "-m", "st_rl", *arguments, "--log-dir", str(run.resolve())]
        subprocess.run(command, check=True, stdout=log, stderr=log, cwd=folder)
    return {"command_seconds": time.perf_counter() - began, **read_progress(run, curves)}


def summarize_training(trained: Mapping[str, Any]) -> str:
    """Time, speed and length of a training as JSON."""
    return json.dumps({name: trained[name] for name in ("training_seconds", "steps_per_second", "iterations")})


def read_trained(run: Path) -> dict[str, Any]:
    """The content of `trained.json`, empty if the run has none."""
    path = run / TRAINED
    return json.loads(path.read_text()) if path.is_file() else {}


def read_progress(run: Path, curves: Mapping[str, str]) -> dict[str, Any]:
    """Wall-clock time and throughput of a training, and up to about 100 points of `curves` (name: column)."""
    with open(run / "progress.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("Perf/total_fps")]
    first = float(rows[0]["Perf/collection time"]) + float(rows[0]["Perf/learning_time"])
    seconds = [first + float(row["wall_time"]) - float(rows[0]["wall_time"]) for row in rows]
    steps = 24 * json.loads((run / "run.json").read_text())["num_envs"]
    every = max(1, len(rows) // 100)
    shown = rows[::every]
    curve = {name: [float(row[tag] or "nan") for row in shown] for name, tag in curves.items() if tag in rows[0]}
    return {
        # The iterations alone, without start-up, construction of the environments and the last checkpoint.
        "training_seconds": seconds[-1],
        "iterations": len(rows),
        "steps": steps * len(rows),
        "steps_per_second": steps * len(rows) / seconds[-1],
        # Compiles and captures.
        "first_iteration_seconds": first,
        # Includes checkpoints and their evaluation.
        "steps_per_second_after_the_first": steps * (len(rows) - 1) / max(seconds[-1] - first, 1e-9),
        "median_steps_per_second": statistics.median(float(row["Perf/total_fps"]) for row in rows),
        "curve": {"seconds": seconds[::every], **curve},
    }


def strip_checkpoints(run: Path) -> None:
    """Remove from the checkpoints of a run what only a resumed training needs; delete TensorBoard files."""
    for path in run.glob("*.pt"):
        content = load_checkpoint(path, map_location="cpu")
        save_checkpoint({name: value for name, value in content.items() if name not in RESUME_ONLY}, path)
    for events in run.glob("events.*"):
        events.unlink()
