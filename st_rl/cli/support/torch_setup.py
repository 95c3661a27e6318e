"""Seed, device and threads of torch."""

from collections.abc import Mapping
from typing import Any

# Layers up to this width run faster on one thread than on several of few cores.
SMALL_LAYER = 256
# Mini-batches with fewer numbers in their widest layer are not worth a second thread.
SMALL_MINI_BATCH = 2**16


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch."""
    import random

    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_threads(threads: int | None, device: str, policy: Mapping[str, Any], env_config: Any) -> int:
    """Give torch the threads that suit the networks, unless the user said how many, and say so in one line."""
    import torch

    from st_rl.cli.support.system_info import num_cores
    from st_rl.utils.log import logger

    widths = [*policy.get("actor_hidden_dims", ()), *policy.get("critic_hidden_dims", ())]
    small = max(widths, default=0) <= SMALL_LAYER
    if threads is None:
        threads = 1 if small or not device.startswith("cpu") else num_cores()
    torch.set_num_threads(threads)
    why = " (small networks run fastest so)" if threads == 1 and small else ""
    physics = getattr(env_config, "physics", None)
    rest = f", physics {physics.num_threads or num_cores()}" if physics is not None and device == "cpu" else ""
    logger.info(f"torch uses {threads} thread{'s' if threads > 1 else ''}{why}{rest}")
    return threads


def choose_update_threads(threads: int | None, config: Mapping[str, Any], env: Any, device: str) -> int | None:
    """Threads of torch during updates on a CPU: as asked for, or those on which a mini-batch goes through fastest."""
    import torch
    from torch import nn

    from st_rl.cli.support.system_info import num_cores
    from st_rl.engine import fastest_thread_count
    from st_rl.modules import MlpModel
    from st_rl.utils.log import logger

    asked = config.get("update_threads") or threads
    if asked is not None or not device.startswith("cpu"):
        return asked
    policy, rows = config["policy"], config["num_steps_per_env"] * env.num_envs
    rows //= config["algorithm"].get("num_mini_batches") or 1
    hidden = [list(policy.get(f"{head}_hidden_dims") or ()) for head in ("actor", "critic")]
    if rows * max([0, *hidden[0], *hidden[1]]) < SMALL_MINI_BATCH or num_cores() == 1:
        return 1
    # Two heads like those of the policy; the random numbers of the training stay where they are.
    with torch.random.fork_rng():
        heads = nn.ModuleList([MlpModel(env.num_obs, sizes, 1, nonlinearity=nn.ELU) for sizes in hidden])
        observations = torch.randn(rows, env.num_obs)

    def learn_once() -> None:
        torch.cat([head(observations) for head in heads]).square().mean().backward()

    chosen = fastest_thread_count(learn_once, (1, num_cores()))
    logger.info(f"updates use {chosen} of {num_cores()} threads, which a short measurement found fastest")
    return chosen


def check_device(device: str) -> None:
    """ValueError for a device that is not here."""
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise ValueError(f"unknown device '{device}': use cpu or cuda:0") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device '{device}': torch sees no GPU here; st-rl doctor says why")


def use_tensor_cores(device: str) -> None:
    """Let a GPU compute products of float32 matrices in TF32, eight times faster and good to three digits."""
    import torch

    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
