"""Exports demonstrations as one npz file or as a Minari dataset."""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from st_rl.storage.rollout_files import layout, maintenance
from st_rl.storage.rollout_files.frames import Frames
from st_rl.utils.files import atomic_write

MINARI_VERSION = "0.5.0"


class Episode:
    """A recorded episode, or a part of one: arrays `(n, width)` and flags `(n,)`."""

    def __init__(self, frames: Frames):
        self.observations = frames["observations"].astype(np.float32, copy=False)
        self.privileged_observations = frames["privileged_observations"].astype(np.float32, copy=False)
        self.actions = frames["actions"].astype(np.float32, copy=False)
        self.rewards = frames["rewards"][:, 0].astype(np.float32, copy=False)
        dones, time_outs = frames["dones"][:, 0] > 0, frames["timeouts"][:, 0] > 0
        self.terminations = dones & ~time_outs
        self.truncations = dones & time_outs
        # A recording that stops before the end of the episode is truncated.
        self.truncations[-1] |= not dones[-1]

    def __len__(self) -> int:
        return len(self.rewards)


def episodes(folders: Sequence[str]) -> Iterator[Episode]:
    """Iterate over the episodes of trajectory folders; split at gaps, without unreadable files."""
    for folder in folders:
        metadata = layout.read_metadata(os.path.dirname(folder)) or {}
        for frames in maintenance.read_pieces(folder, metadata):
            yield Episode(frames)


def export_npz(recorded: Iterable[Episode], path: Path) -> int:
    """Write the concatenated episodes, arrays `(frames, ...)`, and `episode_lengths`; returns their number."""
    found = list(recorded)
    names = ("observations", "privileged_observations", "actions", "rewards", "terminations", "truncations")
    arrays = {name: np.concatenate([getattr(episode, name) for episode in found]) for name in names} if found else {}
    arrays["episode_lengths"] = np.array([len(episode) for episode in found], dtype=np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    return len(found)


def export_minari(recorded: Iterable[Episode], folder: Path, description: str = "") -> int:
    """Write a dataset that `minari.MinariDataset(folder / "data")` reads; returns the number of episodes.

    Minari needs the observation after the last step, which the files do not hold: the last one is repeated. Only actor
    observations are exported.
    """
    h5py = _require_h5py()
    data = folder / "data"
    if data.exists():
        raise FileExistsError(f"{data} exists already: name a folder that does not, or delete it")
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that readers never see an incomplete dataset.
    with tempfile.TemporaryDirectory(prefix=".data-", dir=folder, ignore_cleanup_errors=True) as beside:
        complete = Path(beside) / "data"
        complete.mkdir()
        num_episodes = _write_minari(h5py, recorded, complete, folder.name, description)
        complete.rename(data)
    return num_episodes


def _write_minari(h5py: Any, recorded: Iterable[Episode], data: Path, title: str, description: str) -> int:
    """Write the files of a dataset into the folder `data`; returns the number of episodes."""
    num_episodes = num_steps = 0
    sizes = (0, 0)
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for episode in recorded:
            group = file.create_group(f"episode_{num_episodes}")
            group.attrs["id"] = num_episodes
            group.attrs["total_steps"] = len(episode)
            for name in ("actions", "rewards", "terminations", "truncations"):
                group.create_dataset(name, data=getattr(episode, name))
            observations = episode.observations
            group.create_dataset("observations", data=np.concatenate([observations, observations[-1:]]))
            sizes = observations.shape[1], episode.actions.shape[1]
            num_episodes, num_steps = num_episodes + 1, num_steps + len(episode)
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
    return num_episodes


def _box(size: int) -> str:
    """An unbounded Box space of a size, in Minari's JSON."""
    bounds = {"low": [-math.inf] * size, "high": [math.inf] * size}
    return json.dumps({"type": "Box", "dtype": "float32", "shape": [size], **bounds})


def _require_h5py() -> Any:
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "Minari's format needs h5py; install it with: pip install h5py (npz needs nothing)"
        ) from error
    return h5py
