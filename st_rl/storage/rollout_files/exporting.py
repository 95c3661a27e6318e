"""Exports demonstrations as one npz file or as a Minari dataset."""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.storage.rollout_files import layout, maintenance
from st_rl.storage.rollout_files.frames import Frames
from st_rl.storage.rollout_files.metadata import load_metadata
from st_rl.utils.files import atomic_write

MINARI_VERSION = "0.5.0"


def episodes(folders: Iterable[str]) -> Iterator[Frames]:
    """Iterate over the episodes of trajectory folders, split at gaps, without unreadable files.

    An episode has arrays `(n, width)` of float32, and `rewards`, `terminations` and `truncations` `(n,)`.
    """
    metadata: dict[str, dict[str, Any]] = {}
    for folder in folders:
        saver = os.path.dirname(folder)
        if saver not in metadata:
            metadata[saver] = load_metadata(saver).content
        for frames in maintenance.read_pieces(folder, metadata[saver]):
            dones, time_outs = frames.pop("dones")[:, 0] > 0, frames.pop("timeouts")[:, 0] > 0
            truncations = dones & time_outs
            # A recording that stops before the end of the episode is truncated.
            truncations[-1] |= not dones[-1]
            episode = {name: array.astype(np.float32, copy=False) for name, array in frames.items()}
            episode["rewards"] = episode["rewards"][:, 0]
            yield {**episode, "terminations": dones & ~time_outs, "truncations": truncations}


def export_npz(recorded: Iterable[Frames], path: Path) -> int:
    """Write the concatenated episodes, arrays `(frames, ...)`, and `episode_lengths`; returns their number."""
    found = list(recorded)
    arrays = {name: np.concatenate([episode[name] for episode in found]) for name in found[0]} if found else {}
    arrays["episode_lengths"] = np.array([len(episode["rewards"]) for episode in found], dtype=np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    return len(found)


def export_minari(recorded: Iterable[Frames], folder: Path, description: str = "") -> int:
    """Write a dataset that `minari.MinariDataset(folder / "data")` reads; returns the number of episodes.

    Minari needs the observation after the last step, which the files do not hold: the last one is repeated. Only actor
    observations are exported.
    """
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "Minari's format needs h5py; install it with: pip install h5py (npz needs nothing)"
        ) from error
    data = folder / "data"
    if data.exists():
        raise FileExistsError(f"{data} exists already: name a folder that does not, or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that readers never see an incomplete dataset.
    with tempfile.TemporaryDirectory(prefix=".data-", dir=folder, ignore_cleanup_errors=True) as temporary:
        complete = Path(temporary) / "data"
        complete.mkdir()
        num_episodes = num_steps = 0
        sizes = (0, 0)
        with h5py.File(complete / "main_data.hdf5", "w", track_order=True) as file:
            for episode in recorded:
                group = file.create_group(f"episode_{num_episodes}")
                group.attrs["id"] = num_episodes
                group.attrs["total_steps"] = len(episode["rewards"])
                for name in ("actions", "rewards", "terminations", "truncations"):
                    group.create_dataset(name, data=episode[name])
                observations = episode["observations"]
                group.create_dataset("observations", data=np.concatenate([observations, observations[-1:]]))
                sizes = observations.shape[1], episode["actions"].shape[1]
                num_episodes, num_steps = num_episodes + 1, num_steps + len(episode["rewards"])
        _write_minari_metadata(complete, num_episodes, num_steps, sizes, folder.name, description)
        complete.rename(data)
    return num_episodes


def _write_minari_metadata(
    data: Path, num_episodes: int, num_steps: int, sizes: tuple[int, int], title: str, description: str
) -> None:
    """Write `metadata.json` of a dataset with these widths of observation and action."""
    metadata = {
        "total_episodes": num_episodes,
        "total_steps": num_steps,
        "data_format": "hdf5",
        "observation_space": _box(sizes[0]),
        "action_space": _box(sizes[1]),
        "dataset_id": title if re.search(r"-v\d+$", title) else f"{title}-v0",
        "minari_version": MINARI_VERSION,
        "dataset_size": round((data / "main_data.hdf5").stat().st_size / 1e6, 1),
        "description": description,
    }
    # Python's JSON dialect, because the bounds of the spaces are infinite.
    (data / layout.METADATA_FILE).write_text(json.dumps(metadata), encoding="utf-8")


def _box(size: int) -> str:
    bounds = {"low": [-math.inf] * size, "high": [math.inf] * size}
    return json.dumps({"type": "Box", "dtype": "float32", "shape": [size], **bounds})
