"""Trains a Unitree G1 to track clips, and measures by clip how well it does.

    python benchmarks/tracking.py prepare --mjcf G1.XML --motions CLIPS --data FOLDER   # one MJCF file without meshes
    python benchmarks/tracking.py train walk wave --data FOLDER --device cuda --seeds 1 2 3 --minutes 9
    python benchmarks/tracking.py evaluate walk wave --data FOLDER --robots 512         # CPU, fine and training physics

G1.XML is asset_zoo/robots/unitree_g1/xmls/g1.xml of the Python package mjlab 1.6, CLIPS a folder with g1_walk.csv,
g1_wave.csv, g1_dance.csv, g1_jumpjack.csv and g1_high5.csv. Jobs:

    walk, wave, dance, jumpjack     one clip
    five                            all five clips, one policy
    five-deployable                 the same without position and velocity of the base
    dance-uniform                   the dance without adaptive sampling

A job is trained for its seconds, start and compilation included (--seconds overrides them), one seed after the other,
and jobs that would end after --minutes are left out. Arguments after `--` are passed to `st-rl train`. The evaluation
starts at the first frame of every clip, without noise, pushes and randomization, at small deviations from the clip. It
writes, by clip, the fraction of robots that reach its end, the mean position error of 14 bodies relative to the torso
(the bodies and the definition of mjlab's tracking task), the mean joint error, the moment of the largest error, and the
joint acceleration of the robot as a multiple of that of the clip; results are in benchmarks/results/tracking.json.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import yaml
from machine import describe_machine, write_results
from run_files import TRAINED, parse_options, read_trained, run_training, strip_checkpoints

from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.sim.envs import MotionTracking
from st_rl.sim.evaluation.evaluator import make_eval_task
from st_rl.sim.robots import Robot
from st_rl.sim.robots.save_mjcf import save_without_visuals

ROOT = Path(__file__).resolve().parents[1]
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
SETTINGS = (
    *("--env.anchor-body", "torso_link", "--env.tracked-bodies", *BODIES),
    *("--env.rewards.unwanted-contacts", "0", "--env.physics.max-contacts", "12"),
)
ALL_CLIPS = ("walk", "wave", "dance", "jumpjack", "high5")


class Job(NamedTuple):
    """A training."""

    clips: tuple[str, ...]
    seconds: float
    options: tuple[str, ...] = ()


JOBS = {
    "walk": Job(("walk",), 120.0),
    "wave": Job(("wave",), 120.0),
    "dance": Job(("dance",), 300.0),
    "jumpjack": Job(("jumpjack",), 300.0),
    "five": Job(ALL_CLIPS, 600.0),
    "five-deployable": Job(ALL_CLIPS, 600.0, ("--env.deployable",)),
    "dance-uniform": Job(("dance",), 300.0, ("--env.sampling.no-adaptive",)),
}


def prepare(options: argparse.Namespace) -> None:
    """Write robot, description and clips to the folder `data`, from which the other stages read."""
    folder = options.data
    folder.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load(DESCRIPTION.read_text())
    with_meshes = folder / "with_meshes.yaml"
    with_meshes.write_text(yaml.safe_dump({**content, "mjcf": str(options.mjcf.resolve())}))
    save_without_visuals(Robot.from_file(with_meshes), folder / "g1.xml")
    with_meshes.unlink()
    (folder / "g1.yaml").write_text(yaml.safe_dump({**content, "mjcf": "g1.xml"}))
    for clip in ALL_CLIPS:
        shutil.copyfile(options.motions / f"g1_{clip}.csv", folder / f"g1_{clip}.csv")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}, {size / 2**20:.1f} MiB")


def train(options: argparse.Namespace, name: str, seed: int, seconds: float) -> None:
    """Train a job from the command line; the time is written to the run folder."""
    job, run = JOBS[name], options.runs / f"{name}_{seed}"
    clips = [str(options.data.resolve() / f"g1_{clip}.csv") for clip in job.clips]
    arguments = ["train", TASK, "--seed", str(seed), "--device", options.device, "--num-envs", str(options.num_envs)]
    arguments += ["--env.robot", str(options.data.resolve() / "g1.yaml"), "--env.motions", *clips]
    arguments += ["--minutes", f"{seconds / 60:.4f}", "--runner.engine", options.engine]
    # Checkpoints are scored by an evaluation, which takes seconds.
    arguments += ["--runner.save-interval", "100000", *SETTINGS, *job.options, *options.more]
    trained = {**run_training(arguments, run, CURVES, ROOT), **describe_machine(), "arguments": arguments[2:]}
    write_results(run / TRAINED, trained)
    strip_checkpoints(run)
    shown = ("command_seconds", "training_seconds", "median_steps_per_second", "iterations")
    error = trained["curve"].get("body_pos_error", [float("nan")])[-1]
    print(
        f"{name}, seed {seed}: {json.dumps({key: trained[key] for key in shown})}, body error {error:.3f} m", flush=True
    )


@torch.inference_mode()
def track(task: MotionTracking, policy: Any, clip: int) -> dict[str, Any]:
    """Metrics of the first episode of every robot, from the first frame of a clip."""
    frames = task.reference.num_frames[clip]
    task.hold_clips(torch.full((task.num_envs,), clip))
    policy.reset(None)
    obs, running = task.get_observations()[0], torch.ones(task.num_envs, dtype=torch.bool)
    reached, steps = torch.zeros_like(running), torch.zeros(task.num_envs)
    body, joint, acceleration = torch.zeros(frames - 1), torch.zeros(task.num_envs), torch.zeros(task.num_envs)
    total, counted, before = torch.zeros(task.num_envs), torch.zeros(frames - 1), task.joint_vel.clone()
    for frame in range(frames - 1):
        obs, _, dones, _ = task.step(policy(obs))
        body[frame] = task.body_pos_error[running].sum()
        counted[frame] = running.sum()
        total += torch.where(running, task.body_pos_error, 0.0)
        joint += torch.where(running, task.joint_pos_error, 0.0)
        # A robot that was reset has jumped.
        smooth = running & ~dones
        change = (task.joint_vel - before).square().mean(dim=1)
        acceleration += torch.where(smooth, change, 0.0)
        steps += running
        before = task.joint_vel.clone()
        reached |= running & task.clip_ended
        running &= ~dones
    velocity = torch.from_numpy(task.reference.clips[clip].joint_vel)
    of_clip = float((velocity[1:] - velocity[:-1]).square().mean().sqrt())
    curve = body / counted.clamp(min=1)
    return {
        "reached_end": float(reached.float().mean()),
        "body_pos_error": float((total / steps).mean()),
        "joint_pos_error": float((joint / steps).mean()),
        "worst_s": float(curve.argmax()) * task.step_dt,
        "acceleration_ratio": float((acceleration.sum() / steps.sum()).sqrt()) / of_clip,
        "body_pos_error_by_frame": curve.tolist(),
    }


def evaluate(options: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Metrics of a job by clip, in fine physics and in those of the training."""
    run = RunFolder(options.runs / f"{name}_{seed}")
    saved, found = LoadedRun(run), {}
    config = saved.env_config
    config.robot = str(options.data.resolve() / "g1.yaml")
    config.motions = tuple(str(options.data.resolve() / f"g1_{clip}.csv") for clip in JOBS[name].clips)
    for physics in ("fine", "training"):
        task = make_eval_task(TASK, config, options.robots, 60.0, 1000 + seed, fine=physics == "fine")
        policy = saved.load_policy(task, run.checkpoint(), "cpu")
        for number, clip in enumerate(JOBS[name].clips):
            metrics = track(cast("MotionTracking", task), policy, number)
            found.setdefault(clip, {})[physics] = metrics
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
    parser.add_argument("jobs", nargs="*", help=f"jobs, default walk: {', '.join(JOBS)}")
    parser.add_argument("--mjcf", type=Path, help="g1.xml of mjlab, for prepare")
    parser.add_argument("--motions", type=Path, help="folder of the clips, for prepare")
    parser.add_argument("--data", type=Path, default=Path("runs/tracking_data"), help="what prepare writes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, help="seconds of each training, instead of those of the job")
    parser.add_argument("--minutes", type=float, default=600.0, help="time limit of the whole stage train")
    parser.add_argument("--num-envs", type=int, default=4096, help="robots that learn")
    parser.add_argument("--engine", default="graph", choices=("auto", "eager", "compile", "graph"))
    parser.add_argument("--robots", type=int, default=512, help="robots of the evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs/tracking"))
    parser.add_argument("--out", type=Path, default=RESULTS / "tracking.json")
    options = parse_options(parser)
    options.jobs = options.jobs or ["walk"]
    unknown = [name for name in options.jobs if name not in JOBS]
    if unknown:
        parser.error(f"no job {', '.join(unknown)}: choose among {', '.join(JOBS)}")
    return options


def main() -> None:
    options = read_options()
    if options.stage == "prepare":
        prepare(options)
        return
    began = time.monotonic()
    results: dict[str, Any] = {"benchmark": "tracking", **describe_machine(), "jobs": {}}
    if options.stage == "evaluate":
        header = f"{'body error':>10} {'joint error':>12} {'worst':>8} {'acc.':>6}"
        print(f"{'job, seed':<18} {'clip':<9} {'physics':<9} {'end':>6} {header}")
    for name in options.jobs:
        for seed in options.seeds:
            if options.stage == "train":
                seconds = options.seconds or JOBS[name].seconds
                if time.monotonic() - began + seconds > 60 * options.minutes:
                    print(f"{name}, seed {seed}: left out, no time", flush=True)
                    continue
                train(options, name, seed, seconds)
            elif (options.runs / f"{name}_{seed}").is_dir():
                results["jobs"].setdefault(name, {})[str(seed)] = evaluate(options, name, seed)
                write_results(options.out, results)
    if options.stage == "evaluate":
        print(f"results: {options.out}")


if __name__ == "__main__":
    main()
