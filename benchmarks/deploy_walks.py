"""Walks with the deploy kits of trained runs, in a virtual environment without this library.

    python -m venv kit_venv && kit_venv/bin/pip install numpy onnxruntime mujoco
    st-rl train quadruped-walk --env.deployable --log-dir runs/quadruped-walk && st-rl eval runs/quadruped-walk
    python benchmarks/deploy_walks.py runs/quadruped-walk --python kit_venv/bin/python

For each run: writes its kit with `st-rl deploy`, and walks with it (`worker_kit.py`) from the initial states and with
the commands of `st-rl eval`, 64 robots for 20 s in plain MuJoCo at 500 Hz; undisturbed, and with 20 ms delay and the
sensor noise of the training. On rough terrain the yaw rate is commanded as in the task. Writes
benchmarks/results/deploy_walks.json (or --out); runs that are in the file already and not named are kept.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine, write_results

RESULTS = Path(__file__).parent / "results"
WORKER = Path(__file__).with_name("worker_kit.py")
AXES = ("lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error")
ALLOWED_FALLS = 4
"""Falls of 64 robots with noise and delay."""
ERROR_FACTOR = 1.2
"""Largest forward velocity error as a multiple of that of the same robots in `st-rl eval`."""


def walk(kit: Path, python: Path, processes: int) -> tuple[dict[str, Any], list[str]]:
    """Falls and errors of a kit by scenario, and the packages of the virtual environment."""
    outs = [kit.with_name(f"walks{part}.json") for part in range(processes)]
    # -I: neither PYTHONPATH nor the current folder is searched for modules.
    command = [python, "-I", str(WORKER), str(kit)]
    workers = [
        subprocess.Popen([*command, str(out), "--part", str(part), str(processes)]) for part, out in enumerate(outs)
    ]
    codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit("a worker failed")
    parts = [json.loads(out.read_text()) for out in outs]
    packages = parts[0].pop("packages")
    return {name: summarize([row for part in parts for row in part[name]]) for name in parts[0]}, packages


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Falls, and errors of the mean velocities of the robots that fell neither here nor in `st-rl eval`."""
    counted = [row for row in rows if not row["fell"] and not row["in_eval"]["fell"]]
    errors = np.abs([np.subtract(row["velocity"], row["command"]) for row in counted]).mean(axis=0)
    in_eval = np.abs([row["in_eval"]["error"] for row in counted]).mean(axis=0)
    return {
        "robots": len(rows),
        "falls": sum(row["fell"] for row in rows),
        **dict(zip(AXES, errors.tolist())),
        "robots_that_fell_in_neither": len(counted),
        "lin_vel_x_error_in_eval": float(in_eval[0]),
    }


def evaluate(run: Path, python: Path, processes: int) -> dict[str, Any]:
    """Write the kit of a run and walk with it."""
    facts = json.loads((run / "run.json").read_text())
    evaluation = json.loads((run / "eval.json").read_text())
    with tempfile.TemporaryDirectory() as temporary:
        kit = Path(temporary) / "kit"
        subprocess.run([sys.executable, "-m", "st_rl", "deploy", str(run), str(kit)], check=True)
        walks, packages = walk(kit, python, processes)
        size = sum(path.stat().st_size for path in kit.rglob("*") if path.is_file())
    if "st_rl" in packages or "torch" in packages:
        raise SystemExit(f"{python} has {', '.join(packages)}: make a virtual environment without this library")
    names = ("falls", "lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error", "step_asymmetry", "push_survival")
    fine, ideal, disturbed = evaluation["columns"]["fine physics"], *walks.values()
    return {
        "date": describe_machine()["date"],
        "task": facts["task"],
        "iteration": evaluation["iteration"],
        "eval_fine_physics": {name: fine[name] for name in names},
        "kit": walks,
        "kit_bytes": size,
        "packages": packages,
        "passed": {
            "no_fall": ideal["falls"] == 0,
            "speed_error": ideal["lin_vel_x_error"] <= ERROR_FACTOR * ideal["lin_vel_x_error_in_eval"],
            "noise_and_delay": disturbed["falls"] <= ALLOWED_FALLS,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders with eval.json")
    parser.add_argument("--python", type=Path, required=True, help="of an environment with numpy, onnxruntime, mujoco")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=RESULTS / "deploy_walks.json")
    options = parser.parse_args()
    known = json.loads(options.out.read_text())["runs"] if options.out.is_file() else {}
    for run in options.runs:
        known[run.name] = evaluate(run, options.python.absolute(), options.processes)
        print(f"{run.name}: {json.dumps({name: known[run.name][name] for name in ('kit', 'passed')})}", flush=True)
        write_results(options.out, {"benchmark": "deploy_walks", **describe_machine(), "runs": known})
    print(f"results: {options.out}")


if __name__ == "__main__":
    main()
