"""`RolloutDataset`: recorded trajectories as a stream of transitions."""

import itertools
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.base import RolloutFileBase
from st_rl.storage.rollout_files.frame_store import FIELDS, MOTION_FIELDS, FrameStore, LoadedFile, file_identity
from st_rl.storage.rollout_files.frames import FrameFileError, Frames, assemble_observations, read_frames
from st_rl.storage.rollout_files.metadata import load_metadata
from st_rl.storage.rollout_files.read_ahead import ReadAhead
from st_rl.utils.buffer import buffer_to
from st_rl.utils.collections import namedarraytuple
from st_rl.utils.files.heartbeat import HeartbeatMonitor, is_heartbeat
from st_rl.utils.log import logger

Transition = namedarraytuple(
    "Transition",
    [
        "observation",
        "privileged_observation",
        "action",
        "reward",
        "done",
        "timeout",
        "next_observation",
        "next_privileged_observation",
    ],
)
ITERATION_FIELD = "policy_iterations"
_CHECK_INTERVAL_S = 1.0
_PROGRESS_INTERVAL_S = 10.0
_MAX_LISTED_PATHS = 5


class OpenedTrajectory(NamedTuple):
    """A trajectory and the first readable file at or after its start frame; None if there is none."""

    file_names: list[str]
    file_index: int
    frame: int
    file: LoadedFile | None
    unreadable: list[tuple[str, str]]


def _is_gone(error: FrameFileError) -> bool:
    """Whether a file was deleted before it was read; a writer may have replaced it since."""
    return isinstance(error.__cause__, FileNotFoundError)


class RolloutDataset(RolloutFileBase):
    """Plays trajectories from one or several folders, one per environment at a time, while new ones may be written.

    Args:
        data_dir: a folder or a list of folders; trajectories are found at any depth.
        num_envs: number N of environments that are played side by side.
        dataset_loops: passes over the data; less than 1 repeats forever. The folders are read again for each pass.
        random_shuffle_traj_order: assign trajectories in random order; otherwise oldest first.
        keep_latest_n_trajs: above 0, use only the newest n, and wait until there are n.
        starting_frame_range: the first frame of a trajectory is sampled from `[lo, hi)`.
        device: device of the transitions.
        mark_first_frame_done: set `done` on the first frame that is played of a trajectory.
        poll_seconds: seconds between two scans of folders that do not hold enough yet.
        wait_seconds: how long to keep scanning; 0 or less: not at all.
        max_policy_age: skip trajectories of policies that are more than this number of iterations older than
            `current_iteration`, which the trainer sets; None uses all. Trajectories without `policy_iterations` are
            always used.
        finished_only: skip trajectories of unfinished episodes. Otherwise their last frame so far reads `done` and
            `timeout`.
        read_ahead: read files in a background thread before they are needed.
        motion_features: deliver `ref_obs` and `ref_motion` in the infos of `get_transition_batch`; ValueError for a
            file without them. None delivers them if the first file has them.
    """

    Transition = Transition

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        num_envs: int,
        dataset_loops: int = 1,
        random_shuffle_traj_order: bool = False,
        keep_latest_n_trajs: int = 0,
        starting_frame_range: Sequence[int] = [0, 1],
        device: torch.device | str = "cuda",
        mark_first_frame_done: bool = True,
        poll_seconds: float = 2.0,
        wait_seconds: float = 900,
        max_policy_age: int | None = None,
        finished_only: bool = False,
        read_ahead: bool = True,
        motion_features: bool | None = None,
    ):
        super().__init__(data_dir, num_envs, device)
        low, high = (int(bound) for bound in starting_frame_range)
        if not 0 <= low < high:
            raise ValueError(f"starting_frame_range is {list(starting_frame_range)}; give [lo, hi) with 0 <= lo < hi")
        self.dataset_loops = dataset_loops
        self.random_shuffle_traj_order = random_shuffle_traj_order
        self.keep_latest_n_trajs = keep_latest_n_trajs
        self.starting_frame_range = [low, high]
        self.mark_first_frame_done = mark_first_frame_done
        self.poll_seconds = poll_seconds
        self.wait_seconds = wait_seconds
        self.max_policy_age = max_policy_age
        self.finished_only = finished_only
        self.read_ahead = read_ahead
        self.motion_features = motion_features
        self._init_state()

    def _init_state(self) -> None:
        """Set counters, known trajectories and environments to the state before the first scan."""
        # Completed iterations of the trainer, from which the age of a trajectory's policy is counted.
        self.current_iteration = 0
        self.may_wait = True
        """Whether to wait for missing trajectories; setting it to False ends a wait in progress."""
        self.num_dataset_looped = 0
        self.num_trajectories_refused = 0
        self.num_transitions_read = 0
        self.waiting_seconds = 0.0
        self.all_available_trajectory_dirs: list[str] = []
        self.unused_trajectory_idxs: list[int] = []
        self.metadata: dict[str, Any] = {}
        self.collectors = HeartbeatMonitor()
        self._collector_files: list[Path] = []
        self._last_check = 0.0
        self._unreadable: dict[str, str] = {}
        """File that cannot be read -> reason."""
        self._refused: set[str] = set()
        # Finished trajectories without a file `done`.
        self._finished: set[str] = set()
        self._warned_of_metadata = False
        # Set while all environments are assigned at once: then a trajectory may be assigned twice.
        self._assigning = False
        self._assigned_twice = False
        self._reset_handlers()

    def _reset_handlers(self) -> None:
        """Detach all environments from their trajectories and drop the reader thread."""
        count = self.num_envs
        self.traj_identifiers: list[str] = [""] * count
        self.traj_file_names: list[list[str]] = [[] for _ in range(count)]
        self._other_arrays: list[Frames] = [{} for _ in range(count)]
        # Path and identity of the file that each environment reads.
        self._current_files: list[tuple[str, tuple[int, int] | None]] = [("", None)] * count
        self.traj_lengths = np.zeros(count, dtype=np.int64)
        self.traj_file_idxs = np.zeros(count, dtype=np.int64)
        self.traj_cursors = np.zeros(count, dtype=np.int64)
        self._file_starts = np.zeros(count, dtype=np.int64)
        self._file_stops = np.zeros(count, dtype=np.int64)
        self._start_frames = np.full(count, -1, dtype=np.int64)
        self._is_exhausted = np.zeros(count, dtype=np.bool_)
        self._store = FrameStore(count, self.device, self.motion_features)
        # Motion features of the last transitions, `(N, width)`, by name.
        self._motion_features: dict[str, Tensor] = {}
        self._ahead: ReadAhead | None = None

    def __getstate__(self) -> dict[str, Any]:
        """State for a worker process, which starts its own reader thread."""
        return {**self.__dict__, "_ahead": None}

    @property
    def num_files_skipped(self) -> int:
        """Number of files that could not be read so far."""
        return len(self._unreadable)

    @property
    def data_dirs(self) -> list[str]:
        """The folders as a list."""
        dirs = [self.data_dir] if isinstance(self.data_dir, str | os.PathLike) else self.data_dir
        return [os.path.expanduser(os.fspath(folder)) for folder in dirs]

    @staticmethod
    def get_frame_range(filename: str) -> tuple[int, int]:
        """First frame and the frame after the last that a file name stands for."""
        return layout.frame_range(filename)

    # ---- finding trajectories ------------------------------------------------------------------------------------

    def read_dataset_directory(self) -> bool:
        """Find the trajectories in the folders and fill the index pool; False when there are too few."""
        found, metadata_dirs, self._collector_files = self._scan_folders()
        if metadata_dirs:
            self.metadata = self._read_metadata(metadata_dirs)
        # Stable: folders of the same age stay in natural order.
        found.sort(key=lambda item: item[0])
        known = (path for _, path in reversed(found) if path not in self._refused and layout.frame_files(path))
        usable = (path for path in known if not self.finished_only or self._is_finished(path))
        # Lazily: only the newest are looked into if only those are wanted.
        wanted = self.keep_latest_n_trajs if self.keep_latest_n_trajs > 0 else None
        folders = list(itertools.islice(usable, wanted))[::-1]
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

    def _read_metadata(self, folders: Sequence[str]) -> dict[str, Any]:
        """The metadata of the first folder with an intact file, else rebuilt from the trajectories of the first one."""
        damaged = []
        for folder in folders:
            try:
                content = layout.read_metadata(folder) or {}
            except layout.MetadataError as error:
                damaged.append(f"{os.path.join(folder, layout.METADATA_FILE)}: {error}")
                continue
            used = folder
            break
        else:
            used, content = folders[0], load_metadata(folders[0]).content
        if not self._warned_of_metadata:
            self._warned_of_metadata = bool(damaged) or len(folders) > 1
            for line in damaged:
                logger.warning(f"{line}; rebuild it with: st-rl dataset repair")
            if len(folders) > 1:
                logger.warning(f"{len(folders)} folders have a metadata.json; using that of {used}")
        return content

    def _scan_folders(self) -> tuple[list[tuple[int, str]], list[str], list[Path]]:
        """Trajectory folders with their modification times, folders with metadata, and heartbeats of collectors."""
        found, metadata_dirs, collectors = [], [], []
        for root in self.data_dirs:
            os.makedirs(root, exist_ok=True)
            for entry in layout.walk(root):
                if entry.name == layout.METADATA_FILE:
                    metadata_dirs.append(os.path.dirname(entry.path))
                elif is_heartbeat(entry.name, layout.COLLECTOR):
                    collectors.append(Path(entry.path))
                elif entry.name.startswith(layout.TRAJECTORY_PREFIX):
                    try:
                        found.append((entry.stat().st_mtime_ns, entry.path))
                    except OSError:  # deleted since it was listed
                        continue
        return found, metadata_dirs, collectors

    def _is_finished(self, folder: str) -> bool:
        """Whether the episode of a trajectory is finished: by its file `done`, else by its last frame."""
        if layout.is_finished(folder) or folder in self._finished:
            return True
        files = layout.frame_files(folder)
        if not files or self.metadata.get(layout.DONE_FILES_KEY, True):
            return False
        try:
            is_finished = bool(read_frames(os.path.join(folder, files[-1]))["dones"][-1])
        except (FrameFileError, KeyError):
            return False
        if is_finished:
            self._finished.add(folder)
        return is_finished

    def _wait_for_data(self) -> None:
        """Scan the folders until they hold enough trajectories.

        FileNotFoundError after `wait_seconds`, InterruptedError when `may_wait` becomes False.
        """
        begin, reported = time.monotonic(), 0.0
        while not self.read_dataset_directory():
            waited = time.monotonic() - begin
            count, wanted = len(self.all_available_trajectory_dirs), max(1, self.keep_latest_n_trajs)
            if waited >= self.wait_seconds:
                raise FileNotFoundError(
                    f"{', '.join(self.data_dirs)}: {count} of {wanted} trajectories found after {waited:.0f} s; "
                    "collect some (st-rl collect), name another data_dir, or wait longer with wait_seconds"
                )
            if not self.may_wait:
                raise InterruptedError(
                    f"stopped while waiting for trajectories in {', '.join(self.data_dirs)}; checkpoints that were "
                    "saved before are complete"
                )
            self.check_collectors()
            if reported == 0.0 or waited - reported >= _PROGRESS_INTERVAL_S:
                hint = "" if reported or self.collectors.num_alive else "; start one: st-rl dagger TEACHER STUDENT"
                reported = max(waited, 1e-9)
                logger.info(
                    f"waiting for trajectories in {', '.join(self.data_dirs)}: {count} of {wanted} found, "
                    f"{self.collectors.num_alive} collectors running ({waited:.0f} of {self.wait_seconds:.0f} s){hint}"
                )
            time.sleep(max(0.0, min(self.poll_seconds, self.wait_seconds - waited)))
        self.waiting_seconds += time.monotonic() - begin

    def check_collectors(self) -> None:
        """Log which collectors have started, finished or died; checks at most once a second."""
        now = time.monotonic()
        if now - self._last_check >= _CHECK_INTERVAL_S:
            self._last_check = now
            for line in self.collectors.check(self._collector_files):
                logger.info(line)

    def _next_trajectory(self) -> str:
        """Take the next folder from the pool; an empty pool completes a pass, StopIteration after the last."""
        if not self.unused_trajectory_idxs:
            if self._assigning:
                if not self._assigned_twice:
                    count = len(self.all_available_trajectory_dirs)
                    logger.warning(f"{count} trajectories for {self.num_envs} environments: some are used twice")
                self._assigned_twice = True
            elif 1 <= self.dataset_loops <= self.num_dataset_looped + 1:
                self.num_dataset_looped = self.dataset_loops
                raise StopIteration
            else:
                self.num_dataset_looped += 1
            self._wait_for_data()
        return self.all_available_trajectory_dirs[self.unused_trajectory_idxs.pop(0)]

    # ---- assigning trajectories ----------------------------------------------------------------------------------

    def reset_all(self) -> None:
        """Read the folders, waiting for data if necessary, and assign a trajectory to every environment."""
        if self._ahead is not None:
            self._ahead.close()
        self._reset_handlers()
        self._ahead = ReadAhead(self.read_ahead)
        self.num_dataset_looped = 0
        self._assigned_twice = False
        self._wait_for_data()
        self._assigning = True
        try:
            self.refresh_handlers()
        finally:
            self._assigning = False
        if self._assigned_twice:
            # Every trajectory is in use: the first environment that needs another one completes the pass.
            self.unused_trajectory_idxs.clear()

    def refresh_handlers(self, env_ids: Sequence[int] | Tensor | None = None) -> None:
        """Assign another trajectory to some environments, or to all."""
        if self._ahead is None:
            self.reset_all()
            return
        for env in range(self.num_envs) if env_ids is None else [int(env) for env in env_ids]:
            self._refresh_traj_handler(env)

    def _refresh_traj_handler(self, env: int) -> None:
        """Assign the next readable trajectory of the pool to an environment, from its start frame on."""
        num_unreadable = 0
        while True:
            folder = self._next_trajectory()
            self._expect_trajectory(folder)
            opened = self._take(folder)
            self._expect_next_trajectories()
            self._report_unreadable(opened.unreadable)
            if not opened.file_names:
                continue  # deleted since the folders were read
            if opened.file is None:
                num_unreadable += 1
                if num_unreadable > 2 * len(self.all_available_trajectory_dirs):
                    raise RuntimeError(f"no readable trajectory is left: {self._list_unreadable()}")
            elif self._policy_age(opened.file) > (math.inf if self.max_policy_age is None else self.max_policy_age):
                self.num_trajectories_refused += 1
                self._refused.add(folder)
            else:
                break
        self.traj_identifiers[env] = folder
        self.traj_file_names[env] = opened.file_names
        self.traj_lengths[env] = self.get_frame_range(opened.file_names[-1])[1]
        self.traj_file_idxs[env] = opened.file_index
        self.traj_cursors[env] = opened.frame
        self._start_frames[env] = opened.frame if self.mark_first_frame_done else -1
        self._is_exhausted[env] = False
        self._set_file(env, opened.file)

    @property
    def _reader(self) -> ReadAhead:
        if self._ahead is None:
            raise RuntimeError("no trajectories are open yet: call reset() or get_batch() first")
        return self._ahead

    def _expect_next_trajectories(self) -> None:
        """Let the thread open the next trajectories of the pool, one for each environment."""
        window = [self.all_available_trajectory_dirs[i] for i in self.unused_trajectory_idxs[: self.num_envs]]
        # The window has moved by one, so that only its end is new, or all of it.
        new = list(itertools.takewhile(lambda folder: folder not in self._reader, reversed(window)))
        for folder in reversed(new):
            self._expect_trajectory(folder)

    def _expect_trajectory(self, folder: str) -> None:
        """Sample the start frame of a trajectory and let the thread open it there."""
        if folder not in self._reader:
            self._reader.expect(folder, self._open, folder, int(np.random.randint(*self.starting_frame_range)))

    def _open(self, folder: str, start: int) -> OpenedTrajectory:
        """Read the file of a trajectory that holds the start frame, or the first readable one after it."""
        names = layout.frame_files(folder)
        if names and start >= self.get_frame_range(names[-1])[1]:
            start = 0
        unreadable = []
        for index, name in enumerate(names):
            first, stop = self.get_frame_range(name)
            if stop <= start:
                continue
            path = os.path.join(folder, name)
            try:
                return OpenedTrajectory(names, index, max(first, start), self._load(path), unreadable)
            except FrameFileError as error:
                if not _is_gone(error):
                    unreadable.append((path, str(error)))
        return OpenedTrajectory(names, 0, 0, None, unreadable)

    def _take(self, key: str) -> Any:
        """Take an expected trajectory or file; the time this takes counts as waiting."""
        begin = time.perf_counter()
        try:
            return self._reader.take(key)
        finally:
            self.waiting_seconds += time.perf_counter() - begin

    def _policy_age(self, file: LoadedFile) -> int:
        """Iterations since the policy that recorded a file; 0 if it is unknown."""
        iterations = file.others.get(ITERATION_FIELD)
        return 0 if iterations is None else self.current_iteration - int(iterations.max())

    def _maintain_handler(self, env: int) -> bool:
        """After the last frame of a file, continue with the next file; True iff that is a new trajectory."""
        if self.traj_cursors[env] < self._file_stops[env]:
            return False
        while self.traj_file_idxs[env] + 1 < len(self.traj_file_names[env]):
            self.traj_file_idxs[env] += 1
            if self._refresh_traj_data(env):
                self.traj_cursors[env] = self._file_starts[env]
                return False
        self._refresh_traj_handler(env)
        return True

    # ---- reading files -------------------------------------------------------------------------------------------

    def _refresh_traj_data(self, env: int) -> bool:
        """Read the current file of an environment; False if it cannot be read."""
        path = os.path.join(self.traj_identifiers[env], self.traj_file_names[env][self.traj_file_idxs[env]])
        try:
            file = self._take(self._expect_file(env, path))
        except FrameFileError as error:
            self._report_unreadable([] if _is_gone(error) else [(path, str(error))])
            return False
        before, identity = self._current_files[env]
        if file_identity(before) != identity:
            return False  # the writer has replaced the trajectory: the next file belongs to another episode
        self._set_file(env, file)
        return True

    def _expect_file(self, env: int, path: str) -> str:
        """Let the thread read the file that follows the current one of an environment; returns the key to take it."""
        key = f"{path} after {self._current_files[env][1]}"
        self._reader.expect(key, self._load, path)
        return key

    def _set_file(self, env: int, file: LoadedFile) -> None:
        """Play the frames of a file next, and let the thread read the file after it."""
        folder, names, index = self.traj_identifiers[env], self.traj_file_names[env], self.traj_file_idxs[env]
        self._file_starts[env], self._file_stops[env] = self.get_frame_range(names[index])
        self._store.put(env, file.packed)
        self._other_arrays[env] = file.others
        self._current_files[env] = os.path.join(folder, names[index]), file.identity
        if index + 1 < len(names):
            self._expect_file(env, os.path.join(folder, names[index + 1]))

    def _load(self, path: str) -> LoadedFile:
        """Read a file; `FrameFileError` if it is unreadable or its fields differ from those of other files."""
        return self._store.load(path, self.metadata, self.assemble_obs_components)

    def _report_unreadable(self, files: Sequence[tuple[str, str]]) -> None:
        """Warn once of every file `(path, reason)` that exists and cannot be read."""
        for path, reason in files:
            if path not in self._unreadable and os.path.exists(path):
                self._unreadable[path] = reason
                logger.warning(f"skipped {path}: {reason}")

    def _list_unreadable(self) -> str:
        shown = [f"{path} ({reason})" for path, reason in list(self._unreadable.items())[:_MAX_LISTED_PATHS]]
        more = len(self._unreadable) - len(shown)
        return "; ".join(shown) + (f" and {more} more" if more else "") + "; st-rl dataset repair removes such files"

    def assemble_obs_components(self, traj_data: dict[str, Any]) -> dict[str, Any]:
        """Replace the components `obs_{name}` by `observations`: decompressed, in segment order; returns the same."""
        return assemble_observations(traj_data, self.metadata)

    @property
    def traj_datas(self) -> list[dict[str, Tensor]]:
        """The current file of each environment, every array as a tensor on the device; empty before the first."""
        if not self._store.columns:
            return [{} for _ in range(self.num_envs)]
        files = []
        for env, count in enumerate(self._file_stops - self._file_starts):
            others = {name: torch.from_numpy(array) for name, array in self._other_arrays[env].items()}
            files.append(self._store.unpack(self._store.frames[env, :count]) | buffer_to(others, self.device))
        return files

    def all_frames(self) -> Iterator[dict[str, Tensor]]:
        """Iterate once over the frames of all files, fields `(n, ...)` on the CPU; waits for data."""
        if not self.all_available_trajectory_dirs:
            self._wait_for_data()
        for folder in list(self.all_available_trajectory_dirs):
            for name in layout.frame_files(folder):
                path = os.path.join(folder, name)
                try:
                    file = self._load(path)
                except FrameFileError as error:
                    self._report_unreadable([(path, str(error))])
                    continue
                yield self._store.unpack(torch.from_numpy(file.packed))

    # ---- transitions ---------------------------------------------------------------------------------------------

    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        """Allocate a `Transition` with leaves `(N, ...)`, or `(n, N, ...)`."""
        leading = (self.num_envs,) if num_transitions_per_env is None else (num_transitions_per_env, self.num_envs)
        present = [name for name in MOTION_FIELDS if name in self._store.columns]
        self._motion_features = {name: self._store.empty(name, (self.num_envs,)) for name in present}
        names = (*FIELDS, "observations", "privileged_observations")
        return Transition(*(self._store.empty(name, leading) for name in names))

    def get_transition_batch(self) -> tuple[Any, dict[str, Any]]:
        """The next step of all environments, and infos as of an environment, with recorded motion features."""
        buffer, infos = super().get_transition_batch()
        if self._motion_features:
            infos |= {"observations": {"ref_obs": self._motion_features["ref_obs"]}}
            infos["ref_motion"] = self._motion_features["ref_motion"]
        return buffer, infos

    def fill_transition(self, buffer: Any, env_ids: Sequence[int] | Tensor | None = None) -> None:
        """Write the next transition of some environments, or all, into a buffer with leaves `(N, ...)`.

        StopIteration when one of them has none left. The successor of the very last frame is that frame itself. An
        override of `_fill_transition_per_env` is called for every environment.
        """
        self.check_collectors()
        envs = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, dtype=np.int64)
        if self._is_exhausted[envs].any():
            raise StopIteration
        if type(self)._fill_transition_per_env is RolloutDataset._fill_transition_per_env:
            self._fill_transitions(buffer, envs)
        else:
            for env in envs.tolist():
                self._fill_transition_per_env(buffer, env)

    def _fill_transition_per_env(self, buffer: Any, env: int) -> None:
        """Write the next transition of one environment into its row of a buffer with leaves `(N, ...)`."""
        if self._is_exhausted[env]:
            raise StopIteration
        self._fill_transitions(buffer, np.array([env]))

    def _fill_transitions(self, buffer: Any, envs: np.ndarray) -> None:
        """Write the next transitions of environments that have one, all at once."""
        frames = self._frames_at(envs)
        is_start = torch.from_numpy(self.traj_cursors[envs] == self._start_frames[envs]).to(self.device)
        is_cut = torch.from_numpy(self._advance(envs)).to(self.device)
        following = self._frames_at(envs)
        values = Transition(
            frames["observations"],
            frames["privileged_observations"],
            frames["actions"],
            frames["rewards"],
            frames["dones"] | is_start | is_cut,
            frames["timeouts"] | (is_cut & ~frames["dones"]),
            following["observations"],
            following["privileged_observations"],
        )
        is_all = np.array_equal(envs, np.arange(self.num_envs))
        rows = slice(None) if is_all else torch.from_numpy(envs).to(self.device)
        buffer[rows] = values
        for name, features in self._motion_features.items():
            features[rows] = frames[name]
        self.num_transitions_read += len(envs)

    def _frames_at(self, envs: np.ndarray) -> dict[str, Tensor]:
        """The frames at the cursors of some environments, fields `(n, ...)`."""
        return self._store.gather(envs, self.traj_cursors[envs] - self._file_starts[envs])

    def _advance(self, envs: np.ndarray) -> np.ndarray:
        """Advance by one frame; bool `(n,)`, True where the next frame does not continue the same trajectory."""
        self.traj_cursors[envs] += 1
        is_cut = np.zeros(len(envs), dtype=np.bool_)
        for place in np.flatnonzero(self.traj_cursors[envs] >= self._file_stops[envs]):
            env = int(envs[place])
            expected = self.traj_cursors[env]
            try:
                # A skipped file leaves a gap, which ends the episode.
                is_cut[place] = self._maintain_handler(env) or self.traj_cursors[env] != expected
            except StopIteration:
                self.traj_cursors[env] -= 1
                is_cut[place] = self._is_exhausted[env] = True
        return is_cut
