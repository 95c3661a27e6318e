"""Compares fine-tuning with training from scratch: a quadruped that walks learns to carry a trunk twice as heavy.

    python benchmarks/finetune.py --seeds 1 2 3                             # the heavy trunk
    python benchmarks/finetune.py --seeds 1 2 3 --change gait-height        # another swing height

The parent is `pretrained:quadruped-walk`, or --parent. For every seed, `st-rl train quadruped-walk --from PARENT` with
the change trains for a third of the iterations of the same command without `--from`, which has the other settings of
the parent from `st-rl config`. Both are evaluated with `st-rl eval`, and so is the parent with the change, untrained.
benchmarks/results/finetune_CHANGE.json has falls, errors and foot clearance, the curves of the evaluations during the
trainings, and how many steps each training needed for the final score of the one from scratch.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mujoco
import yaml
from machine import describe_machine, write_results

from st_rl.cli.support.report_page.curves import read_curves
from st_rl.cli.support.run_folders.run_folder import RunFolder, find_run
from st_rl.cli.support.training.settings_file import describe_settings
from st_rl.sim.robots.robot import robot_path

ROOT = Path(__file__).parents[1]
SCORE = "Evaluation/score"
METRICS = ("falls", "num_envs", "lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error", "foot_clearance")
HEAVY_ROBOT = "quadruped_heavy.xml"
CHANGES = {"heavy-trunk": ["--env.robot", HEAVY_ROBOT], "gait-height": ["--env.gait.swing-height", "0.1"]}
# The same in the run.json of the parent.
SETTINGS = {"heavy-trunk": {"robot": HEAVY_ROBOT}, "gait-height": {"gait": {"swing_height": 0.1}}}


def st_rl(log: Path, *words: object) -> None:
    """Run a command of `st-rl`; its output goes to a file."""
    with open(log, "a") as file:
        command = [sys.executable, "-m", "st_rl", *map(str, words)]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run(command, check=True, stdout=file, stderr=file, cwd=log.parent, env=environment)


def write_heavy_robot(path: Path) -> None:
    """Write the quadruped with twice the mass and inertia of its trunk."""
    spec = mujoco.MjSpec.from_file(str(robot_path("quadruped")))
    trunk = spec.body("trunk")
    trunk.mass, trunk.inertia = 2.0 * trunk.mass, 2.0 * trunk.inertia
    spec.compile()
    path.write_text(spec.to_xml())


def merge_settings(settings: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Settings with those of a nested change."""
    merged = {
        name: merge_settings(settings[name], value) if isinstance(value, dict) else value
        for name, value in change.items()
    }
    return settings | merged


def measure_parent(options: argparse.Namespace, parent: RunFolder) -> dict[str, Any]:
    """Evaluate the parent with the change, without training."""
    folder = options.runs / f"{options.change}_parent"
    if not (folder / "eval.json").is_file():
        shutil.copytree(parent.path, folder, ignore=shutil.ignore_patterns("eval.json"))
        run = json.loads((folder / "run.json").read_text())
        run["task_config"] = merge_settings(run["task_config"], SETTINGS[options.change])
        (folder / "run.json").write_text(json.dumps(run))
        evaluate(options, folder)
    row = read_walk(folder)
    print(f"{folder.name}: {json.dumps(row)}", flush=True)
    return row


def evaluate(options: argparse.Namespace, folder: Path) -> None:
    """Evaluate a run with `st-rl eval`."""
    st_rl(folder.with_suffix(".log"), "eval", folder, "--seconds", options.seconds, "--push-speed", 0)


def read_walk(folder: Path) -> dict[str, float]:
    """The metrics of an evaluation in fine physics."""
    walk = json.loads((folder / "eval.json").read_text())["columns"]["fine physics"]
    return {name: walk[name] for name in METRICS}


def measure(options: argparse.Namespace, kind: str, seed: int, settings: Path) -> dict[str, Any]:
    """Train and evaluate one policy, unless its folder is there already."""
    folder = options.runs / f"{options.change}_{kind}_{seed}"
    log = folder.with_suffix(".log")
    is_tuned = kind == "tuned"
    iterations = math.ceil(options.iterations / 3) if is_tuned else options.iterations
    if not (folder / "eval.json").is_file():
        start = ["--from", options.parent] if is_tuned else ["--config", settings]
        size = ["--iterations", iterations, "--num-envs", options.num_envs, "--seed", seed, "--threads", 1]
        size += ["--runner.save-interval", options.save_interval, "--runner.keep-last", 1]
        change = CHANGES[options.change]
        st_rl(log, "train", "quadruped-walk", *start, *change, *size, "--log-dir", folder, *options.more)
        evaluate(options, folder)
    steps, scores = read_curves(folder / "progress.csv")[SCORE]
    per_iteration = options.num_envs * json.loads((folder / "config.json").read_text())["runner"]["num_steps_per_env"]
    row = {
        "steps": iterations * per_iteration,
        **read_walk(folder),
        "scores": {"steps": [int((step + 1) * per_iteration) for step in steps], "score": scores},
    }
    print(f"{folder.name}: {json.dumps({name: row[name] for name in ('steps', *METRICS)})}", flush=True)
    return row


def steps_until(row: dict[str, Any], score: float) -> int | None:
    """Steps after which a training first had a score; None if never."""
    curve = row["scores"]
    return next((step for step, value in zip(curve["steps"], curve["score"]) if value >= score), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parent", default="pretrained:quadruped-walk", help="run of quadruped-walk to start from")
    parser.add_argument("--change", choices=tuple(CHANGES), default="heavy-trunk")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--iterations", type=int, default=250, help="iterations from scratch")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--save-interval", type=int, default=10, help="iterations between two evaluations")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the final evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs/finetune"))
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/finetune_CHANGE.json")
    options, options.more = parser.parse_known_args()
    options.runs = options.runs.resolve()
    options.runs.mkdir(parents=True, exist_ok=True)
    options.out = options.out or Path(__file__).parent / "results" / f"finetune_{options.change.replace('-', '_')}.json"
    parent = find_run(options.parent)
    options.parent = parent.path.resolve()
    write_heavy_robot(options.runs / HEAVY_ROBOT)
    settings = options.runs / "scratch.yaml"
    content = {key: value for key, value in describe_settings(parent)[0].items() if key not in ("from", "minutes")}
    settings.write_text(yaml.safe_dump(content))
    results: dict[str, Any] = {"benchmark": "finetune", **describe_machine(), "change": CHANGES[options.change]}
    results |= {"parent_iterations": parent.settings.get("iterations"), "num_envs": options.num_envs}
    results |= {"parent": measure_parent(options, parent), "seeds": {}}
    for seed in options.seeds:
        tuned = measure(options, "tuned", seed, settings)
        scratch = measure(options, "scratch", seed, settings)
        target = scratch["scores"]["score"][-1]
        results["seeds"][str(seed)] = {
            "scratch": scratch,
            "tuned": tuned,
            "final_score_of_scratch": target,
            "steps_of_tuned_until_that_score": steps_until(tuned, target),
        }
        write_results(options.out, results)
    print(f"results: {options.out}")


if __name__ == "__main__":
    main()
