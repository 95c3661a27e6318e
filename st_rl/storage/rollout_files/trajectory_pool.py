"""The trajectories in the folders of a data set, and which of them were not given out yet."""

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.base import RolloutFileBase
from st_rl.utils.files.heartbeat import Watch, is_heartbeat
from st_rl.utils.log import logger

COLLECTOR = "collector"
_LOOK_EVERY_S = 1.0
_SAY_EVERY_S = 10.0


class TrajectoryPool(RolloutFileBase):
    """Finds trajectories, waits for them and gives them out pass by pass; whoever plays them derives from it."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        num_envs: int,
        dataset_loops: int,
        random_shuffle_traj_order: bool,
        keep_latest_n_trajs: int,
        device: torch.device | str,
        poll_seconds: float,
        wait_seconds: float,
        finished_only: bool,
    ):
        super().__init__(data_dir, num_envs, device)
        self.dataset_loops = dataset_loops
        self.random_shuffle_traj_order = random_shuffle_traj_order
        self.keep_latest_n_trajs = keep_latest_n_trajs
        self.poll_seconds = poll_seconds
        self.wait_seconds = wait_seconds
        self.finished_only = finished_only

        self.num_dataset_looped = 0
        self.waiting_seconds = 0.0
        self.all_available_trajectory_dirs: list[str] = []
        self.unused_trajectory_idxs: list[int] = []
        self.metadata: dict[str, Any] = {}
        self.collectors = Watch()
        self._collector_files: list[Path] = []
        self._last_look = 0.0
        self._refused: set[str] = set()
        self._warned_of_metadata = False
        self.may_wait = True
        """Whether to wait for trajectories that are missing; False ends a wait that is under way."""
        # Whether trajectories are given to all environments at once, and whether that took some of them twice.
        self._assigning = False
        self._recycled = False

    @property
    def data_dirs(self) -> list[str]:
        """The folders as a list."""
        dirs = [self.data_dir] if isinstance(self.data_dir, str | os.PathLike) else self.data_dir
        return [os.path.expanduser(os.fspath(folder)) for folder in dirs]

    def read_dataset_directory(self) -> bool:
        """Find the trajectories that are there now and fill the pool with them; False when there are too few."""
        found, metadata_dirs, collectors = self._scan()
        if metadata_dirs:
            self.metadata = layout.read_metadata(metadata_dirs[0]) or {}
            if len(metadata_dirs) > 1 and not self._warned_of_metadata:
                self._warned_of_metadata = True
                logger.warning(f"{len(metadata_dirs)} folders have a metadata.json; that of {metadata_dirs[0]} counts")
        self._collector_files = collectors
        # Folders of the same age in natural order.
        found.sort(key=lambda item: item[0])
        of_use = (path for _, path in reversed(found) if self._is_of_use(path))
        # Whoever wants the newest need not look into the others.
        wanted = self.keep_latest_n_trajs if self.keep_latest_n_trajs > 0 else None
        folders = list(itertools.islice(of_use, wanted))[::-1]
        if len(folders) < max(1, self.keep_latest_n_trajs):
            self.all_available_trajectory_dirs = folders
            return False
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            folders = folders[worker.id :: worker.num_workers] or folders
        self.all_available_trajectory_dirs = folders
        self.unused_trajectory_idxs = list(range(len(folders)))
        if self.random_shuffle_traj_order:
            np.random.shuffle(self.unused_trajectory_idxs)
        return True

    def _scan(self) -> tuple[list[tuple[int, str]], list[str], list[Path]]:
        """Trajectory folders with their times of change, folders with metadata, and heartbeats of collectors."""
        found, metadata_dirs, collectors = [], [], []
        for root in self.data_dirs:
            os.makedirs(root, exist_ok=True)
            for entry in layout.walk(root):
                if entry.name == layout.METADATA_FILE:
                    metadata_dirs.append(os.path.dirname(entry.path))
                elif is_heartbeat(entry.name, COLLECTOR):
                    collectors.append(Path(entry.path))
                elif entry.name.startswith(layout.TRAJECTORY_PREFIX):
                    try:
                        found.append((entry.stat().st_mtime_ns, entry.path))
                    except OSError:  # deleted while we looked
                        continue
        return found, metadata_dirs, collectors

    def _is_of_use(self, folder: str) -> bool:
        if folder in self._refused or (self.finished_only and not layout.is_finished(folder)):
            return False
        return bool(layout.frame_files(folder))

    def _wait_for_data(self) -> None:
        """Read the folders, again and again until they hold enough.

        FileNotFoundError when they never do, InterruptedError when somebody forbids to wait meanwhile.
        """
        begin, said = time.monotonic(), 0.0
        while not self.read_dataset_directory():
            waited = time.monotonic() - begin
            there, wanted = len(self.all_available_trajectory_dirs), max(1, self.keep_latest_n_trajs)
            if waited >= self.wait_seconds:
                raise FileNotFoundError(
                    f"{', '.join(self.data_dirs)}: {there} of {wanted} trajectories are there after {waited:.0f} s; "
                    "collect some (st-rl collect), name another data_dir, or wait longer with wait_seconds"
                )
            if not self.may_wait:
                raise InterruptedError(
                    f"stopped while waiting for trajectories in {', '.join(self.data_dirs)}; checkpoints that were "
                    "saved before are complete"
                )
            self.look_after_collectors()
            if said == 0.0 or waited - said >= _SAY_EVERY_S:
                start = "" if said or self.collectors.num_alive else "; start one: st-rl dagger TEACHER STUDENT"
                said = max(waited, 1e-9)
                logger.info(
                    f"waiting for trajectories in {', '.join(self.data_dirs)}: {there} of {wanted} are there, "
                    f"{self.collectors.num_alive} collectors at work ({waited:.0f} of {self.wait_seconds:.0f} s){start}"
                )
            time.sleep(max(0.0, min(self.poll_seconds, self.wait_seconds - waited)))
        self.waiting_seconds += time.monotonic() - begin

    def look_after_collectors(self) -> None:
        """Say who of the collectors has come, left or died; looks at most once a second."""
        now = time.monotonic()
        if now - self._last_look >= _LOOK_EVERY_S:
            self._last_look = now
            for line in self.collectors.look(self._collector_files):
                logger.info(line)

    def _next_trajectory(self) -> str:
        """Take the next folder from the pool; when it is empty, a pass is complete."""
        if not self.unused_trajectory_idxs:
            if self._assigning:
                if not self._recycled:
                    count = len(self.all_available_trajectory_dirs)
                    logger.warning(f"{count} trajectories for {self.num_envs} environments: some are given out twice")
                self._recycled = True
            else:
                self._complete_pass()
            self._wait_for_data()
        return self.all_available_trajectory_dirs[self.unused_trajectory_idxs.pop(0)]

    def _complete_pass(self) -> None:
        """Count a pass; StopIteration after the last."""
        if 1 <= self.dataset_loops <= self.num_dataset_looped + 1:
            self.num_dataset_looped = self.dataset_loops
            raise StopIteration
        self.num_dataset_looped += 1
