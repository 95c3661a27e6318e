"""The viewer in the browser, as `train` opens it, and what it shares with `view`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from st_rl.cli.support.command_line import CommandError
from st_rl.cli.support.task_source import TaskSource, is_external

if TYPE_CHECKING:
    from st_rl.runners import OnPolicyRunner

DEFAULT_PORT = 8080
LOOPBACK = "127.0.0.1"


class ViewerOptions(Protocol):
    """Options of a command that can show its training."""

    view: bool
    port: int
    host: str


def check_viewer(source: TaskSource[Any], options: ViewerOptions) -> None:
    """Raise before anything is built if `--view` cannot work."""
    if not options.view:
        return
    if is_external(source.name):
        raise CommandError(f"--view shows built-in tasks, not {source.name}: leave it out")
    from st_rl.sim.viewer.server import require_viser

    require_viser()


@contextmanager
def show_training(runner: OnPolicyRunner, options: ViewerOptions) -> Iterator[None]:
    """With `--view`, show the robots of a training in the browser during the block; prints the address."""
    from st_rl.utils.distributed import is_main

    if not options.view or not is_main():
        yield
        return
    from st_rl.sim.envs.task import Task
    from st_rl.sim.viewer.training import TrainingView

    if not isinstance(runner.env, Task):
        raise CommandError(f"--view shows built-in tasks, not {type(runner.env).__name__}: leave it out")
    shown = TrainingView(runner.env, runner.num_steps_per_env, options.host, options.port)
    runner.iteration_observers.append(shown.after_iteration)
    print_address(shown.address, "the training does not need it")
    try:
        yield
    finally:
        runner.iteration_observers.remove(shown.after_iteration)
        shown.close()


def print_address(address: str, end: str = "Ctrl-C closes the viewer") -> None:
    """Print what to open in a browser."""
    print(f"Open {address} in a browser; {end}.", flush=True)
