"""Go on with a training that stopped: st-rl resume RUN."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from st_rl.cli.support.command_line import CommandError, parse_options
from st_rl.cli.support.run_folder import find_run, make_writable


@dataclass
class ResumeOptions:
    """Options of `st-rl resume`."""

    run: str
    """Folder of the run, the beginning of its name, a task (its newest run), or: latest."""
    iterations: int | None = None
    """Iterations to add; those that the run has left when None."""
    minutes: float | None = None
    """Stop after so many minutes."""
    checkpoint: str = "last"
    """Where to go on from: last, best, an iteration number, or a file."""
    device: str | None = None
    """Where to train; where the run was when None."""
    threads: int | None = None
    """Threads of torch; as in the run when None."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ResumeOptions, arguments, "resume", __doc__ or "")
    run = find_run(options.run)
    checkpoint = run.checkpoint(options.checkpoint)
    make_writable(run.path, "copy the run to a folder of yours")
    from st_rl.cli.support.loaded_run import LoadedRun
    from st_rl.cli.support.torch_setup import check_device, seed_everything, set_threads, use_tensor_cores
    from st_rl.cli.support.training import learn, make_evaluator, write_settings

    saved = LoadedRun(run)
    settings = saved.settings
    device = options.device or str(settings["device"])
    check_device(device)
    use_tensor_cores(device)
    threads = options.threads or settings.get("torch_threads")
    if options.threads is not None:
        saved.training.runner.update_threads = options.threads
    set_threads(threads, device, saved.training.to_dict()["policy"], saved.env_config)
    seed_everything(int(settings["seed"]))
    env = saved.source.make(saved.env_config, int(settings["num_envs"]), device, int(settings["seed"]))
    runner = saved.make_runner(env, device, run.path)
    runner.evaluator = make_evaluator(saved.source, saved.env_config, device)
    runner.load(checkpoint)
    done = runner.current_learning_iteration
    left = options.iterations if options.iterations is not None else int(settings["iterations"]) - done
    if left < 1:
        raise CommandError(f"{run.path} has done all of its {done} iterations; add more with --iterations N")
    sessions = [
        *settings.get("resumed", []),
        {
            "from_iteration": done,
            "checkpoint": checkpoint.name,
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command_line": f"st-rl resume {shlex.join(arguments)}",
        },
    ]
    write_settings(run, {**settings, "iterations": max(int(settings["iterations"]), done + left), "resumed": sessions})
    print(f"Going on with {settings['task']} after iteration {done} ({checkpoint.name}); the run is in {run.path}")
    return learn(runner, left, options.minutes, run, spread_episodes=False)
