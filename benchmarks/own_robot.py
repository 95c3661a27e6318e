"""Trains robots defined only by a description file: the Unitree Go1 and G1 of mjlab.

    pip install --no-deps mjlab                                                # only its MJCF files are used
    python benchmarks/own_robot.py train go1 --device cuda --seeds 1 2 3       # MuJoCo Warp, 4,096 robots
    python benchmarks/own_robot.py train go1 --device cpu --minutes 5 --threads 1 --runs runs/own_robot_cpu
    python benchmarks/own_robot.py evaluate go1 g1                             # CPU, fine physics

Arguments after `--` are passed to `st-rl train`. `evaluate` reads the folders under --runs and writes
benchmarks/results/own_robot.json (or --out): falls and errors of the mean speed and yaw rate of 64 robots over 20 s,
and the time and curves of the training.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe_machine, write_results
from run_files import (
    TRAINED,
    make_parser,
    parse_options,
    read_trained,
    run_training,
    strip_checkpoints,
    summarize_training,
)

from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.sim.evaluation.evaluator import EvaluationCfg, evaluate_walk, make_eval_task

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CURVES = {"iteration": "step", "episode_length": "Train/mean_episode_length", "lin_vel_x_error": "Metrics/velrmsd"}


class Setup(NamedTuple):
    """Training and evaluation settings of one robot."""

    task: str
    plan: EvaluationCfg
    iterations: int
    options: tuple[str, ...] = ()
    """Further options of `st-rl train`."""


SETUPS = {
    "go1": Setup("quadruped-walk", EvaluationCfg(), 300),
    "g1": Setup(
        "humanoid-walk",
        EvaluationCfg(lin_vel_x=(0.2, 0.8), lin_vel_y=(0.0, 0.0), ang_vel_yaw=(-0.5, 0.5)),
        800,
        # Feet of three capsules touch at six points each; wrists are held still like the rest of the arms.
        ("--env.physics.max-contacts", "20", "--env.posture-joints", "hip_roll|hip_yaw|waist|shoulder|elbow|wrist"),
    ),
}


def train(options: argparse.Namespace, robot: str, seed: int) -> None:
    """Train from the command line; the time is written to the run folder."""
    setup, run = SETUPS[robot], options.runs / f"{robot}_{seed}"
    file = robot if robot == "go1" else f"examples/robots/{robot}.yaml"
    arguments = ["train", setup.task, "--env.robot", file, "--seed", str(seed)]
    arguments += ["--device", options.device, "--runner.keep-last", "1"]
    arguments += ["--iterations", str(options.iterations or setup.iterations), *setup.options]
    for name in ("num_envs", "minutes", "threads"):
        value = getattr(options, name)
        arguments += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    arguments += options.more
    trained = run_training(arguments, run, CURVES, ROOT) | {**describe_machine(), "arguments": arguments}
    write_results(run / TRAINED, trained)
    strip_checkpoints(run)
    print(f"{robot}, seed {seed}: {summarize_training(trained)}", flush=True)


def evaluate(run: Path, setup: Setup) -> dict[str, Any]:
    """Metrics of the best policy of a run on the CPU in fine physics."""
    saved = LoadedRun(RunFolder(run))
    plan = setup.plan
    task = make_eval_task(setup.task, saved.env_config, plan.num_envs, plan.seconds, plan.seed, fine=True)
    policy = saved.load_policy(task, saved.run.checkpoint(), "cpu")
    walk, _ = evaluate_walk(task, policy, plan)
    trained = read_trained(run)
    names = ("falls", "lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error", "foot_clearance", "push_survival")
    print(f"{run.name}: {json.dumps({name: walk.get(name) for name in names})}", flush=True)
    return {"walk": walk, "training": trained}


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__, Path("runs/own_robot"), RESULTS / "own_robot.json")
    parser.set_defaults(seeds=[1])
    parser.add_argument("robot", nargs="+", choices=tuple(SETUPS))
    parser.add_argument("--num-envs", type=int, help="robots; 4,096 on a GPU, on a CPU the default of the task")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--threads", type=int, help="torch threads")
    options = parse_options(parser)
    if options.num_envs is None and options.device.startswith("cuda"):
        options.num_envs = 4096
    return options


def main() -> None:
    options = read_options()

    if options.stage == "train":
        for robot in options.robot:
            for seed in options.seeds:
                train(options, robot, seed)
        return
    found: dict[str, Any] = {}
    for robot in options.robot:
        runs = {seed: options.runs / f"{robot}_{seed}" for seed in options.seeds}
        found[robot] = {str(seed): evaluate(run, SETUPS[robot]) for seed, run in runs.items() if run.is_dir()}
    write_results(options.out, {"benchmark": "own_robot", **describe_machine(), "robots": found})
    print(f"results: {options.out}")


if __name__ == "__main__":
    main()
