"""Export a dataset as npz or Minari HDF5: st-rl dataset export FOLDER --output FILE."""

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
    """Folder of the dataset."""
    output: Path | None = None
    """The npz file or the folder of the Minari dataset; required."""
    format: Literal["npz", "minari"] = "npz"
    """Format; minari needs h5py."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(ExportOptions, arguments, "dataset export", __doc__)
    if options.output is None:
        raise UsageError("--output is missing: st-rl dataset export FOLDER --output FILE")
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
