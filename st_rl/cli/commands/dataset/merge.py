"""Merge datasets into one folder: st-rl dataset merge FOLDER... --output NEW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from st_rl.cli.commands.dataset.folders import check_same_widths, savers_in
from st_rl.cli.support.command_line import CommandError, UsageError, parse_options
from st_rl.cli.support.progress import track

# Metadata that must be equal for a reader to read all of them.
_SHARED_KEYS = ("obs_segments", "obs_disassemble_mapping")


@dataclass
class MergeOptions:
    """Options of `st-rl dataset merge`."""

    folders: tuple[Path, ...]
    """Folders of the datasets."""
    output: Path | None = None
    """Folder of the merged dataset, new or to extend; required."""


def main(arguments: Sequence[str]) -> int:
    """Run the action."""
    options = parse_options(MergeOptions, arguments, "dataset merge", __doc__)
    from st_rl.storage.rollout_files import layout, maintenance
    from st_rl.storage.rollout_files.folder_allocator import FolderAllocator
    from st_rl.utils.files import write_json

    target = options.output
    if target is None:
        raise UsageError("--output is missing: st-rl dataset merge FOLDER... --output NEW")
    savers = [saver for folder in options.folders for saver in savers_in(folder)]
    places = [Path(saver).resolve() for saver in savers]
    for saver, place in zip(savers, places):
        if places.count(place) > 1:
            raise CommandError(f"{saver} is given twice: name each dataset once")
    if target.resolve() in places:
        raise CommandError(f"{target} cannot be merged with itself: choose another --output")
    together = [*([str(target)] if target.is_dir() else []), *savers]
    metadata = _shared_metadata(together)
    check_same_widths(together)
    target.mkdir(parents=True, exist_ok=True)
    if layout.read_metadata(target) is None:
        write_json(target / layout.METADATA_FILE, metadata)
    work = [path for saver in savers for path in layout.own_trajectories(saver) if layout.frame_files(path)]
    folders = FolderAllocator(str(target))
    for path in track(work, "copying"):
        maintenance.merge_trajectory(path, folders)
    states = list(maintenance.inspect_folder(str(target)))
    maintenance.update_totals(str(target), states)
    steps, finished = maintenance.totals(states)
    print(f"{target}: {len(states):,} trajectories, {finished:,} finished, {steps:,} steps")
    return 0


def _shared_metadata(savers: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of the first folder; CommandError if another has a different observation layout."""
    from st_rl.storage.rollout_files import layout

    all_metadata = [(saver, layout.read_metadata(saver)) for saver in savers]
    first_folder, first = next(((saver, found) for saver, found in all_metadata if found), ("", {}))
    for folder, metadata in all_metadata:
        for key in _SHARED_KEYS:
            if metadata and _ordered(metadata.get(key)) != _ordered(first.get(key)):
                raise CommandError(f"{folder} and {first_folder} have different {key}: they cannot be merged")
    return dict(first)


def _ordered(value: object) -> object:
    """Make the comparison of dictionaries depend on their order."""
    return list(value.items()) if isinstance(value, dict) else value
