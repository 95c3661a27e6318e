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
    """Return the threads of torch for updates on a CPU: the configured number, or the fastest in a measurement.

    A measured number is measured again during the training. Several ranks use one thread each: the number must be the
    same on all of them, because sums over other parts round differently.
    """
    import torch
    from torch import nn

    from st_rl.engine import UpdateThreads, fastest_thread_count
    from st_rl.modules import MlpModel
    from st_rl.system_info import num_cores
    from st_rl.utils.distributed import world_size
    from st_rl.utils.log import logger

    configured = config.get("update_threads") or threads
    if configured is not None or not device.startswith("cpu"):
        return UpdateThreads(configured)
    if world_size() > 1:
        return UpdateThreads(1)
    policy, rows = config["policy"], config["num_steps_per_env"] * env.num_envs
    rows //= config["algorithm"].get("num_mini_batches") or 1
    hidden = [list(policy.get(f"{head}_hidden_dims") or ()) for head in ("actor", "critic")]
    if rows * max([0, *hidden[0], *hidden[1]]) < SMALL_MINI_BATCH or num_cores() == 1:
        return UpdateThreads(1)
    # Two networks of the size of the policy. The fork leaves the random numbers of the training unchanged.
    with torch.random.fork_rng():
        heads = nn.ModuleList([MlpModel(env.num_obs, sizes, 1, nonlinearity=nn.ELU) for sizes in hidden])
        observations = torch.randn(rows, env.num_obs)

    def mini_batch_step() -> None:
        torch.cat([head(observations) for head in heads]).square().mean().backward()

    fastest = fastest_thread_count(mini_batch_step, (1, num_cores()))
    logger.info(f"updates use {fastest} of {num_cores()} threads (fastest in a short measurement)")
    return measured_update_threads(fastest)


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
