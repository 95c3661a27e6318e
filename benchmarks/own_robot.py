"""Trains robots defined only by a description file: the Unitree Go1 and G1 of mjlab.

    pip install --no-deps mjlab                                                # only its MJCF files are used
    python benchmarks/own_robot.py train go1 g1 --device cuda --seeds 1 2 3    # MuJoCo Warp, 4,096 robots
    python benchmarks/own_robot.py train go1 --device cpu --minutes 5 --threads 1 --runs runs/own_robot_cpu
    python benchmarks/own_robot.py evaluate go1 g1                             # CPU

    st-rl motion edit g1_walk.csv g1_walk.npz --ground constant --robot examples/robots/g1.yaml
    python benchmarks/own_robot.py train g1-amp g1-ppo --clip g1_walk.npz --device cuda
    python benchmarks/own_robot.py evaluate g1-amp g1-ppo --clip g1_walk.npz

Jobs: `go1` and `g1` walk as commanded; `g1-amp` walks at the speed of a clip in its style; `g1-ppo` has the task, the
reward and the initial states of `g1-amp`, without the style. Arguments after `--` are passed to `st-rl train`.
`evaluate` reads the folders under --runs and writes benchmarks/results/own_robot.json (or --out): falls and errors of
the mean speed and yaw rate of 64 robots over 20 s, in fine and in training physics; time and curves of the training;
for the jobs with a clip the distance from it at its speed, over a stride in joint space (as `amp_style.py`).
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

from amp_style import clip_style
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
from st_rl.sim.tasks import with_overrides

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
CURVES = {"iteration": "step", "episode_length": "Train/mean_episode_length", "lin_vel_x_error": "Metrics/velrmsd"}
# Largest allowed values in fine physics of the jobs without a clip.
TARGETS = {"falls": 0, "lin_vel_x_error": 0.05, "ang_vel_yaw_error": 0.08}
SHOWN = ("falls", "lin_vel_x_error", "lin_vel_y_error", "ang_vel_yaw_error", "foot_clearance", "step_asymmetry")


class Setup(NamedTuple):
    """Training and evaluation settings of one job."""

    robot: str
    task: str
    plan: EvaluationCfg
    iterations: int
    options: tuple[str, ...] = ()
    """Further options of `st-rl train`."""


G1 = "examples/robots/g1.yaml"
# Feet of three capsules touch at six points each.
G1_OPTIONS = ("--env.physics.max-contacts", "20")
# The clip walks straight ahead at 1.14 m/s with a stride of 1.04 s, the left foot first.
CLIP_OPTIONS = (
    *G1_OPTIONS,
    *("--env.commands.lin-vel-x", "1.14", "1.14", "--env.commands.standing-fraction", "0"),
    *("--env.gait.period-s", "1.04"),
)
CLIP_PLAN = EvaluationCfg(lin_vel_x=(1.14, 1.14), lin_vel_y=(0.0, 0.0), ang_vel_yaw=(0.0, 0.0))
# The algorithm without the motion prior of the task; its episodes also start from states of the clip.
WITHOUT_PRIOR = {
    "runner_class_name": "OnPolicyRunner",
    "policy.class_name": "ActorCritic",
    "policy.amp_discriminator": "null",
    "algorithm.class_name": "PPO",
    "algorithm.discriminator_cfg": "null",
}
SETUPS = {
    "go1": Setup("go1", "quadruped-walk", EvaluationCfg(), 160),
    "g1": Setup(
        G1,
        "humanoid-walk",
        EvaluationCfg(lin_vel_x=(0.2, 0.8), lin_vel_y=(0.0, 0.0), ang_vel_yaw=(-0.5, 0.5)),
        800,
        # With the weights of the smaller built-in humanoid it stands for long before it takes a step.
        (*G1_OPTIONS, "--env.rewards.gait", "2", "--env.rewards.foot-clearance", "-100"),
    ),
    "g1-amp": Setup(G1, "humanoid-amp", CLIP_PLAN, 250, CLIP_OPTIONS),
    "g1-ppo": Setup(
        G1, "humanoid-amp", CLIP_PLAN, 250, (*CLIP_OPTIONS, "--set", *map("=".join, WITHOUT_PRIOR.items()))
    ),
}


def train(options: argparse.Namespace, job: str, seed: int) -> None:
    """Train from the command line; the time is written to the run folder."""
    setup, run = SETUPS[job], options.runs / f"{job}_{seed}"
    arguments = ["train", setup.task, "--env.robot", setup.robot, "--seed", str(seed)]
    arguments += ["--device", options.device, "--runner.keep-last", "1"]
    arguments += ["--iterations", str(options.iterations or setup.iterations)]
    if setup.task == "humanoid-amp":
        arguments += ["--env.motions", str(options.clip.resolve())]
    for name in ("num_envs", "minutes", "threads"):
        value = getattr(options, name)
        arguments += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    arguments += [*setup.options, *options.more]
    trained = run_training(arguments, run, CURVES, ROOT) | {**describe_machine(), "arguments": arguments}
    write_results(run / TRAINED, trained)
    strip_checkpoints(run)
    print(f"{job}, seed {seed}: {summarize_training(trained)}", flush=True)


def evaluate(options: argparse.Namespace, job: str, seed: int) -> dict[str, Any]:
    """Metrics of the best policy of a run on the CPU."""
    setup, run = SETUPS[job], options.runs / f"{job}_{seed}"
    saved, plan = LoadedRun(RunFolder(run)), setup.plan
    config = saved.env_config
    if setup.task == "humanoid-amp":
        config = with_overrides(config, {"motions": (str(options.clip),)})
    found: dict[str, Any] = {}
    for name, fine in (("walk", True), ("walk_in_training_physics", False)):
        task: Any = make_eval_task(setup.task, config, plan.num_envs, plan.seconds, plan.seed, fine=fine)
        policy = saved.load_policy(task, saved.run.checkpoint(options.checkpoint), "cpu")
        found[name] = evaluate_walk(task, policy, plan)[0]
        print(f"{run.name}, {name}: {json.dumps({key: found[name].get(key) for key in SHOWN})}", flush=True)
        if setup.task == "humanoid-amp" and fine:
            found["style"] = clip_style(setup.task, config, policy)
            print(f"{run.name}, style: {json.dumps(found['style'])}", flush=True)
    if setup.task != "humanoid-amp":
        found["holds"] = {name: bool(found["walk"][name] <= limit) for name, limit in TARGETS.items()}
    return found | {"training": read_trained(run)}


def read_options() -> argparse.Namespace:
    parser = make_parser(__doc__, Path("runs/own_robot"), RESULTS / "own_robot.json")
    parser.set_defaults(seeds=[1])
    parser.add_argument("job", nargs="+", choices=tuple(SETUPS))
    parser.add_argument("--num-envs", type=int, help="robots; 4,096 on a GPU, on a CPU the default of the task")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--clip", type=Path, default=Path("runs/g1_walk.npz"), help="clip of g1-amp and g1-ppo")
    parser.add_argument("--checkpoint", default="best", choices=("best", "last"), help="which policy to evaluate")
    options = parse_options(parser)
    if options.num_envs is None and options.device.startswith("cuda"):
        options.num_envs = 4096
    return options


def main() -> None:
    options = read_options()

    if options.stage == "train":
        for job in options.job:
            for seed in options.seeds:
                train(options, job, seed)
        return
    found: dict[str, Any] = {}
    for job in options.job:
        seeds = [seed for seed in options.seeds if (options.runs / f"{job}_{seed}").is_dir()]
        found[job] = {str(seed): evaluate(options, job, seed) for seed in seeds}
    write_results(options.out, {"benchmark": "own_robot", **describe_machine(), "promises": TARGETS, "robots": found})
    print(f"results: {options.out}")


if __name__ == "__main__":
    main()
