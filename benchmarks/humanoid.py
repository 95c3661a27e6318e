"""Trains humanoid-walk or humanoid-amp with several seeds and evaluates each policy without noise.

    python benchmarks/humanoid.py train --device cuda --seeds 1 2 3            # MuJoCo Warp, 4,096 robots
    python benchmarks/humanoid.py evaluate --seeds 1 2 3                       # CPU, fine physics
    python benchmarks/humanoid.py train --device cpu --seeds 1 --minutes 30    # CPU only
    python benchmarks/humanoid.py train --seeds 1 --runs runs/kl -- --algorithm.desired-kl 0.01
    python benchmarks/humanoid.py train --task humanoid-amp --device cuda      # with a motion prior

Arguments after `--` are passed to `st-rl train`. Trainings run one after the other; the evaluation needs only the small
run folders they leave under --runs. It commands 0.2 to 0.8 m/s and -0.5 to 0.5 rad/s (humanoid-amp: 0 rad/s, because
its reference walks straight), 64 robots, 20 s, and measures falls, errors of the mean speed and yaw rate, and step-time
asymmetry; the tracking loss from training to fine physics on the CPU; survival under pushes, a heavier trunk,
other friction and latency; for humanoid-amp also the distance to its reference. Writes
benchmarks/results/humanoid.json or humanoid_amp_walk.json (or --out) and a plot of the same name.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from amp_style import REFERENCES, evaluate_style
from machine import describe_machine, write_results
from plots import can_plot, start_plot
from robustness import Plan, evaluate_tracking, few_iterations, sim_to_sim, survival_table
from run_files import (
    TRAINED,
    add_sizes,
    make_parser,
    parse_options,
    read_progress,
    read_trained,
    run_training,
    strip_checkpoints,
    summarize_training,
)
from seeds import with_spread

from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.sim.evaluation.evaluator import EvaluationCfg, evaluate_walk, make_eval_task
from st_rl.sim.tasks import make_task

RESULTS = Path(__file__).parent / "results"
# Name of the results file, and range of the commanded yaw rate, rad/s.
TASKS = {"humanoid-walk": ("humanoid", (-0.5, 0.5)), "humanoid-amp": ("humanoid_amp_walk", (0.0, 0.0))}
FORWARD = (0.2, 0.8)
# Targets: the largest allowed value of each metric in fine physics.
TARGETS = {"falls": 0, "lin_vel_x_error": 0.06, "ang_vel_yaw_error": 0.1, "step_asymmetry": 0.1}
MAX_TRACKING_LOSS = 0.1
CURVES = {
    "iteration": "step",
    "episode_length": "Train/mean_episode_length",
    "lin_vel_x_error": "Metrics/velrmsd",
}


def evaluation_plan(task: str) -> Plan:
    """Configuration of the comparison between simulators and under disturbances."""
    return Plan(commands=(FORWARD, (0.0, 0.0), TASKS[task][1]))


def train(options: argparse.Namespace, seed: int) -> None:
    """Train from the command line; the time is written to the run folder."""
    run, device = options.runs / f"seed_{seed}", options.device
    arguments = ["train", options.task, "--seed", str(seed), "--device", device, "--num-envs", str(options.robots)]
    arguments += ["--iterations", str(options.iterations), "--runner.keep-last", "1", "--runner.engine", options.engine]
    arguments += ["--minutes", str(options.minutes)] if options.minutes else []
    arguments += options.more
    trained = {**run_training(arguments, run, CURVES), **describe_machine(), "arguments": arguments[2:]}
    policy, config = load(options.task, run, device)
    # Training physics on the device of the training.
    trained["evaluated_on_its_own_backend"] = evaluate_tracking(
        options.task, config, policy, evaluation_plan(options.task), fine=False, device=device
    )
    write_results(run / TRAINED, trained)
    strip_checkpoints(run)
    print(
        f"seed {seed}: {summarize_training(trained)} {json.dumps(trained['evaluated_on_its_own_backend'])}", flush=True
    )


def load(task: str, run: Path, device: str, checkpoint: str = "best") -> tuple[Any, Any]:
    """A policy of a run, and the configuration of its task."""
    saved = LoadedRun(RunFolder(run))
    env = make_task(task, 1, device, cfg=saved.env_config)
    return saved.load_policy(env, saved.run.checkpoint(checkpoint), device), saved.env_config


def evaluate(task: str, run: Path, checkpoint: str, with_survival: bool) -> dict[str, Any]:
    """All metrics of a policy on the CPU."""
    trained = read_trained(run) | read_progress(run, CURVES)
    policy, config = load(task, run, "cpu", checkpoint)
    plan = EvaluationCfg(lin_vel_x=FORWARD, lin_vel_y=(0.0, 0.0), ang_vel_yaw=TASKS[task][1], push_speed=0.0)
    env = make_eval_task(task, config, plan.num_envs, plan.seconds, plan.seed, fine=True)
    with torch.inference_mode():
        walk, robots = evaluate_walk(env, policy, plan)
    kept = {name: walk[name] for name in TARGETS}
    figures: dict[str, Any] = {"training": trained, "walk": walk, "robots": robots}
    figures["holds"] = {name: bool(value <= TARGETS[name]) for name, value in kept.items()}
    print(f"{run.name}: {json.dumps(kept)}, clearance {walk['foot_clearance']:.3f} m", flush=True)
    if task in REFERENCES:
        figures["style"] = evaluate_style(task, config, policy)
        print(f"{run.name}: {figures['style']['joint_distance']:.3f} rad from its reference", flush=True)
    evaluated = evaluation_plan(task)
    coarse = trained.get("evaluated_on_its_own_backend") or evaluate_tracking(
        task, config, policy, evaluated, fine=False
    )
    figures["sim_to_sim"] = sim_to_sim(coarse, evaluate_tracking(task, config, policy, evaluated))
    lost = figures["sim_to_sim"]["tracking_loss"]
    figures["holds"]["tracking_loss"] = lost <= MAX_TRACKING_LOSS
    print(f"{run.name}: tracking loss from training physics to fine physics {lost:.3f}", flush=True)
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
        commanded, measured = torch.tensor(row["robots"]["command"]), torch.tensor(row["robots"]["velocity"])
        speed.plot(commanded[:, 0], measured[:, 0], ".", markersize=4)
    speed.plot(FORWARD, FORWARD, "k-", linewidth=0.8)
    curve.set(xlabel="seconds of training", ylabel="mean episode length, steps", ylim=(0, None))
    speed.set(xlabel="commanded forward speed, m/s", ylabel="measured, m/s")
    curve.legend()
    figure.savefig(path, dpi=110)


def read_options() -> argparse.Namespace:
    """The command line; runs are in runs/TASK by default."""
    parser = make_parser(__doc__, None, None)
    parser.add_argument("--task", default="humanoid-walk", choices=list(TASKS))
    add_sizes(parser, iterations=650, cpu_robots=512)
    parser.add_argument("--checkpoint", default="best", choices=("best", "last"), help="which policy to evaluate")
    parser.add_argument("--no-survival", action="store_true", help="evaluate the walk only")
    options = parse_options(parser)
    options.runs = options.runs or Path("runs") / options.task
    options.out = options.out or RESULTS / f"{TASKS[options.task][0]}.json"

    return options


def main() -> None:
    options = read_options()

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
            "promises": {**TARGETS, "tracking_loss": MAX_TRACKING_LOSS},
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
