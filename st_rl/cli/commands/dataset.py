"""Inspect, repair, merge and export datasets: st-rl dataset info | check | repair | merge | export."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from st_rl.cli.support.command_line import CommandError, UsageError, conf, count_of, parse_options, quote, run_action
from st_rl.cli.support.progress import track

if TYPE_CHECKING:
    from st_rl.storage.rollout_files.maintenance import TrajectoryState
    from st_rl.storage.rollout_files.metadata import Metadata

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

    folder: Annotated[Path, conf("arg", metavar="FOLDER")]
    """Folder of the dataset."""


@dataclass
class MergeOptions:
    """Options of `st-rl dataset merge`."""

    folders: Annotated[tuple[Path, ...], conf("arg", metavar="FOLDER ...")]
    """Folders of the datasets."""
    output: Path | None = None
    """Folder of the merged dataset, new or to extend; required."""
    done_files: bool = True
    """Whether to mark finished episodes by an empty file `done`; readers of other libraries may fail on it."""


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

    from st_rl.storage.rollout_files import maintenance
    from st_rl.storage.rollout_files.metadata import load_metadata

    found = {saver: _inspect(saver, "reading", load_metadata(saver)) for saver in _find_savers(options.folder)}
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
        metadata = load_metadata(folder).content
        widths = next((state.widths for state in states if state.widths), {})
        words = ", ".join(f"{name} {width}" for name, width in widths.items() if name not in ("dones", "timeouts"))
        made_by = " of ".join(str(metadata[key]) for key in ("policy", "env") if key in metadata)
        console.print(f"{folder}: {words or 'empty'}" + (f"; {made_by}" if made_by else ""), highlight=False)
    damaged = sum(len(state.damaged) for states in found.values() for state in states)
    if damaged:
        console.print(f"{damaged} corrupt files; list them with: st-rl dataset check {quote(options.folder)}")
    return 0


def check(arguments: Sequence[str]) -> int:
    """Read every file, list corrupt ones, and correct the totals: st-rl dataset check FOLDER."""
    options = parse_options(DatasetOptions, arguments, "dataset check", check.__doc__)
    refused, savers = _find_own_savers(options.folder)
    num_problems = len(refused) + sum(_check_folder(folder, refused) for folder in savers)
    if num_problems:
        remedy = f"fix with: st-rl dataset repair {quote(options.folder)}"
        print(f"{count_of(num_problems, 'problem')} (readers skip corrupt files); {remedy}")
    # A script can ask whether something needs repair.
    return 1 if num_problems else 0


def _check_folder(folder: str, refused: Mapping[str, str]) -> int:
    """Check the trajectories and totals of one saver; returns the number of problems."""
    from st_rl.storage.rollout_files import layout, maintenance
    from st_rl.storage.rollout_files.metadata import load_metadata

    writers = maintenance.active_writers(folder, refused)
    metadata = load_metadata(folder, refused)
    states = _inspect(folder, "checking", metadata, refused)
    problems = []
    if metadata.problem is not None:
        problems.append(f"{Path(folder, layout.METADATA_FILE)}: {metadata.problem}")
    for state in states:
        problems += [f"{path}: {reason}" for path, reason in state.damaged.items()]
        problems += [f"{path}: frames before it are missing" for path in state.gaps]
        problems += [] if writers else [f"{path}: never finished" for path in state.leftovers]
    for line in problems:
        print(line)
    steps, finished = maintenance.totals(states)
    if writers:
        print(f"{folder}: {', '.join(writers)} is writing; totals not checked")
        return len(problems)
    is_intact = metadata.problem is None and not _refused_in(folder, refused)
    before = maintenance.update_totals(folder, states, metadata.content) if is_intact else None
    corrected = f" (metadata.json had {before[0]:,} and {before[1]:,})" if before is not None else ""
    print(f"{folder}: {steps:,} steps, {finished:,} finished trajectories{corrected}")
    return len(problems)


def repair(arguments: Sequence[str]) -> int:
    """Move corrupt files aside, cut trajectories at gaps, correct totals: st-rl dataset repair FOLDER."""
    options = parse_options(DatasetOptions, arguments, "dataset repair", repair.__doc__)
    from st_rl.storage.rollout_files import maintenance

    refused, savers = _find_own_savers(options.folder)
    writers = [writer for folder in savers for writer in maintenance.active_writers(folder, refused)]
    if writers:
        raise CommandError(f"{', '.join(writers)} is writing to {options.folder}: stop it first")
    num_repairs = 0
    for folder in savers:
        if _refused_in(folder, refused):
            print(f"{folder}: not repaired")
            continue
        num_repairs += _repair_folder(folder)
    print(count_of(num_repairs, "repair") if num_repairs else "nothing to repair")
    if refused:
        raise CommandError(
            f"{len(refused)} entries of {options.folder} were refused, and folders with them are not repaired: remove "
            "them, or replace them by files and folders, then repair again"
        )
    return 0


def _repair_folder(folder: str) -> int:
    """Repair the trajectories and metadata of one saver; returns the number of repairs."""
    from st_rl.storage.rollout_files import layout, maintenance
    from st_rl.storage.rollout_files.metadata import load_metadata

    metadata = load_metadata(folder)
    lines = []
    for state in _inspect(folder, "checking", metadata):
        if state.damaged or state.leftovers or state.gaps or not state.num_files:
            lines += maintenance.repair_trajectory(folder, state)
    num_leftovers = maintenance.remove_leftovers(folder)
    states = list(maintenance.inspect_folder(folder))
    done_files = bool(metadata.content.get(layout.DONE_FILES_KEY, True))
    lines += filter(None, [maintenance.mark_finished(state, done_files) for state in states])
    if metadata.problem is not None:
        lines.append(maintenance.rebuild_metadata(folder, states, metadata))
    else:
        maintenance.update_totals(folder, states, metadata.content)
    for line in lines:
        print(line)
    steps, finished = maintenance.totals(states)
    print(f"{folder}: {steps:,} steps, {finished:,} finished trajectories")
    return len(lines) + num_leftovers


def _find_own_savers(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Refused entries with what they are, which are printed, and the folders of savers; follows no links."""
    from st_rl.storage.rollout_files.refused_entries import find_refused_entries

    refused = find_refused_entries(str(folder))
    for path, kind in refused.items():
        print(f"{path}: refused, because it is {kind}")
    return refused, _find_savers(folder, follow_links=False, may_be_empty=bool(refused))


def _refused_in(folder: str, refused: Iterable[str]) -> bool:
    """Return whether a refused entry is directly in the folder of a saver or in one of its trajectories."""
    from st_rl.storage.rollout_files import layout

    parents = [Path(path).parent for path in refused]
    return Path(folder) in [p.parent if p.name.startswith(layout.TRAJECTORY_PREFIX) else p for p in parents]


def merge(arguments: Sequence[str]) -> int:
    """Merge datasets into one folder: st-rl dataset merge FOLDER... --output NEW."""
    options = parse_options(MergeOptions, arguments, "dataset merge", merge.__doc__)
    from st_rl.storage.rollout_files import layout, maintenance
    from st_rl.storage.rollout_files.folder_allocator import FolderAllocator

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
    metadata = _shared_metadata(together) | {layout.DONE_FILES_KEY: options.done_files}
    _check_same_widths(together)
    target.mkdir(parents=True, exist_ok=True)
    # Before the trajectories: they cannot be read without it.
    maintenance.write_metadata(str(target), metadata, list(maintenance.inspect_folder(str(target))))
    work = [path for saver in savers for path in layout.own_trajectories(saver) if layout.frame_files(path)]
    folders = FolderAllocator(str(target))
    for path in track(work, "copying"):
        maintenance.merge_trajectory(path, folders)
    states = list(maintenance.inspect_folder(str(target)))
    for state in states:
        maintenance.mark_finished(state, options.done_files)
    maintenance.write_metadata(str(target), metadata, states)
    steps, finished = maintenance.totals(states)
    print(f"{target}: {len(states):,} trajectories, {finished:,} finished, {steps:,} steps")
    return 0


def _shared_metadata(savers: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of the first folder; CommandError if another has a different observation layout."""
    from st_rl.storage.rollout_files import layout
    from st_rl.storage.rollout_files.metadata import load_metadata

    loaded = [(saver, load_metadata(saver)) for saver in savers]
    for saver, found in loaded:
        if found.problem is not None:
            print(f"{Path(saver, layout.METADATA_FILE)}: {found.problem}; using metadata rebuilt from the trajectories")
    all_metadata = [(saver, found.content) for saver, found in loaded]
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
    recorded = exporting.episodes(track(folders, "exporting"))
    target = options.output
    if options.format == "npz":
        target = target if target.suffix == ".npz" else target.with_name(f"{target.name}.npz")
        count = exporting.export_npz(recorded, target)
    else:
        count = exporting.export_minari(recorded, target, f"exported by st_rl from {options.folder.name}")
    print(f"{count:,} episodes written to {target}")
    return 0


def _inspect(saver: str, label: str, metadata: Metadata, refused: Collection[str] = ()) -> list[TrajectoryState]:
    """Return the state of every trajectory of a saver, without opening the paths in `refused`."""
    from st_rl.storage.rollout_files import layout, maintenance

    trajectories = layout.own_trajectories(saver, follow_links=not refused)
    return [maintenance.inspect_trajectory(path, metadata.content, refused) for path in track(trajectories, label)]


def _find_savers(folder: Path, follow_links: bool = True, may_be_empty: bool = False) -> list[str]:
    """Return the folders written by savers; CommandError if there are none."""
    from st_rl.storage.rollout_files import maintenance

    if not folder.is_dir():
        raise CommandError(f"no folder {folder}")
    savers = maintenance.saver_folders(str(folder), follow_links)
    if not savers and not may_be_empty:
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
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"


ACTIONS = {action.__name__: action for action in (info, check, repair, merge, export)}
