"""What the experiments on `quadruped-parkour` share: training a policy, and letting it run tracks without noise."""

import csv
import json
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from st_rl.cli.training import seed_everything
from st_rl.runners import OnPolicyRunner
from st_rl.sim.tasks import TASKS, make_task, with_overrides

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


def train(
    cfg: Any, config: dict[str, Any], folder: Path, seed: int, device: str, robots: int, iterations: int
) -> tuple[OnPolicyRunner, dict[str, Any]]:
    """A training from the start in a run folder; the runner, and what it took and how it went."""
    seed_everything(seed)
    config = {**config, "save_interval": 10**6, "keep_best": False}
    with redirect_stdout(sys.stderr):
        env = make_task(TASK, robots, device, seed, cfg=cfg)
        runner = OnPolicyRunner(env, config, log_dir=folder, device=device)
        began = time.perf_counter()
        runner.learn(iterations, init_at_random_ep_len=True)
        seconds = time.perf_counter() - began
        runner.close()
    return runner, {
        "iterations": iterations,
        "steps": runner.tot_timesteps,
        "seconds": seconds,
        "engine": runner.alg.engine.describe(),
        "curves": read_curves(folder, every=max(1, iterations // 30)),
    }


def read_curves(folder: Path, every: int) -> dict[str, list[float]]:
    """Some columns of a run's curves, every so many iterations."""
    with open(folder / "progress.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::every]
    return {tag: [float(row[tag]) for row in rows if row.get(tag)] for tag in CURVES}


@torch.inference_mode()
def run_tracks(
    cfg: Any, policy: Callable[[Tensor], Tensor], robots_each: int, speed: float, fine: bool = False
) -> dict[str, dict[str, float]]:
    """Let robots run every track of a configuration once, on the CPU; success and blocks cleared by name of the track.

    A robot succeeds if it has all blocks of its track behind it before its episode ends.
    """
    cfg = cfg.for_evaluation(fine)
    names = list(cfg.tracks.sequences)
    env = make_task(TASK, robots_each * len(names), "cpu", HELD_OUT_SEED, cfg=cfg)
    env.hold_commands(torch.tensor([[speed, 0.0, 0.0]]).repeat(env.num_envs, 1))
    going = torch.ones(env.num_envs, dtype=torch.bool)
    success, share = torch.zeros(env.num_envs, dtype=torch.bool), torch.zeros(env.num_envs)
    obs = env.get_observations()[0]
    for _ in range(env.max_episode_length):
        # Read before the step: a robot that ends is already at the start of its next episode after it.
        share = torch.where(going, torch.maximum(share, env.num_cleared / env.num_blocks.clamp(min=1.0)), share)
        obs, _, dones, infos = env.step(policy(obs))
        success |= going & infos["success"]
        going &= ~dones
        policy.reset(dones)  # pyright: ignore[reportFunctionMemberAccess]
    share[success] = 1.0
    tracks = torch.arange(env.num_envs) % len(names)
    return {
        name: {
            "success": float(success[tracks == index].float().mean()),
            "blocks": float(share[tracks == index].mean()),
            "robots": robots_each,
        }
        for index, name in enumerate(names)
    }
