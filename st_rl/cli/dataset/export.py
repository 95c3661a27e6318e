"""Write a data set for other libraries, as npz or as Minari's HDF5: st-rl dataset export FOLDER --output FILE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from st_rl.cli.command_line import parse_options
from st_rl.cli.dataset.folders import savers_in
from st_rl.cli.progress import track


@dataclass
class ExportOptions:
    """Options of `st-rl dataset export`."""

    folder: Path
    """Folder of the data set."""
    output: Path
    """The npz file, or the folder of the Minari data set, to write."""
    format: Literal["npz", "minari"] = "npz"
    """What to write; minari needs the package h5py."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(ExportOptions, arguments, "dataset export", __doc__ or "")
    from st_rl.storage.rollout_files import exporting, upkeep

    savers = savers_in(options.folder)
    folders = [path for saver in savers for path in upkeep.own_trajectories(saver)]
    recorded = (episode for folder in track(folders, "exporting") for episode in exporting.episodes([folder]))
    if options.format == "npz":
        target = (
            options.output
            if options.output.suffix == ".npz"
            else options.output.with_name(f"{options.output.name}.npz")
        )
        count = exporting.export_npz(recorded, target)
    else:
        target = options.output
        count = exporting.export_minari(recorded, target, f"exported by st_rl from {options.folder.name}")
    print(f"{count:,} episodes written to {target}")
    return 0
