"""Trains humanoid-walk or humanoid-amp with several seeds and evaluates each policy without noise.

    python benchmarks/humanoid.py train --device cuda --seeds 1 2 3            # MuJoCo Warp, 4,096 robots
    python benchmarks/humanoid.py evaluate --seeds 1 2 3                          # CPU, fine physics
    python benchmarks/humanoid.py train --device cpu --seeds 1 --minutes 30    # on the cores of a CPU alone
    python benchmarks/humanoid.py train --seeds 1 --runs runs/kl -- --algorithm.desired-kl 0.01
    python benchmarks/humanoid.py train --task humanoid-amp --device cuda      # in the style of a reference

What follows `--` goes to `st-rl train`. Trainings run one after the other and leave a small folder each under --runs;
evaluation needs nothing else. It asks for 0.2 to 0.8 m/s and -0.5 to 0.5 rad/s (humanoid-amp, whose reference walks
straight ahead, for no turning), 64 robots, 20 s: falls, errors of the mean speed and of turning, left and right step
times; the loss from the physics of the training to fine physics on the CPU; who stays up under pushes, with a heavier
trunk, on other ground and with latency; of humanoid-amp also the distance to its reference. Writes
benchmarks/results/humanoid.json or humanoid_amp_walk.json (or --out) and a plot beside it.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from amp_style import REFERENCES, evaluate_style
from machine import describe_machine, write_results
from plots import can_plot, start_plot
from robustness import Plan, evaluate_tracking, few_iterations, sim_to_sim, survival_table
from seeds import with_spread

from st_rl.cli.support.loaded_run import LoadedRun
from st_rl.cli.support.run_folder import RunFolder
from st_rl.sim.evaluation.evaluator import EvaluationCfg, evaluate_walk, make_eval_task
from st_rl.sim.tasks import make_task

RESULTS = Path(__file__).parent / "results"
TRAINED = "trained.json"
# Where results go, and which turning rates are asked for.
TASKS = {"humanoid-walk": ("humanoid", (-0.5, 0.5)), "humanoid-amp": ("humanoid_amp_walk", (0.0, 0.0))}
FORWARD = (0.2, 0.8)
# What is promised: figure of the walk with fine physics, and the largest value that is good.
PROMISES = {"falls": 0, "lin_vel_x_error": 0.06, "ang_vel_yaw_error": 0.1, "step_asymmetry": 0.1}
MOST_TRACKING_LOST = 0.1


def evaluation_plan(task: str) -> Plan:
    """Configuration of the comparison between simulators and under disturbances."""
    return Plan(commands=(FORWARD, (0.0, 0.0), TASKS[task][1]))


def train(options: argparse.Namespace, seed: int) -> None:
    """Train from the command line; the time is written to the run folder."""
    run = options.runs / f"seed_{seed}"
    on_gpu = options.device.startswith("cuda")
    command = [sys.executable, "-m", "st_rl", "train", options.task, "--seed", str(seed), "--log-dir", str(run)]
    command += ["--device", "cuda:0" if on_gpu else "cpu", "--num-envs", str(options.robots)]
    command += ["--iterations", str(options.iterations), "--runner.keep-last", "1", "--runner.engine", options.engine]
    command += ["--minutes", str(options.minutes)] if options.minutes else []
    began = time.perf_counter()
    with open(options.runs / f"seed_{seed}.log", "w") as log:
        subprocess.run([*command, *options.more], check=True, stdout=log, stderr=log)
    seconds = time.perf_counter() - began
    trained: dict[str, Any] = {"command_seconds": seconds, **read_progress(run), **describe_machine()}
    policy, config = load(options.task, run, "cuda:0" if on_gpu else "cpu")
    # The physics of the training, on its own backend.
    trained["judged_on_its_own_backend"] = evaluate_tracking(
        options.task, config, policy, evaluation_plan(options.task), fine=False, device="cuda:0" if on_gpu else "cpu"
    )
    trained["arguments"] = [word for word in command[5:] + options.more if word not in ("--log-dir", str(run))]
    write_results(run / TRAINED, trained)
    keep_the_policies(run)
    row = {name: trained[name] for name in ("training_seconds", "steps_per_second", "iterations")}
    print(f"seed {seed}: {json.dumps(row)} {json.dumps(trained['judged_on_its_own_backend'])}", flush=True)


def keep_the_policies(run: Path) -> None:
    """Delete what only a resume would need, which is most of a run; keeps the best and the last policy."""
    needless = ("optimizer_state_dict", "rng_state_dict", "runner_state_dict", "env_state_dict")
    for path in run.glob("*.pt"):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        torch.save({name: value for name, value in saved.items() if name not in needless}, path)
    for left_over in run.glob("events.*"):
        left_over.unlink()


def read_progress(run: Path) -> dict[str, Any]:
    """Wall-clock time, throughput and curves of a training."""
    with open(run / "progress.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("Perf/total_fps")]
    first = float(rows[0]["Perf/collection time"]) + float(rows[0]["Perf/learning_time"])
    steps = 24 * json.loads((run / "run.json").read_text())["num_envs"]
    training_seconds = first + float(rows[-1]["wall_time"]) - float(rows[0]["wall_time"])
    every = max(1, len(rows) // 100)
    return {
        # The iterations alone; the command also loads, builds the robots and saves.
        "training_seconds": training_seconds,
        "iterations": len(rows),
        "steps": steps * len(rows),
        "steps_per_second": steps * len(rows) / training_seconds,
        # It compiles and captures.
        "first_iteration_seconds": first,
        # With checkpoints and their evaluation.
        "steps_per_second_after_the_first": steps * (len(rows) - 1) / max(training_seconds - first, 1e-9),
        "median_steps_per_second": statistics.median(float(row["Perf/total_fps"]) for row in rows),
        "curve": {
            "seconds": [first + float(row["wall_time"]) - float(rows[0]["wall_time"]) for row in rows[::every]],
            **{name: [float(row[key] or "nan") for row in rows[::every]] for name, key in CURVES.items()},
        },
    }


CURVES = {
    "iteration": "step",
    "episode_length": "Train/mean_episode_length",
    "lin_vel_x_error": "Metrics/velrmsd",
}


def load(task: str, run: Path, device: str, checkpoint: str = "best") -> tuple[Any, Any]:
    """A policy of a run, and the configuration of its task."""
    saved = LoadedRun(RunFolder(run))
    env = make_task(task, 1, device, cfg=saved.env_config)
    return saved.load_policy(env, saved.run.checkpoint(checkpoint), device), saved.env_config


def evaluate(task: str, run: Path, checkpoint: str, with_survival: bool) -> dict[str, Any]:
    """All metrics of a policy on the CPU."""
    trained = json.loads((run / TRAINED).read_text()) if (run / TRAINED).is_file() else {}
    trained |= read_progress(run)
    policy, config = load(task, run, "cpu", checkpoint)
    plan = EvaluationCfg(lin_vel_x=FORWARD, lin_vel_y=(0.0, 0.0), ang_vel_yaw=TASKS[task][1], push_speed=0.0)
    env = make_eval_task(task, config, plan.num_envs, plan.seconds, plan.seed, fine=True)
    with torch.inference_mode():
        walk, robots = evaluate_walk(env, policy, plan)
    kept = {name: walk[name] for name in PROMISES}
    figures: dict[str, Any] = {"training": trained, "walk": walk, "robots": robots}
    figures["holds"] = {name: bool(value <= PROMISES[name]) for name, value in kept.items()}
    print(f"{run.name}: {json.dumps(kept)}, clearance {walk['foot_clearance']:.3f} m", flush=True)
    if task in REFERENCES:
        figures["style"] = evaluate_style(task, config, policy)
        print(f"{run.name}: {figures['style']['joint_distance']:.3f} rad from its reference", flush=True)
    evaluated = evaluation_plan(task)
    coarse = trained.get("judged_on_its_own_backend") or evaluate_tracking(task, config, policy, evaluated, fine=False)
    figures["sim_to_sim"] = sim_to_sim(coarse, evaluate_tracking(task, config, policy, evaluated))
    lost = figures["sim_to_sim"]["tracking_loss"]
    figures["holds"]["tracking_loss"] = lost <= MOST_TRACKING_LOST
    print(f"{run.name}: tracking lost from its physics to fine {lost:.3f}", flush=True)
    if with_survival:
        figures["few_iterations_on_the_cpu"] = few_iterations(task, config, policy, evaluated)
        figures["survival"] = survival_table(task, config, policy, evaluated, report=print)
    return figures


def plot(results: dict[str, Any], path: Path) -> None:
    """Learning curves, and commanded and measured velocities."""
    if not can_plot():
        return
    figure, (curve, speed) = start_plot(2, (9, 3.4))
    for seed, row in results["seeds"].items():
        learned = row["training"].get("curve")
        if learned:
            curve.plot(learned["seconds"], learned["episode_length"], label=f"seed {seed}")
        asked, reached = torch.tensor(row["robots"]["command"]), torch.tensor(row["robots"]["velocity"])
        speed.plot(asked[:, 0], reached[:, 0], ".", markersize=4)
    speed.plot(FORWARD, FORWARD, "k-", linewidth=0.8)
    curve.set(xlabel="seconds of training", ylabel="steps of an episode", ylim=(0, None))
    speed.set(xlabel="forward speed asked for, m/s", ylabel="reached, m/s")
    curve.legend()
    figure.savefig(path, dpi=110)


def parse_options() -> argparse.Namespace:
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("train", "evaluate"))
    parser.add_argument("--task", default="humanoid-walk", choices=list(TASKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--robots", type=int, help="4,096 on a GPU and 512 on a CPU by default")
    parser.add_argument("--iterations", type=int, default=650)
    parser.add_argument("--minutes", type=float, help="limit of the training time")
    parser.add_argument("--engine", default="compile", choices=("auto", "eager", "compile", "graph"))
    parser.add_argument("--checkpoint", default="best", choices=("best", "last"), help="which policy to evaluate")
    parser.add_argument("--no-survival", action="store_true", help="evaluate the walk only")
    parser.add_argument("--runs", type=Path, help="runs/TASK by default")
    parser.add_argument("--out", type=Path, help="results file")
    options = parser.parse_args(own)
    options.more = more
    options.runs = options.runs or Path("runs") / options.task
    options.out = options.out or RESULTS / f"{TASKS[options.task][0]}.json"
    options.robots = options.robots or (4096 if options.device.startswith("cuda") else 512)
    return options


def main() -> None:
    options = parse_options()
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.stage == "train":
        for seed in options.seeds:
            train(options, seed)
        return
    seeds = {
        str(seed): evaluate(options.task, options.runs / f"seed_{seed}", options.checkpoint, not options.no_survival)
        for seed in options.seeds
    }
    results = with_spread(
        {
            "benchmark": TASKS[options.task][0],
            "promises": {**PROMISES, "tracking_loss": MOST_TRACKING_LOST},
            "checkpoint": options.checkpoint,
            **describe_machine(),
            "seeds": seeds,
        }
    )
    write_results(options.out, results)
    plot(results, options.out.with_suffix(".png"))
    print(f"results: {options.out}")


if __name__ == "__main__":
    main()
