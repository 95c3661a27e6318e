"""Trainings over several processes: `--gpus`, output of the ranks, and restarts by torchrun."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from st_rl.cli.support.command_line import UsageError
from st_rl.cli.support.run_folders.run_folder import RUN_FILE, RunFolder, list_runs, make_run_folder

if TYPE_CHECKING:
    from st_rl.env import VecEnv

RUN_ID = "torchrun_id"
"""Key of `run.json`: the id of the torchrun command that started the training."""


def torchrun_id() -> str | None:
    """Return the id of the torchrun command that started this process, which its restarts keep; None without one."""
    return os.environ.get("TORCHELASTIC_RUN_ID")


def check_gpus(gpus: str, device: str) -> int:
    """Return the number of GPUs that `--gpus` asks for; UsageError if there are not that many."""
    import torch

    available = torch.cuda.device_count()
    if not device.startswith(("cuda", "auto")):
        raise UsageError(f"--gpus {gpus} needs --device cuda, not {device}; on a CPU start ranks with torchrun")
    if gpus != "all" and not (gpus.isdecimal() and int(gpus) > 0):
        raise UsageError(f"--gpus is {gpus}: give a number of GPUs, or all")
    count = available if gpus == "all" else int(gpus)
    if not 0 < count <= available:
        raise UsageError(f"--gpus {gpus}: torch finds {available} GPUs on this machine; st-rl doctor says why")
    return count


def launch_ranks(gpus: str | None, device: str, command: str, arguments: Sequence[str]) -> str:
    """Replace this process by torchrun if `--gpus` asks for several GPUs and torchrun has not started it; device."""
    if gpus is None:
        return device
    device = "cuda" if device in ("cpu", "auto") else device
    if torchrun_id() is None:
        start_torchrun(check_gpus(gpus, device), [command, *arguments])
    return device


def start_torchrun(count: int, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by torchrun, which runs `st-rl ARGUMENTS` once for each GPU of this machine."""
    options = ["--standalone", "--nproc-per-node", str(count)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "st_rl", *arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def find_restarted_run(log_dir: Path | None) -> RunFolder | None:
    """Return the run to continue if torchrun has started this training again after a failure, else None."""
    if torchrun_id() is None or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) == 0:
        return None
    candidates = list_runs() if log_dir is None else [RunFolder(log_dir)]
    for run in reversed(candidates):
        settings = run.read_optional_json(RUN_FILE) or {}
        if settings.get(RUN_ID) == torchrun_id() and run.has_checkpoints:
            return run
    return None


def join_ranks(device: str, config: Mapping[str, Any]) -> str:
    """Join the process group of torchrun, if there is one; return the device of this rank."""
    from st_rl.utils.distributed import RANK_TIMEOUT_S, join_process_group

    return str(join_process_group(device, float(config.get("rank_timeout_s") or RANK_TIMEOUT_S)))


def divide_envs(num_envs: int, num_ranks: int) -> int:
    """Return the environments of each rank for a run that had `num_envs` on each of `num_ranks`.

    The total stays, as far as all ranks can have as many; a change is logged.
    """
    from st_rl.utils.distributed import world_size
    from st_rl.utils.log import logger

    total, count = num_envs * num_ranks, world_size()
    if count == num_ranks:
        return num_envs
    own = max(1, round(total / count))
    change = "" if own * count == total else f", {own * count} in all, because {total} cannot be divided by {count}"
    logger.warning(
        f"{total} environments are divided again: {num_ranks} x {num_envs} before, {count} x {own} now{change}"
    )
    return own


def iterations_within(steps: int, config: Mapping[str, Any], env: VecEnv) -> int:
    """Return the number of iterations that have at least this many environment steps of all ranks together."""
    from st_rl.utils.distributed import world_size

    if steps < 1:
        raise UsageError(f"--steps must be at least 1, got {steps}")
    return math.ceil(steps / (config["num_steps_per_env"] * env.num_envs * world_size()))


def share_run_folder(log_dir: Path | None, task: str) -> RunFolder:
    """Create the folder of a new run on rank 0 and return it on every rank; redirects the output of the others."""
    from st_rl.utils.distributed import is_main, value_of_main

    run = RunFolder(Path(value_of_main(str(make_run_folder(log_dir, task).path) if is_main() else "")))
    redirect_output(run)
    return run


def redirect_output(run: RunFolder) -> None:
    """Write the output of every rank but the first to `rank_N.log` in the run folder."""
    from st_rl.utils.distributed import rank

    if rank() == 0:
        return
    # On another machine the folder may not exist.
    run.path.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with open(run.file(f"rank_{rank()}.log"), "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
