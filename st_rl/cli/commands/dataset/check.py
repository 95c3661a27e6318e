"""Read every file, list corrupt ones, and correct the totals: st-rl dataset check FOLDER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from st_rl.cli.commands.dataset.folders import inspect
from st_rl.cli.support.command_line import parse_options


@dataclass
class CheckOptions:
    """Options of `st-rl dataset check`."""

    folder: Path
    """Folder of the dataset."""


def main(arguments: Sequence[str]) -> int:
    """Run the action; the exit code is 1 if something needs repair."""
    options = parse_options(CheckOptions, arguments, "dataset check", __doc__)
    from st_rl.storage.rollout_files import maintenance

    num_problems = 0
    for folder, states in inspect(options.folder, "checking").items():
        writers = maintenance.active_writers(folder)
        for state in states:
            problems = [f"{path}: {reason}" for path, reason in state.damaged.items()]
            problems += [f"{path}: frames before it are missing" for path in state.gaps]
            problems += [] if writers else [f"{path}: never finished" for path in state.leftovers]
            num_problems += len(problems)
            for line in problems:
                print(line)
        steps, finished = maintenance.totals(states)
        if writers:
            print(f"{folder}: {', '.join(writers)} is writing; totals not checked")
            continue
        before = maintenance.update_totals(folder, states)
        corrected = f" (metadata.json had {before[0]:,} and {before[1]:,})" if before is not None else ""
        print(f"{folder}: {steps:,} steps, {finished:,} finished trajectories{corrected}")
    if num_problems:
        count = "1 problem" if num_problems == 1 else f"{num_problems} problems"
        print(f"{count} (readers skip corrupt files); fix with: st-rl dataset repair {options.folder}")
    return 1 if num_problems else 0
