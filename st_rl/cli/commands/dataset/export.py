"""Write a data set for other libraries, as npz or as Minari's HDF5: st-rl dataset export FOLDER --output FILE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from st_rl.cli.commands.dataset.folders import check_same_widths, savers_in
from st_rl.cli.support.command_line import UsageError, parse_options
from st_rl.cli.support.progress import track


@dataclass
class ExportOptions:
    """Options of `st-rl dataset export`."""

    folder: Path
    """Folder of the data set."""
    output: Path | None = None
    """The npz file, or the folder of the Minari data set, to write; must be given."""
    format: Literal["npz", "minari"] = "npz"
    """What to write; minari needs the package h5py."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(ExportOptions, arguments, "dataset export", __doc__ or "")
    if options.output is None:
        raise UsageError("where to? st-rl dataset export FOLDER --output FILE")
    from st_rl.storage.rollout_files import exporting, layout

    savers = savers_in(options.folder)
    check_same_widths(savers)
    folders = [path for saver in savers for path in layout.own_trajectories(saver)]
    recorded = (episode for folder in track(folders, "exporting") for episode in exporting.episodes([folder]))
    target = options.output
    if options.format == "npz":
        target = target if target.suffix == ".npz" else target.with_name(f"{target.name}.npz")
        count = exporting.export_npz(recorded, target)
    else:
        count = exporting.export_minari(recorded, target, f"exported by st_rl from {options.folder.name}")
    print(f"{count:,} episodes written to {target}")
    return 0
