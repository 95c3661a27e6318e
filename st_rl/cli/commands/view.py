"""Steer and push a policy in the browser: st-rl view RUN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import CommandError, UsageError, parse_options
from st_rl.cli.support.run_folders.loaded_run import LoadedRun, open_run
from st_rl.cli.support.run_folders.run_folder import BEST_FILE, RunFolder, RunOptions
from st_rl.cli.support.task_source import is_external
from st_rl.cli.support.viewer import DEFAULT_PORT, LOOPBACK, print_address

if TYPE_CHECKING:
    from st_rl.sim.evaluation.rollout import Policy

# Episodes end by a fall only.
_EPISODE_S = 36_000.0


@dataclass
class ViewOptions(RunOptions):
    """Options of `st-rl view`."""

    num_envs: int = 1
    """Number of robots, up to 16."""
    port: int = DEFAULT_PORT
    """Port of the page; 0 takes a free one."""
    host: str = LOOPBACK
    """Address to serve on; any but the loopback address asks for the token that is printed."""
    seed: int = 20_002
    """Random seed of the initial state."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ViewOptions, arguments, "view", __doc__)
    return view(*open_run(options), options)


def view(run: LoadedRun, checkpoint: Path, options: ViewOptions) -> int:
    """Show a policy in the browser until Ctrl-C."""
    from st_rl.sim.viewer.frames import MAX_ROBOTS
    from st_rl.sim.viewer.server import require_viser

    if not 1 <= options.num_envs <= MAX_ROBOTS:
        raise UsageError(f"--num-envs must be from 1 to {MAX_ROBOTS}, got {options.num_envs}")
    if is_external(run.source.name):
        raise CommandError(f"the viewer shows built-in tasks, not {run.source.name}: st-rl play writes a video of it")
    require_viser()
    from st_rl.sim.viewer.session import ViewSession
    from st_rl.sim.viewer.show import show_session

    task: Any = run.make_eval_env(options.num_envs, _EPISODE_S, options.seed, fine=True)

    def load(name: str) -> Policy:
        return run.load_policy(task, run.run.file(name))

    session = ViewSession(task, run.load_policy(task, checkpoint), load, checkpoint.name)
    try:
        show_session(session, lambda: checkpoint_names(run.run, checkpoint), options.host, options.port, print_address)
    except KeyboardInterrupt:
        print("\nThe viewer is closed.")
    return 0


def checkpoint_names(run: RunFolder, current: Path) -> list[str]:
    """Return the files of a run's checkpoints: the best, then all others, the newest first, and the current one."""
    numbered = [f"model_{iteration}.pt" for iteration in reversed(run.iterations)]
    names = [*([BEST_FILE] if run.file(BEST_FILE).is_file() else []), *numbered]
    return names if current.name in names else [current.name, *names]
