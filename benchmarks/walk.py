"""Does a robot walk? Trains quadruped-walk from the command line with several seeds and judges each policy.

    python benchmarks/walk.py forward      # the demo: forward speeds, at most 2 minutes of training
    python benchmarks/walk.py everywhere   # all directions, at most 5 minutes of training

Writes benchmarks/results/walk_{name}.json and a plot of the learning curves beside it.
"""

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
FORWARD = [
    *("--env.commands.forward", "0.3", "1.0", "--env.commands.sideways", "0", "0"),
    *("--env.commands.turning", "0", "0", "--env.commands.standing-share", "0"),
]
# Robots that train a little beyond the commands they are judged by know the corners of the range as well.
WIDER = [
    *("--env.commands.forward", "-0.6", "1.1", "--env.commands.sideways", "-0.5", "0.5"),
    *("--env.commands.turning", "-1.0", "1.0"),
]
PLANS = {
    "forward": ["--iterations", "250", "--minutes", "1.85", *FORWARD],
    "everywhere": ["--iterations", "1400", "--minutes", "4.8", "--runner.engine", "compile", *WIDER],
}
# What is judged: the whole range of commands that the task promises.
JUDGED = {
    "forward": ["--forward", "0.3", "1.0"],
    "everywhere": ["--forward", "-0.5", "1.0", "--sideways", "-0.4", "0.4", "--turning", "-0.8", "0.8"],
}


def st_rl(*arguments: str) -> float:
    """Run a command of ours; returns its seconds of wall clock."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "st_rl", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def learning_curve(run: Path) -> dict[str, list[float]]:
    """Environment steps and forward velocity error of every iteration."""
    with open(run / "progress.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("Metrics/velrmsd")]
    return {
        "iteration": [int(float(row["step"])) for row in rows],
        "velocity_error": [round(float(row["Metrics/velrmsd"]), 4) for row in rows],
        "steps_per_second": [round(float(row["Perf/total_fps"])) for row in rows],
    }


def train_and_judge(name: str, seed: int, folder: Path) -> dict:
    """One training with one seed, judged without noise."""
    run = folder / f"{name}_{seed}"
    seconds = st_rl("train", "quadruped-walk", "--seed", str(seed), "--log-dir", str(run), *PLANS[name])
    st_rl("eval", str(run), *JUDGED[name])
    curve = learning_curve(run)
    evaluation = json.loads((run / "eval.json").read_text())
    evaluation = {key: evaluation[key] for key in ("checkpoint", "iteration", "description", "columns")}
    print(f"{name} seed {seed}: trained in {seconds:.0f} s", json.dumps(evaluation)[:400], flush=True)
    return {
        "seed": seed,
        "training_seconds": round(seconds, 1),
        "iterations": len(curve["iteration"]),
        "median_steps_per_second": statistics.median(curve["steps_per_second"]),
        "evaluation": evaluation,
        "curve": curve,
    }


def plot(results: list[dict], path: Path) -> None:
    """Velocity error over iterations, one line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for result in results:
        axes.plot(result["curve"]["iteration"], result["curve"]["velocity_error"], label=f"seed {result['seed']}")
    axes.set(xlabel="iteration", ylabel="forward velocity error while training, m/s", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=PLANS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, default=Path("runs/walk"))
    options = parser.parse_args()
    results = [train_and_judge(options.name, seed, options.folder) for seed in options.seeds]
    RESULTS.mkdir(exist_ok=True)
    summary = {
        "benchmark": f"walk {options.name}",
        "arguments": PLANS[options.name],
        "judged": JUDGED[options.name],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("torch", "mujoco", "numpy")},
        "date": date.today().isoformat(),
        "results": results,
    }
    (RESULTS / f"walk_{options.name}.json").write_text(json.dumps(summary, indent=1) + "\n")
    plot(results, RESULTS / f"walk_{options.name}.png")


if __name__ == "__main__":
    main()
