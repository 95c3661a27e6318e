"""Move corrupt files aside, cut trajectories at gaps, correct totals: st-rl dataset repair FOLDER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from st_rl.cli.commands.dataset.folders import inspect, savers_in
from st_rl.cli.support.command_line import CommandError, parse_options


@dataclass
class RepairOptions:
    """Options of `st-rl dataset repair`."""

    folder: Path
    """Folder of the dataset; no process may be writing to it."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(RepairOptions, arguments, "dataset repair", __doc__)
    from st_rl.storage.rollout_files import maintenance

    writers = [writer for folder in savers_in(options.folder) for writer in maintenance.active_writers(folder)]
    if writers:
        raise CommandError(f"{', '.join(writers)} is writing to {options.folder}: stop it first")
    num_repairs = 0
    for folder, states in inspect(options.folder, "checking").items():
        for state in states:
            lines = []
            if state.damaged or state.leftovers or state.gaps or not state.num_files:
                lines = maintenance.repair_trajectory(folder, state)
            num_repairs += len(lines)
            for line in lines:
                print(line)
        num_repairs += maintenance.remove_leftovers(folder)
        states = list(maintenance.inspect_folder(folder))
        for line in filter(None, map(maintenance.mark_finished, states)):
            num_repairs += 1
            print(line)
        maintenance.update_totals(folder, states)
        steps, finished = maintenance.totals(states)
        print(f"{folder}: {steps:,} steps, {finished:,} finished trajectories")
    count = "1 repair" if num_repairs == 1 else f"{num_repairs} repairs"
    print(count if num_repairs else "nothing to repair")
    return 0
