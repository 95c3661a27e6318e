"""Seed, device and threads of torch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import UsageError

if TYPE_CHECKING:
    from st_rl.engine import UpdateThreads
    from st_rl.env import VecEnv

# Layers up to this width run faster on one thread than on several threads of a small CPU.
SMALL_LAYER = 256
# Mini-batches with fewer activations in their widest layer do not profit from a second thread.
SMALL_MINI_BATCH = 2**16


def seed_everything(seed: int) -> None:
    """Seed the random number generators of Python, numpy and torch."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_threads(threads: int | None, device: str, policy: Mapping[str, Any], env_config: object) -> int:
    """Set the threads of torch, by default from the size of the networks, and log them; returns the number."""
    import torch

    from st_rl.sim.envs.cfg import TaskCfg
    from st_rl.system_info import num_cores
    from st_rl.utils.log import logger

    widths = [*policy.get("actor_hidden_dims", ()), *policy.get("critic_hidden_dims", ())]
    is_small = max(widths, default=0) <= SMALL_LAYER
    if threads is None:
        threads = 1 if is_small or not device.startswith("cpu") else num_cores()
    if threads < 1:
        raise UsageError(f"--threads must be at least 1, got {threads}; leave it out to let st-rl choose")
    torch.set_num_threads(threads)
    reason = " (fastest for small networks)" if threads == 1 and is_small else ""
    physics = ""
    if isinstance(env_config, TaskCfg) and device == "cpu":
        physics = f", physics {env_config.physics.num_threads or num_cores()}"
    logger.info(f"torch uses {threads} thread{'s' if threads > 1 else ''}{reason}{physics}")
    return threads


def choose_update_threads(threads: int | None, config: Mapping[str, Any], env: VecEnv, device: str) -> UpdateThreads:
    """Return the threads of torch for updates on a CPU: the configured number, or the fastest during the training.

    Several ranks use one thread each: the number must be the same on all of them, because sums over other parts round
    differently.
    """
    from st_rl.engine import UpdateThreads
    from st_rl.utils.distributed import world_size

    configured = config.get("update_threads") or threads
    if configured is not None or not device.startswith("cpu"):
        return UpdateThreads(configured)
    if world_size() > 1:
        return UpdateThreads(1)
    policy, rows = config["policy"], config["num_steps_per_env"] * env.num_envs
    rows //= config["algorithm"].get("num_mini_batches") or 1
    widths = [width for head in ("actor", "critic") for width in policy.get(f"{head}_hidden_dims") or ()]
    is_small = rows * max(widths, default=0) < SMALL_MINI_BATCH
    return UpdateThreads(1) if is_small else measured_update_threads(1)


def measured_update_threads(number: int | None) -> UpdateThreads:
    """Return a number of threads for updates that one thread or all cores replace where they are faster."""
    from st_rl.engine import UpdateThreads
    from st_rl.system_info import num_cores

    return UpdateThreads(number, (1, num_cores()) if num_cores() > 1 else ())


def check_device(device: str) -> None:
    """Raise ValueError for a device that is not available."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"unknown device '{device}': use auto, cpu or cuda:0") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device '{device}': torch finds no GPU; st-rl doctor says why")


def use_tensor_cores(device: str) -> None:
    """Let a GPU compute float32 matrix products in TF32: up to eight times faster, three significant digits."""
    import torch

    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
