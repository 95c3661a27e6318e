"""List the tasks and their default sizes on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from st_rl.cli.support.command_line import parse_options
from st_rl.cli.support.run_folders.pretrained import pretrained_names


@dataclass
class TasksOptions:
    """Options of `st-rl tasks`."""

    names: bool = False
    """Print the names only, one per line, for scripts."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(TasksOptions, arguments, "tasks", __doc__)
    from st_rl.sim.tasks import TASKS

    if options.names:
        print("\n".join(TASKS))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table()
    sizes = ("CPU: robots x iterations", "GPU: robots x iterations")
    for column in ("task", "goal", "robot", *sizes):
        table.add_column(column, justify="right" if column in sizes else "left")
    for name, entry in TASKS.items():
        cfg, gpu = entry.cfg(), entry.gpu
        cpu = f"{cfg.num_envs} x {entry.training['max_iterations']}"
        table.add_row(name, entry.summary, cfg.robot, cpu, f"{gpu.num_envs} x {gpu.max_iterations}" if gpu else "")
    table.add_row("gym:ENV_ID", "any gymnasium environment, e.g. gym:Pendulum-v1", "", "16 x 100", "")
    table.add_row("mjlab:TASK_ID", "any task of mjlab, if it is installed", "", "", "4096")
    console = Console()
    console.print(table)
    policies = ", ".join(f"pretrained:{name}" for name in pretrained_names())
    if policies:
        console.print(f"Policies to play, view or train further: {policies}.", highlight=False)
    console.print("st-rl train TASK trains a task; st-rl train TASK --help lists its options.", highlight=False)
    return 0
