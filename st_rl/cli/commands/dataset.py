"""Inspect, repair, merge and export datasets: st-rl dataset info | check | repair | merge | export."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from st_rl.cli.support.command_line import CommandError, UsageError, parse_options, run_action
from st_rl.cli.support.progress import track

if TYPE_CHECKING:
    from st_rl.storage.rollout_files.maintenance import TrajectoryState

# Metadata that must be equal for a reader to read all of them.
_SHARED_KEYS = ("obs_segments", "obs_disassemble_mapping")
_HELP = """usage: st-rl dataset ACTION FOLDER [OPTIONS]

{rows}

FOLDER contains trajectories at any depth, such as those of st-rl collect or of
several st-rl dagger collectors; repair it only while no process writes to it.
st-rl dataset ACTION --help lists the options of each."""


@dataclass
class DatasetOptions:
    """Options of an action on one dataset."""

    folder: Path
    """Folder of the dataset."""


@dataclass
class MergeOptions:
    """Options of `st-rl dataset merge`."""

    folders: tuple[Path, ...]
    """Folders of the datasets."""
    output: Path | None = None
    """Folder of the merged dataset, new or to extend; required."""


@dataclass
class ExportOptions(DatasetOptions):
    """Options of `st-rl dataset export`."""

    output: Path | None = None
    """The npz file or the folder of the Minari dataset; required."""
    format: Literal["npz", "minari"] = "npz"
    """Format; minari needs h5py."""


def main(arguments: Sequence[str]) -> int:
    """Run the action that the first argument names."""
    return run_action("dataset", _HELP, ACTIONS, arguments)


def info(arguments: Sequence[str]) -> int:
    """Summarize a dataset: trajectories, steps, lengths, returns, writers: st-rl dataset info FOLDER."""
    options = parse_options(DatasetOptions, arguments, "dataset info", info.__doc__)
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from st_rl.storage.rollout_files import layout, maintenance

    found = _inspect(options.folder, "reading")
    # On a narrow terminal long folder names wrap, and no word is cut.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=True)
    for column in ("folder", "trajectories", "finished", "steps", "mean length", "mean return", "size", "writer"):
        table.add_column(
            column,
            justify="left" if column in ("folder", "writer") else "right",
            overflow="fold",
            min_width=max(map(len, column.split())),
        )
    for folder, states in found.items():
        kept = [state for state in states if state.num_frames]
        steps, finished = maintenance.totals(kept)
        writers = maintenance.active_writers(folder)
        table.add_row(
            folder,
            f"{len(kept):,}",
            f"{finished:,}",
            f"{steps:,}",
            f"{steps / len(kept):.1f}" if kept else "-",
            f"{fmean(state.total_reward for state in kept):.2f}" if kept else "-",
            _format_size(sum(state.num_bytes for state in kept)),
            ", ".join(writers) or "-",
        )
    console = Console()
    console.print(table)
    for folder, states in found.items():
        metadata = layout.read_metadata(folder) or {}
        widths = next((state.widths for state in states if state.widths), {})
        words = ", ".join(f"{name} {width}" for name, width in widths.items() if name not in ("dones", "timeouts"))
        made_by = " of ".join(str(metadata[key]) for key in ("policy", "env") if key in metadata)
        console.print(f"{folder}: {words or 'empty'}" + (f"; {made_by}" if made_by else ""), highlight=False)
    damaged = sum(len(state.damaged) for states in found.values() for state in states)
    if damaged:
        console.print(
            f"{damaged} corrupt files; list them with: st-rl dataset check {shlex.quote(str(options.folder))}"
        )
    return 0


def check(arguments: Sequence[str]) -> int:
    """Read every file, list corrupt ones, and correct the totals: st-rl dataset check FOLDER."""
    options = parse_options(DatasetOptions, arguments, "dataset check", check.__doc__)
    from st_rl.storage.rollout_files import maintenance

    num_problems = 0
    for folder, states in _inspect(options.folder, "checking").items():
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
        print(
            f"{count} (readers skip corrupt files); fix with: st-rl dataset repair {shlex.quote(str(options.folder))}"
        )
    # A script can ask whether something needs repair.
    return 1 if num_problems else 0


def repair(arguments: Sequence[str]) -> int:
    """Move corrupt files aside, cut trajectories at gaps, correct totals: st-rl dataset repair FOLDER."""
    options = parse_options(DatasetOptions, arguments, "dataset repair", repair.__doc__)
    from st_rl.storage.rollout_files import maintenance

    writers = [writer for folder in _find_savers(options.folder) for writer in maintenance.active_writers(folder)]
    if writers:
        raise CommandError(f"{', '.join(writers)} is writing to {options.folder}: stop it first")
    num_repairs = 0
    for folder, states in _inspect(options.folder, "checking").items():
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


def merge(arguments: Sequence[str]) -> int:
    """Merge datasets into one folder: st-rl dataset merge FOLDER... --output NEW."""
    options = parse_options(MergeOptions, arguments, "dataset merge", merge.__doc__)
    from st_rl.storage.rollout_files import layout, maintenance
    from st_rl.storage.rollout_files.folder_allocator import FolderAllocator
    from st_rl.utils.files import write_json

    target = options.output
    if target is None:
        raise UsageError("--output is missing: st-rl dataset merge FOLDER... --output NEW")
    savers = [saver for folder in options.folders for saver in _find_savers(folder)]
    places = [Path(saver).resolve() for saver in savers]
    for saver, place in zip(savers, places):
        if places.count(place) > 1:
            raise CommandError(f"{saver} is given twice: name each dataset once")
    if target.resolve() in places:
        raise CommandError(f"{target} cannot be merged with itself: choose another --output")
    together = [*([str(target)] if target.is_dir() else []), *savers]
    metadata = _shared_metadata(together)
    _check_same_widths(together)
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


def export(arguments: Sequence[str]) -> int:
    """Export a dataset as npz or Minari HDF5: st-rl dataset export FOLDER --output FILE."""
    options = parse_options(ExportOptions, arguments, "dataset export", export.__doc__)
    if options.output is None:
        raise UsageError("--output is missing: st-rl dataset export FOLDER --output FILE")
    from st_rl.storage.rollout_files import exporting, layout

    savers = _find_savers(options.folder)
    _check_same_widths(savers)
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


def _inspect(folder: Path, label: str) -> dict[str, list[TrajectoryState]]:
    """Return the state of every trajectory by saver folder; CommandError if there are none."""
    from st_rl.storage.rollout_files import layout, maintenance

    savers = _find_savers(folder)
    work = [(saver, path) for saver in savers for path in layout.own_trajectories(saver)]
    metadata = {saver: layout.read_metadata(saver) or {} for saver in savers}
    found: dict[str, list[TrajectoryState]] = {saver: [] for saver in savers}
    for saver, path in track(work, label):
        found[saver].append(maintenance.inspect_trajectory(path, metadata[saver]))
    return found


def _find_savers(folder: Path) -> list[str]:
    """Return the folders written by savers; CommandError if there are none."""
    from st_rl.storage.rollout_files import maintenance

    if not folder.is_dir():
        raise CommandError(f"no folder {folder}")
    savers = maintenance.saver_folders(str(folder))
    if not savers:
        raise CommandError(f"{folder} has no trajectories (folders named trajectory_*)")
    return savers


def _check_same_widths(savers: Sequence[str]) -> None:
    """Raise CommandError if the first readable trajectories of the folders have different widths."""
    from st_rl.storage.rollout_files import maintenance

    first: tuple[str, str] | None = None
    for saver in savers:
        widths = next((state.widths for state in maintenance.inspect_folder(saver) if state.widths), None)
        if widths is None:
            continue
        words = ", ".join(f"{name} {width}" for name, width in widths.items())
        first = first or (saver, words)
        if words != first[1]:
            raise CommandError(f"{first[0]} has {first[1]}; {saver} has {words}: they cannot be merged")


def _format_size(num_bytes: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


ACTIONS = {action.__name__: action for action in (info, check, repair, merge, export)}
