"""The folders and trajectories of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from st_rl.cli.support.command_line import CommandError
from st_rl.cli.support.progress import track

if TYPE_CHECKING:
    from st_rl.storage.rollout_files.maintenance import TrajectoryState


def inspect(folder: Path, label: str) -> dict[str, list[TrajectoryState]]:
    """Return the state of every trajectory by saver folder; CommandError if there are none."""
    from st_rl.storage.rollout_files import layout, maintenance

    savers = savers_in(folder)
    work = [(saver, path) for saver in savers for path in layout.own_trajectories(saver)]
    metadata = {saver: layout.read_metadata(saver) or {} for saver in savers}
    found: dict[str, list[TrajectoryState]] = {saver: [] for saver in savers}
    for saver, path in track(work, label):
        found[saver].append(maintenance.inspect_trajectory(path, metadata[saver]))
    return found


def savers_in(folder: Path) -> list[str]:
    """Return the folders written by savers; CommandError if there are none."""
    from st_rl.storage.rollout_files import maintenance

    if not folder.is_dir():
        raise CommandError(f"no folder {folder}")
    savers = maintenance.saver_folders(str(folder))
    if not savers:
        raise CommandError(f"{folder} has no trajectories (folders named trajectory_*)")
    return savers


def check_same_widths(savers: Sequence[str]) -> None:
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


def size(num_bytes: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
