"""Workers of a sweep in processes of their own: on this machine, one per GPU for example, or as tasks of Ray."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING

from st_rl.cli.support.command_line import CommandError, UsageError, count_of, one_line
from st_rl.utils.log import logger

if TYPE_CHECKING:
    from st_rl.cli.commands.sweep.storage import StudyAddress


@dataclass(frozen=True)
class WorkerPlan:
    """The arguments of a worker process."""

    task: str
    arguments: tuple[str, ...]
    """Arguments of `st-rl sweep` after the task; without those below."""
    address: StudyAddress
    folder: str
    device: str
    num_local: int
    """Number of workers that share the cores of a machine."""


def run_worker(plan: WorkerPlan) -> int:
    """Work on a sweep in this process until all of its trials have ended; returns 0, or the exit code of a signal."""
    from st_rl.cli.commands.sweep import prepare_sweep, read_options
    from st_rl.cli.commands.sweep.trials import work_on_trials
    from st_rl.cli.support.graceful_shutdown import exit_on_signals
    from st_rl.cli.support.task_source import find_source

    # The cores are divided as among ranks of torchrun.
    os.environ["LOCAL_WORLD_SIZE"] = str(plan.num_local)
    source = find_source(plan.task)
    arguments = [*plan.arguments, "--join", "--log-dir", plan.folder, "--device", plan.device]
    with exit_on_signals(), plan.address.hide_credentials():
        return work_on_trials(prepare_sweep(source, read_options(source, arguments), arguments, plan.address))


def run_local_workers(plans: Sequence[WorkerPlan]) -> None:
    """Run workers on this machine until they have ended; the first Ctrl-C lets them save and end, a second kills them.

    Credentials reach them through a pipe, not through their command line.
    """
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_run_process, args=(plan,)) for plan in plans]
    for process in processes:
        process.start()
    try:
        _wait_for(processes)
    except BaseException:
        for process in processes:
            process.terminate()
        try:
            _wait_for(processes)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        raise


def _wait_for(processes: Sequence[SpawnProcess]) -> None:
    """Wait until all processes have ended, and report those that a signal has killed."""
    running = {process.sentinel: process for process in processes if process.exitcode is None}
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(sentinel)  # pyright: ignore[reportArgumentType, reportCallIssue]
            process.join()
            if process.exitcode is not None and process.exitcode < 0:
                logger.warning(
                    f"worker {process.pid} was killed by signal {-process.exitcode}; another one tries its trial again"
                )


def _run_process(plan: WorkerPlan) -> None:
    """Run a worker as the whole of a process, without the terminal's Ctrl-C, which the parent passes on."""
    os.setsid()
    try:
        code = run_worker(plan)
    except CommandError as error:
        print(f"st-rl: {one_line(error)}", file=sys.stderr, flush=True)
        code = error.exit_code
    sys.exit(code)


def run_ray_workers(plan: WorkerPlan, count: int | None, ray_address: str) -> None:
    """Run workers as tasks of a Ray cluster, each with a GPU if the device is one, else with a core.

    Without a count, as many as the cluster has GPUs or cores. Ray starts the task of a dead worker again.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
        from ray.exceptions import RayTaskError  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError('st-rl sweep --ray needs Ray: pip install "st_rl[ray]"') from error
    try:
        ray.init(address=ray_address, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CommandError(f"no Ray cluster at {ray_address}: {one_line(error)}; start one with ray start") from error
    try:
        kind = "GPU" if plan.device.startswith("cuda") else "CPU"
        available = int(ray.cluster_resources().get(kind, 0))
        if available < 1:
            raise UsageError(f"--ray {ray_address}: the cluster has no {kind}")
        task = ray.remote(run_worker).options(num_cpus=1, num_gpus=int(kind == "GPU"), max_retries=-1)
        tasks = [task.remote(plan) for _ in range(count or available)]
        logger.info(f"{count_of(len(tasks), 'worker')} on {count_of(len(ray.nodes()), 'node')} of Ray")
        try:
            ray.get(tasks)
        except BaseException:
            for reference in tasks:
                ray.cancel(reference)
            ray.wait(tasks, num_returns=len(tasks))
            raise
    except RayTaskError as error:
        raise CommandError(f"a worker failed: {plan.address.mask(one_line(error.cause))}") from None
    finally:
        ray.shutdown()
