"""Resume a training: st-rl resume RUN."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from st_rl.cli.support.command_line import (
    CommandError,
    UsageError,
    check_minutes,
    escape_control,
    parse_options,
    program,
)
from st_rl.cli.support.run_folders.loaded_run import LoadedRun, open_run
from st_rl.cli.support.run_folders.run_folder import ENDED, RunOptions, make_writable
from st_rl.cli.support.training.ranks import (
    RUN_ID,
    divide_envs,
    find_restarted_run,
    iterations_within,
    join_ranks,
    redirect_output,
    torchrun_id,
)

if TYPE_CHECKING:
    from st_rl.runners import OnPolicyRunner


@dataclass
class ResumeOptions(RunOptions):
    """Options of `st-rl resume`."""

    checkpoint: str = "last"
    """Checkpoint to resume from: last, best, an iteration number, or a file."""
    iterations: int | None = None
    """Number of iterations to add; without --iterations, --steps and --minutes, what is left of those of the run."""
    steps: int | None = None
    """Environment steps to add, those of all ranks together."""
    minutes: float | None = None
    """Minutes to add, whatever the iterations; with --iterations too, until the first that comes."""
    device: str | None = None
    """Device; None uses the device of the run."""
    threads: int | None = None
    """Threads of torch; None uses the threads of the run."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ResumeOptions, arguments, "resume", __doc__)
    check_minutes(options.minutes)
    loaded, checkpoint = open_run(options)
    run, settings = loaded.run, loaded.settings
    make_writable(run.path)
    from st_rl.cli.support import torch_setup
    from st_rl.cli.support.training.session import learn, make_evaluator
    from st_rl.env.policy_metadata import describe_policy_io
    from st_rl.utils.distributed import is_main, rank_seed, world_size

    device = options.device or loaded.setting("device", str)
    torch_setup.check_device(device)
    torch_setup.use_tensor_cores(device)
    device = join_ranks(device, loaded.training.to_dict())
    redirect_output(run)
    if options.threads is not None:
        loaded.training.runner.update_threads = options.threads
    threads = options.threads or settings.get("torch_threads")
    torch_setup.set_threads(threads, device, loaded.training.to_dict()["policy"], loaded.env_config)
    seed = rank_seed(loaded.setting("seed", int))
    torch_setup.seed_everything(seed)
    num_ranks = loaded.optional_setting("num_ranks", int) or 1
    num_envs = divide_envs(loaded.setting("num_envs", int), num_ranks)
    runner = loaded.make_runner(loaded.make_env(num_envs, device, seed), device, run.path)
    if settings.get("measures_update_threads") and options.threads is None and world_size() == 1:
        runner.update_threads = torch_setup.measured_update_threads(runner.update_threads.number)
    if is_main():
        runner.evaluator = make_evaluator(loaded.source, loaded.env_config, device)
    runner.load(checkpoint)
    done = runner.current_learning_iteration
    left = _what_is_left(loaded, options, runner)
    settings |= {"num_ranks": world_size(), "num_envs": num_envs, RUN_ID: torchrun_id()}
    settings["policy_metadata"] = describe_policy_io(runner.env)
    _record_session(loaded, options, done, left, checkpoint, f"{program()} resume {shlex.join(arguments)}")
    if settings.get("iterations") is not None and loaded.training.algorithm.anneal_iterations is None:
        runner.alg.anneal_iterations = int(settings["iterations"])
    runner.run_settings = settings
    print(f"Resuming {escape_control(settings['task'])} after iteration {done} ({checkpoint.name}). Run: {run.path}")
    # On another number of ranks all episodes are new, and must not end at the same time.
    return learn(runner, left.iterations, left.minutes, run, random_episode_start=num_ranks != world_size())


class NothingLeftError(CommandError):
    """The run has reached its limits."""


def continue_after_restart(log_dir: Path | None, task: str) -> int | None:
    """Continue the training that torchrun has started again after a failure; returns the exit code.

    None if this is the first start, or no checkpoint has been saved yet.
    """
    run = find_restarted_run(log_dir)
    if run is None:
        return None
    try:
        return main([str(run.path), "--task", task])
    except NothingLeftError:
        # The rank died after the last checkpoint.
        print(f"The training is complete. Run: {run.path}")
        return 0


class Limits(NamedTuple):
    """Where a training ends, at the first of both; None for no limit."""

    iterations: int | None
    minutes: float | None


def _record_session(
    loaded: LoadedRun, options: ResumeOptions, done: int, left: Limits, checkpoint: Path, command_line: str
) -> None:
    """Add this session to the settings of the run, and the iterations after which the training now ends."""
    settings = loaded.settings
    session = {
        "from_iteration": done,
        "checkpoint": checkpoint.name,
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command_line": command_line,
    }
    planned = loaded.optional_setting("iterations", int)
    if planned is not None and left.iterations is not None:
        is_by_steps = settings.get("steps") is not None and options.iterations is None
        settings["iterations"] = done + left.iterations if is_by_steps else max(planned, done + left.iterations)
    settings.pop(ENDED, None)
    settings["resumed"] = [*settings.get("resumed", []), session]


def _what_is_left(loaded: LoadedRun, options: ResumeOptions, runner: OnPolicyRunner) -> Limits:
    """Iterations and minutes to train: those of the options, else those of the run minus what is done."""
    from st_rl.utils.distributed import value_of_main

    done, config = runner.current_learning_iteration, loaded.training.to_dict()
    # The ranks have measured different times, and must agree whether anything is left.
    minutes_done = value_of_main(runner.tot_time) / 60.0
    if options.iterations is not None or options.steps is not None or options.minutes is not None:
        if options.iterations is not None and options.iterations < 1:
            raise UsageError(f"--iterations must be at least 1, got {options.iterations}")
        by_steps = None if options.steps is None else iterations_within(options.steps, config, runner.env)
        limits = [limit for limit in (options.iterations, by_steps) if limit is not None]
        return Limits(min(limits, default=None), options.minutes)
    run, iterations = loaded.run, loaded.optional_setting("iterations", int)
    minutes, steps = loaded.optional_setting("minutes", float), loaded.optional_setting("steps", int)
    if steps is not None:
        # The number of environments may have changed.
        steps_left = steps - runner.tot_timesteps
        iterations = done + (iterations_within(steps_left, config, runner.env) if steps_left > 0 else 0)
    if iterations is not None and iterations <= done:
        raise NothingLeftError(f"{run.path} has finished all {done} iterations; add more with --iterations N")
    if minutes is not None and minutes <= minutes_done:
        raise NothingLeftError(
            f"{run.path} was trained for its {minutes:g} minutes; add more with --minutes M or --iterations N"
        )
    return Limits(
        None if iterations is None else iterations - done, None if minutes is None else minutes - minutes_done
    )
