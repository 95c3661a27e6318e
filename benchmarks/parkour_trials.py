"""Training and noise-free evaluation of policies on `quadruped-parkour`, for `parkour.py` and `skill_switching.py`."""

import argparse
import csv
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, write_results
from plots import can_plot
from run_files import strip_checkpoints
from seeds import with_spread

from st_rl.cli.support.torch_setup import seed_everything, use_tensor_cores
from st_rl.modules import InferencePolicy
from st_rl.runners import OnPolicyRunner
from st_rl.sim.tasks import TASKS, make_task, with_overrides
from st_rl.utils.files import newest_checkpoint
from st_rl.utils.tensors.segments import get_obs_slice

RESULTS = Path(__file__).parent / "results"
TRAINING, PROGRESS = "training.json", "progress.csv"
TASK = "quadruped-parkour"
HELD_OUT_SEED = 20_001
CURVES = ("Train/mean_reward", "Train/mean_episode_length", "Parkour/level", "Parkour/blocks_cleared")


def read_overrides(texts: list[str]) -> dict[str, Any]:
    """Settings given as `name=value`, the value in JSON."""
    pairs = (text.partition("=") for text in texts)
    return {name: json.loads(value) for name, _, value in pairs}


def task_config(**overrides: Any) -> Any:
    """The configuration of the task with fields replaced by dotted name."""
    return with_overrides(TASKS[TASK].cfg(), overrides)


def train(cfg: Any, config: dict[str, Any], folder: Path, options: argparse.Namespace, seed: int) -> None:
    """Train in a run folder, from scratch or continued from an earlier run; writes a summary to `training.json`."""
    seed_everything(seed)
    config = {**config, "save_interval": 10**6, "keep_best": False}
    before = continue_run(options.earlier / folder.name, folder, cfg) if options.earlier else None
    with redirect_stdout(sys.stderr):
        env = make_task(TASK, options.robots, options.device, seed, cfg=cfg)
        runner = OnPolicyRunner(env, config, log_dir=folder, device=options.device)
        if before is not None:
            runner.load(before["checkpoint"], load_optimizer=False)
        seconds = learn_with_time_limit(runner, config["max_iterations"], options.seconds)
        runner.close()
    strip_checkpoints(folder)
    training = {
        "iterations": runner.current_learning_iteration,
        "robots": options.robots,
        "steps": runner.tot_timesteps + (before["steps"] if before else 0),
        "seconds": seconds + (before["seconds"] if before else 0.0),
        "earlier": {key: before[key] for key in ("iterations", "robots", "seconds")} if before else None,
        "engine": runner.alg.engine.describe(),
        "parameters": sum(parameter.numel() for parameter in runner.alg.actor_critic.parameters()),
        "curves": read_curves(folder, every=max(1, runner.current_learning_iteration // 30)),
    }
    write_results(folder / TRAINING, training)
    ends = {tag: values[-1] for tag, values in training["curves"].items() if values}
    print(f"{folder.name}: {seconds:.0f} s, {ends}", flush=True)


def continue_run(earlier: Path, folder: Path, cfg: Any) -> dict[str, Any] | None:
    """Copy the curves of an earlier run and start the robots at the curriculum levels it reached.

    Returns the summary of the earlier run with its checkpoint, or None if it has no checkpoint.
    """
    checkpoint = newest_checkpoint(earlier)
    if checkpoint is None:
        print(f"{earlier} has no checkpoint: {folder.name} trains from scratch", flush=True)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(earlier / PROGRESS, folder)
    level = read_curves(folder, every=1)["Parkour/level"][-1]
    cfg.curriculum.start_levels = (0, min(round(level), cfg.tracks.num_levels - 1))
    return {**read_training(earlier), "checkpoint": checkpoint}


def learn_with_time_limit(runner: OnPolicyRunner, iterations: int, seconds: float | None) -> float:
    """Train for a number of iterations or until a time limit, s; returns the wall-clock time, s."""
    began = time.perf_counter()
    timer = threading.Timer(seconds, runner.request_stop) if seconds else None
    if timer is not None:
        timer.start()
    try:
        runner.learn(iterations, init_at_random_ep_len=True)
    finally:
        if timer is not None:
            timer.cancel()
    return time.perf_counter() - began


def read_training(folder: Path) -> dict[str, Any]:
    """The summary that `train` wrote for a run."""
    return json.loads((folder / TRAINING).read_text())


def load_policy(cfg: Any, folder: Path) -> InferencePolicy:
    """The policy of a run folder, on the CPU."""
    checkpoint = newest_checkpoint(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} has no checkpoint: run the stage 'train' first")
    config = json.loads((folder / "config.json").read_text())
    runner = OnPolicyRunner(
        make_task(TASK, 1, cfg=cfg), {key: config[key] for key in ("runner", "policy", "algorithm")}
    )
    runner.load(checkpoint, load_optimizer=False, map_location="cpu")
    return runner.get_inference_policy()


def make_parser(description: str | None, iterations: int, out: str) -> argparse.ArgumentParser:
    """The command-line options of both experiments."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--stage", choices=("both", "train", "evaluate"), default="both", help="evaluation needs no GPU"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--robots", type=int, help="256 on a CPU and 4,096 on a GPU by default")
    parser.add_argument("--iterations", type=int, default=iterations)
    parser.add_argument(
        "--continue", dest="earlier", type=Path, metavar="FOLDER", help="continue from the runs in this folder"
    )
    parser.add_argument("--seconds", type=float, help="time limit of each training, s")
    parser.add_argument("--eval-robots", type=int, default=64, help="evaluated robots on each track")
    parser.add_argument("--speed", type=float, default=0.75, help="command in the evaluation, m/s")
    parser.add_argument("--task", nargs="*", default=[], metavar="NAME=JSON", help="settings of the task")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the run folders")
    parser.add_argument("--out", type=Path, default=RESULTS / out, help="results file")
    return parser


def run_stages(
    options: argparse.Namespace,
    benchmark: str,
    train_seed: Callable[[argparse.Namespace, int], None],
    evaluate_seed: Callable[[argparse.Namespace, int], dict[str, Any]],
    plot: Callable[[dict[str, Any], Path], None],
) -> None:
    """Run the selected stages for all seeds; the evaluation writes results and a plot."""
    options.robots = options.robots or (4096 if options.device.startswith("cuda") else 256)
    use_tensor_cores(options.device)
    torch.set_num_threads(1)
    if options.stage in ("both", "train"):
        for seed in options.seeds:
            train_seed(options, seed)
    if options.stage in ("both", "evaluate"):
        left_out = ("runs", "earlier", "out", "stage")
        settings = {name: value for name, value in vars(options).items() if name not in left_out}
        results: dict[str, Any] = {"benchmark": benchmark, **describe_machine(), "settings": settings, "seeds": {}}
        for seed in options.seeds:
            results["seeds"][str(seed)] = evaluate_seed(options, seed)
            write_results(options.out, with_spread(results))
        if can_plot():
            plot(results, options.out.with_suffix(".png"))


def read_curves(folder: Path, every: int) -> dict[str, list[float]]:
    """The columns `CURVES` of progress.csv, every `every` iterations."""
    with open(folder / PROGRESS, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::every]
    return {tag: [float(row[tag]) for row in rows if row.get(tag)] for tag in CURVES}


@torch.inference_mode()
def run_tracks(cfg: Any, policy: InferencePolicy, robots_each: int, speed: float) -> dict[str, dict[str, float]]:
    """Run every track of a configuration once, on the CPU in fine physics; returns metrics by name of the track.

    A robot succeeds if it passes all blocks of its track before its episode ends or, on a track without blocks, if it
    does not fall and covers at least half of the commanded distance. `jolt` is the mean absolute change of the action
    in steps in which the observed block changes.
    """
    cfg = cfg.for_evaluation(fine=True)
    names = list(cfg.tracks.sequences)
    env: Any = make_task(TASK, robots_each * len(names), "cpu", HELD_OUT_SEED, cfg=cfg)
    policy.actor_critic.clear_hidden_states()
    env.hold_commands(torch.tensor([[speed, 0.0, 0.0]]).repeat(env.num_envs, 1))
    going = torch.ones(env.num_envs, dtype=torch.bool)
    success, fell = torch.zeros(2, env.num_envs, dtype=torch.bool)
    fraction, jolt, num_changes, distance = torch.zeros(4, env.num_envs)
    obs = env.get_observations()[0]
    last_action, last_block = torch.zeros(env.num_envs, env.num_actions), block_of(env, obs)
    for _ in range(env.max_episode_length):
        # Read before the step, which resets finished episodes.
        fraction = torch.where(
            going, torch.maximum(fraction, env.num_cleared / env.num_blocks.clamp(min=1.0)), fraction
        )
        action, block = policy(obs), block_of(env, obs)
        changes = (going & (block != last_block).any(dim=1)).float()
        jolt += changes * (action - last_action).abs().mean(dim=1)
        num_changes += changes
        last_action, last_block = action.clone(), block.clone()
        distance += going * env.track_velocity * env.step_dt
        obs, _, dones, infos = env.step(action)
        success |= going & infos["success"]
        fell |= going & dones & ~infos["time_outs"]
        going &= ~dones
        policy.reset(dones)
    has_walked = ~fell & (distance >= 0.5 * speed * env.max_episode_length * env.step_dt)
    success = torch.where(env.num_blocks > 0, success, has_walked)
    fraction[success] = 1.0
    figures = {"success": success.float(), "blocks": fraction, "falls": fell.float(), "distance": distance}
    results = {}
    for index, name in enumerate(names):
        own = torch.arange(env.num_envs) % len(names) == index
        results[name] = {figure: float(values[own].mean()) for figure, values in figures.items()}
        if num_changes[own].sum() > 0:
            results[name]["jolt"] = float(jolt[own].sum() / num_changes[own].sum())
    return results


def block_of(env: Any, obs: torch.Tensor) -> torch.Tensor:
    """`(N, 8)` the observed block ahead without its distance; zeros if the task does not observe it."""
    if "engaging_block" not in env.obs_segments:
        return torch.zeros(len(obs), 8)
    where = get_obs_slice(env.obs_segments, "engaging_block")[0]
    return obs[:, where][:, 1:]
