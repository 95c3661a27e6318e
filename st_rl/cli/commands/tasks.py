"""List the tasks and their default sizes."""

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
    for column in ("task", "goal", "robot", "num_envs", "iterations"):
        table.add_column(column, justify="right" if column in ("num_envs", "iterations") else "left")
    for name, entry in TASKS.items():
        cfg = entry.cfg()
        table.add_row(name, entry.summary, cfg.robot, str(cfg.num_envs), str(entry.training.get("max_iterations", "")))
    table.add_row("gym:ENV_ID", "any gymnasium environment, e.g. gym:Pendulum-v1", "", "16", "100")
    table.add_row("mjlab:TASK_ID", "any task of mjlab, if it is installed", "", "4096", "")
    console = Console()
    console.print(table)
    policies = ", ".join(f"pretrained:{name}" for name in pretrained_names())
    if policies:
        console.print(f"Policies to play, view or train further: {policies}.", highlight=False)
    console.print("st-rl train TASK trains a task; st-rl train TASK --help lists its options.", highlight=False)
    return 0
