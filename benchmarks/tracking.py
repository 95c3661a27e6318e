"""Trains a Unitree G1 to track clips, and measures by clip how well it does.

    python benchmarks/tracking.py prepare --mjcf G1.XML --motions CLIPS --data FOLDER   # one MJCF file without meshes
    python benchmarks/tracking.py train walk wave --data FOLDER --device cuda --seeds 1 2 3 --jobs 6 --minutes 9
    python benchmarks/tracking.py evaluate walk wave --data FOLDER --robots 512         # CPU, fine and training physics

G1.XML is asset_zoo/robots/unitree_g1/xmls/g1.xml of the Python package mjlab 1.6, CLIPS a folder with g1_walk.csv,
g1_wave.csv, g1_dance.csv, g1_jumpjack.csv and g1_high5.csv. Jobs:

    walk, wave, dance, jumpjack     one clip
    five                            all five clips, one policy
    five-deployable                 the same without position and velocity of the base
    dance-uniform                   the dance without adaptive sampling

A job is trained for its iterations (--iterations overrides them), or until its seconds are over, start and compilation
included (--seconds). --jobs trainings share the GPU, which NVIDIA MPS makes faster than taking turns: start nvidia-
cuda-mps-control -d first. Trainings that would end after --minutes are left out. --env and --set change settings of the
task and of the training: --env scales.body_pos=0.2 --set algorithm.desired_kl=0.01. The evaluation starts at the first
frame of every clip, without noise, pushes and randomization, at small deviations from the clip. It writes, by clip, the
fraction of robots that reach its end, the mean position error of 14 bodies relative to the torso (the bodies and the
definition of mjlab's tracking task), the mean joint error, the moment of the largest error, and the joint acceleration
of the robot as a multiple of that of the clip; results are in benchmarks/results/tracking.json.
"""

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from machine import describe_machine, write_results
from missing_packages import replace_missing
from run_files import TRAINED, parse_options, read_progress, read_settings, read_trained, strip_checkpoints

from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.cli.support.torch_setup import seed_everything, use_tensor_cores
from st_rl.runners import OnPolicyRunner
from st_rl.sim.envs import MotionTracking
from st_rl.sim.evaluation.clip_tracking import evaluate_clips
from st_rl.sim.evaluation.evaluator import make_eval_task
from st_rl.sim.robots import Robot
from st_rl.sim.robots.save_mjcf import save_without_visuals
from st_rl.sim.tasks import find_task, make_task, with_overrides

RESULTS = Path(__file__).parent / "results"
DESCRIPTION = Path(__file__).with_name("g1_tracking.yaml")
TASK = "humanoid-track"
CURVES = {
    "iteration": "step",
    "reward": "Train/mean_reward",
    "episode_length": "Train/mean_episode_length",
    "body_pos_error": "Tracking/body_pos_error",
}
# The bodies and the anchor of mjlab's tracking task.
BODIES = (
    *("pelvis", "torso_link", ".*_(hip|shoulder)_roll_link", ".*_(knee|elbow)_link"),
    *(".*_ankle_roll_link", ".*_wrist_yaw_link"),
)
SETTINGS: dict[str, Any] = {
    "anchor_body": "torso_link",
    "tracked_bodies": BODIES,
    "rewards.unwanted_contacts": 0.0,
    "contact_sensors": False,
    "physics.max_contacts": 12,
}
ROBOT, SCALES = "g1.xml", "action_scale.json"
# Feet are 3 cm and more below the ground; `st-rl motion inspect` advises to raise these clips.
SUNKEN_CLIPS = ("walk", "dance")
ALL_CLIPS = ("walk", "wave", "dance", "jumpjack", "high5")


class Job(NamedTuple):
    """A training."""

    clips: tuple[str, ...]
    iterations: int
    seconds: float
    """Time limit."""
    settings: Mapping[str, Any] = MappingProxyType({})


JOBS = {
    "walk": Job(("walk",), 800, 120.0),
    "wave": Job(("wave",), 800, 120.0),
    "dance": Job(("dance",), 2000, 300.0),
    "jumpjack": Job(("jumpjack",), 2000, 300.0),
    "five": Job(ALL_CLIPS, 4000, 600.0),
    "five-deployable": Job(ALL_CLIPS, 4000, 600.0, {"deployable": True}),
    "dance-uniform": Job(("dance",), 2000, 300.0, {"sampling.adaptive": False}),
}


def prepare(options: argparse.Namespace) -> None:
    """Write robot, action scales and clips to the folder `data`, which the other stages read."""
    import yaml

    folder = options.data
    folder.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load(DESCRIPTION.read_text())
    described = folder / "with_meshes.yaml"
    described.write_text(yaml.safe_dump({**content, "mjcf": str(options.mjcf.resolve())}))
    robot = Robot.from_file(described)
    save_without_visuals(robot, folder / ROBOT)
    (folder / SCALES).write_text(json.dumps(list(robot.action_scale if robot.action_scale is not None else [])))
    for clip in ALL_CLIPS:
        source, target = options.motions / f"g1_{clip}.csv", folder / f"g1_{clip}.csv"
        if clip in SUNKEN_CLIPS:
            edit = ["motion", "edit", str(source), str(target), "--ground", "constant", "--robot", str(described)]
            subprocess.run([sys.executable, "-m", "st_rl", *edit], check=True)
        else:
            shutil.copyfile(source, target)
    described.unlink()
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}, {size / 2**20:.1f} MiB")


def data_settings(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The robot and the clips of a job, as settings of the task."""
    return {
        "robot": str(options.data.resolve() / ROBOT),
        "control.action_scale": tuple(json.loads((options.data / SCALES).read_text())),
        "motions": tuple(str(options.data.resolve() / f"g1_{clip}.csv") for clip in JOBS[name].clips),
    }


def train(options: argparse.Namespace, name: str, seed: int) -> None:
    """Train a job, at most for its seconds, with all that happens from the first line to the last checkpoint."""
    began, run = time.monotonic(), options.runs / f"{name}_{seed}"
    entry = find_task(TASK)
    config = entry.gpu_training_config(options.num_envs)
    # Nothing is saved or scored before the end.
    config |= {"engine": options.engine, "save_interval": 1_000_000, "keep_best": False}
    settings = SETTINGS | data_settings(options, name) | dict(JOBS[name].settings) | options.env
    for path, value in options.set.items():
        *parts, last = path.split(".")
        part = config
        for key in parts:
            part = part[key]
        part[last] = value
    seed_everything(seed)
    env = make_task(TASK, options.num_envs, options.device, seed, cfg=with_overrides(entry.cfg(), settings))
    runner = OnPolicyRunner(env, config, log_dir=run, device=options.device)
    run.parent.mkdir(parents=True, exist_ok=True)
    runner.time_limit_s = (options.seconds or JOBS[name].seconds) - (time.monotonic() - began)
    with open(run.with_name(f"{run.name}.log"), "w") as log, redirect_stdout(log):
        runner.learn(options.iterations or JOBS[name].iterations, init_at_random_ep_len=False)
    runner.close()
    trained = {"seconds": time.monotonic() - began, **read_progress(run, CURVES), **describe_machine()}
    trained |= {"settings": options.env | options.set, "trainings_at_once": options.jobs}
    write_results(run / TRAINED, trained)
    strip_checkpoints(run)
    figures = {key: trained[key] for key in ("seconds", "median_steps_per_second", "iterations", "steps")}
    figures |= {name: values[-1] for name, values in trained["curve"].items() if name != "seconds"}
    print(f"{name}, seed {seed}: {json.dumps(figures)}", flush=True)


def evaluate(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Metrics of a job by clip, in fine physics and in those of the training."""
    run = RunFolder(options.runs / f"{name}_{seed}")
    saved, found = LoadedRun(run), {}
    config = with_overrides(saved.env_config, data_settings(options, name))
    clips = JOBS[name].clips
    for physics in ("fine", "training"):
        task = make_eval_task(TASK, config, options.robots * len(clips), 60.0, 1000 + seed, fine=physics == "fine")
        policy = saved.load_policy(task, run.checkpoint(), "cpu")
        for metrics in evaluate_clips(cast("MotionTracking", task), policy)[1]:
            clip = metrics["clip"].removeprefix("g1_")
            means = {key: value for key, value in metrics.items() if not isinstance(value, list)}
            found.setdefault(clip, {})[physics] = means
            print(
                f"{name + ' ' + str(seed):<18} {clip:<9} {physics:<9} {metrics['reached_end']:>6.1%} "
                f"{metrics['body_pos_error']:>8.3f} m {metrics['joint_pos_error']:>8.3f} rad "
                f"{metrics['worst_s']:>6.2f} s {metrics['acceleration_ratio']:>6.2f}",
                flush=True,
            )
    trained = read_trained(run.path)
    return {"clips": found, "training": trained}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("prepare", "train", "evaluate"))
    parser.add_argument("names", nargs="*", metavar="JOB", help=f"jobs, default walk: {', '.join(JOBS)}")
    parser.add_argument("--mjcf", type=Path, help="g1.xml of mjlab, for prepare")
    parser.add_argument("--motions", type=Path, help="folder of the clips, for prepare")
    parser.add_argument("--data", type=Path, default=Path("runs/tracking_data"), help="what prepare writes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--iterations", type=int, help="iterations of each training, instead of those of the job")
    parser.add_argument("--seconds", type=float, help="time limit of each training, instead of that of the job")
    parser.add_argument("--minutes", type=float, default=600.0, help="time limit of the whole stage train")
    parser.add_argument("--num-envs", type=int, default=4096, help="robots that learn")
    parser.add_argument("--engine", default="graph", choices=("auto", "eager", "compile", "graph"))
    parser.add_argument("--robots", type=int, default=512, help="robots of the evaluation on each clip")
    parser.add_argument("--runs", type=Path, default=Path("runs/tracking"))
    parser.add_argument("--env", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the task")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the training")
    parser.add_argument("--out", type=Path, default=RESULTS / "tracking.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parse_options(parser)
    options.names = options.names or ["walk"]
    options.env, options.set = read_settings(options.env), read_settings(options.set)
    unknown = [name for name in options.names if name not in JOBS]
    if unknown:
        parser.error(f"no job {', '.join(unknown)}: choose among {', '.join(JOBS)}")
    return options


def train_all(options: argparse.Namespace) -> None:
    """Train all seeds of all jobs, `--jobs` at a time, each in a process of its own if there are several."""
    began = time.monotonic()
    own = [word for word in sys.argv[1:] if word not in options.names]

    def run(name: str, seed: int) -> None:
        left = 60 * options.minutes - (time.monotonic() - began)
        if (options.seconds or JOBS[name].seconds) > left:
            print(f"{name}, seed {seed}: left out, no time", flush=True)
        elif options.jobs == 1:
            train(options, name, seed)
        else:
            subprocess.run([sys.executable, __file__, *own, "--worker", name, "--seeds", str(seed)], check=True)

    jobs = list(itertools.product(options.names, options.seeds))
    if options.jobs == 1:
        for job in jobs:
            run(*job)
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        # The first failure is raised after all have ended.
        list(pool.map(run, *zip(*jobs)))


def evaluate_all(options: argparse.Namespace) -> None:
    """Evaluate the runs that there are, and write their results as they come."""
    results: dict[str, Any] = {"benchmark": "tracking", **describe_machine(), "jobs": {}}
    header = f"{'body error':>10} {'joint error':>12} {'worst':>8} {'acc.':>6}"
    print(f"{'job, seed':<18} {'clip':<9} {'physics':<9} {'end':>6} {header}")
    for name, seed in itertools.product(options.names, options.seeds):
        if (options.runs / f"{name}_{seed}").is_dir():
            results["jobs"].setdefault(name, {})[str(seed)] = evaluate(options, name, seed)
            write_results(options.out, results)
    print(f"results: {options.out}")


def main() -> None:
    options = read_options()
    # The curves are in progress.csv.
    replace_missing("tensorboardX")
    use_tensor_cores(options.device)
    if options.stage == "prepare":
        prepare(options)
    elif options.worker:
        train(options, options.worker, options.seeds[0])
    elif options.stage == "train":
        train_all(options)
    else:
        evaluate_all(options)


if __name__ == "__main__":
    main()
