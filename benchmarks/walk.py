"""Trains quadruped-walk from the command line with several seeds and evaluates each policy.

    python benchmarks/walk.py forward         # the demo: forward speeds, at most 2 minutes of training
    python benchmarks/walk.py everywhere      # all directions, at most 5 minutes of training
    python benchmarks/walk.py everywhere_gpu  # all directions on a GPU, 15 to 20 seconds of training on an H200
    python benchmarks/walk.py everywhere_bf16 # the same in mixed precision

Trainings leave their folders under --folder, so that `--stages train` and `--stages evaluate` may run on two machines.
Writes benchmarks/results/walk_{name}.json and a plot of the learning curves of the same name.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import describe_machine, write_results
from plots import can_plot, start_plot

RESULTS = Path(__file__).parent / "results"
TRAINED = "trained.json"
FORWARD = [
    *("--env.commands.lin-vel-x", "0.3", "1.0", "--env.commands.lin-vel-y", "0", "0"),
    *("--env.commands.ang-vel-yaw", "0", "0", "--env.commands.standing-fraction", "0"),
]
# Train slightly beyond the evaluated command ranges, so that their corners are covered as well.
WIDER = [
    *("--env.commands.lin-vel-x", "-0.6", "1.1", "--env.commands.lin-vel-y", "-0.5", "0.5"),
    *("--env.commands.ang-vel-yaw", "-1.0", "1.0"),
]
GPU = [
    *("--device", "cuda:0", "--num-envs", "4096", "--iterations", "160", "--runner.engine", "compile"),
    *("--policy.actor-hidden-dims", "256", "128", "128", "--policy.critic-hidden-dims", "256", "128", "128"),
]
PLANS = {
    "forward": ["--iterations", "250", "--minutes", "1.85", *FORWARD],
    "everywhere": ["--iterations", "1400", "--minutes", "4.8", "--runner.engine", "compile", *WIDER],
    "everywhere_gpu": [*GPU, *WIDER],
    "everywhere_bf16": [*GPU, "--algorithm.mixed-precision", "bf16", *WIDER],
}
# Evaluated commands: the full ranges of the task.
EVERYWHERE = ["--lin-vel-x", "-0.5", "1.0", "--lin-vel-y", "-0.4", "0.4", "--ang-vel-yaw", "-0.8", "0.8"]
EVALUATED = dict.fromkeys(PLANS, EVERYWHERE) | {"forward": ["--lin-vel-x", "0.3", "1.0"]}


def st_rl(*arguments: str) -> float:
    """Run an st-rl command; returns its wall-clock time, s."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "st_rl", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def progress(run: Path) -> list[dict[str, str]]:
    """The logged iterations."""
    with open(run / "progress.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("Metrics/velrmsd")]


def learning_curve(rows: list[dict[str, str]]) -> dict[str, list[float]]:
    """Forward velocity error and speed of every iteration."""
    return {
        "iteration": [int(float(row["step"])) for row in rows],
        "velocity_error": [round(float(row["Metrics/velrmsd"]), 4) for row in rows],
        "steps_per_second": [round(float(row["Perf/total_fps"])) for row in rows],
    }


def train(name: str, seed: int, run: Path) -> None:
    """Train with one seed; the time is written to the run folder."""
    seconds = st_rl("train", "quadruped-walk", "--seed", str(seed), "--log-dir", str(run), *PLANS[name])
    rows = progress(run)
    curve = learning_curve(rows)
    first = float(rows[0]["Perf/collection time"]) + float(rows[0]["Perf/learning_time"])
    trained = {
        "seed": seed,
        # Wall-clock time of the whole process, and of the iterations alone.
        "command_seconds": round(seconds, 1),
        "training_seconds": round(first + float(rows[-1]["wall_time"]) - float(rows[0]["wall_time"]), 1),
        "iterations": len(curve["iteration"]),
        "median_steps_per_second": statistics.median(curve["steps_per_second"]),
        "curve": curve,
        **describe_machine(),
    }
    write_results(run / TRAINED, trained)
    times = f"{trained['training_seconds']} s of training, {trained['command_seconds']} s in total"
    print(f"{name} seed {seed}: {times}", flush=True)


def evaluate(name: str, run: Path) -> dict[str, Any]:
    """Training curves of a run, and the metrics of its policy without noise."""
    st_rl("eval", str(run), *EVALUATED[name])
    evaluation = json.loads((run / "eval.json").read_text())
    evaluated = {key: evaluation[key] for key in ("checkpoint", "iteration", "description", "columns")}
    print(f"{run.name}:", json.dumps(evaluated)[:400], flush=True)
    return {**json.loads((run / TRAINED).read_text()), "evaluation": evaluated}


def plot(results: list[dict], path: Path) -> None:
    """Velocity error over iterations, one line per seed."""
    if not can_plot():
        return
    figure, axes = start_plot(1, (6, 3.2))
    for result in results:
        axes.plot(result["curve"]["iteration"], result["curve"]["velocity_error"], label=f"seed {result['seed']}")
    axes.set(xlabel="iteration", ylabel="forward velocity error, m/s", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/walk"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of results")
    parser.add_argument(
        "--at-once", action="store_true", help="train all seeds in parallel; their times are not comparable"
    )
    parser.add_argument("--stages", nargs="+", choices=("train", "evaluate"), default=["train", "evaluate"])
    options = parser.parse_args()
    runs = {seed: options.folder / f"{options.name}_{seed}" for seed in options.seeds}
    if "train" in options.stages:
        with ThreadPoolExecutor(len(runs) if options.at_once else 1) as pool:
            list(pool.map(lambda run: train(options.name, *run), runs.items()))
    # Evaluate after all trainings, so that they run undisturbed.
    if "evaluate" not in options.stages:
        return
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 4)) as pool:
        results = list(pool.map(lambda run: evaluate(options.name, run), runs.values()))
    summary = {
        "benchmark": f"walk {options.name}",
        "arguments": PLANS[options.name],
        "evaluated": EVALUATED[options.name],
        "trained_at_once": options.at_once,
        "evaluated_on": describe_machine(),
        "results": results,
    }
    write_results(options.results / f"walk_{options.name}.json", summary)
    plot(results, options.results / f"walk_{options.name}.png")


if __name__ == "__main__":
    main()
