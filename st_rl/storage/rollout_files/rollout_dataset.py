"""`RolloutDataset`: recorded trajectories as a stream of transitions."""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.storage.rollout_files import layout
from st_rl.storage.rollout_files.damaged_files import DamagedFiles
from st_rl.storage.rollout_files.frame_store import FIELDS, FrameStore, LoadedFile, as_tensors, file_identity
from st_rl.storage.rollout_files.frames import FrameFileError, Frames, assemble_observations
from st_rl.storage.rollout_files.read_ahead import ReadAhead
from st_rl.storage.rollout_files.trajectory_pool import TrajectoryPool
from st_rl.utils.collections import namedarraytuple

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


class OpenedTrajectory(NamedTuple):
    """A trajectory, and the first of its files that is of use; None if none is."""

    file_names: list[str]
    file_index: int
    frame: int
    file: LoadedFile | None
    damaged: list[tuple[str, str]]


class RolloutDataset(TrajectoryPool):
    """Plays trajectories from one or several folders, one per environment at a time; new ones may still be coming.

    Args:
        data_dir: a folder or a list of folders; trajectories are found at any depth.
        num_envs: number N of environments that are played side by side.
        dataset_loops: passes over the data; less than 1 goes on for ever. The folders are read anew for each pass.
        random_shuffle_traj_order: give trajectories out in random order; otherwise oldest first.
        keep_latest_n_trajs: above 0, use only the newest n, and wait until there are n.
        starting_frame_range: the first frame of a trajectory is drawn from `[lo, hi)`.
        device: where transitions are delivered.
        mark_first_frame_done: the first frame played of a trajectory reads `done`.
        poll_seconds: time between two looks at folders that do not hold enough yet.
        wait_seconds: how long to go on looking; 0 or less: not at all.
        max_policy_age: refuse trajectories whose policy is more than so many iterations older than
            `current_iteration`, which the trainer sets; None takes all. Trajectories without a stamp are always taken.
        finished_only: leave out trajectories whose episode is not finished. Otherwise their last frame so far reads
            `done` and `timeout`.
        read_ahead: read files in a thread before they are needed.
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
    ):
        super().__init__(
            data_dir,
            num_envs,
            dataset_loops,
            random_shuffle_traj_order,
            keep_latest_n_trajs,
            device,
            poll_seconds,
            wait_seconds,
            finished_only,
        )
        low, high = (int(bound) for bound in starting_frame_range)
        if not 0 <= low < high:
            raise ValueError(f"starting_frame_range is {list(starting_frame_range)}; give [lo, hi) with 0 <= lo < hi")
        self.starting_frame_range = [low, high]
        self.mark_first_frame_done = mark_first_frame_done
        self.max_policy_age = max_policy_age
        self.read_ahead = read_ahead
        # What the trainer has completed; the age of a trajectory is counted from it.
        self.current_iteration = 0
        self.num_trajectories_refused = 0
        self.num_transitions_read = 0
        self._damaged = DamagedFiles()
        self._forget_handlers()

    def _forget_handlers(self) -> None:
        """No environment is anywhere; a thread belongs to one reset, so that a copy in another process has its own."""
        count = self.num_envs
        self.traj_identifiers: list[str] = [""] * count
        self.traj_file_names: list[list[str]] = [[] for _ in range(count)]
        self._other_arrays: list[Frames] = [{} for _ in range(count)]
        # The file that each environment is in, and which one that was when it was read.
        self._playing: list[tuple[str, tuple[int, int] | None]] = [("", None)] * count
        self.traj_lengths = np.zeros(count, dtype=np.int64)
        self.traj_file_idxs = np.zeros(count, dtype=np.int64)
        self.traj_cursors = np.zeros(count, dtype=np.int64)
        self._file_starts = np.zeros(count, dtype=np.int64)
        self._file_stops = np.zeros(count, dtype=np.int64)
        self._start_frames = np.full(count, -1, dtype=np.int64)
        # Who has played the last frame there was.
        self._is_exhausted = np.zeros(count, dtype=np.bool_)
        self._store = FrameStore(count, self.device)
        self._ahead: ReadAhead | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process gets: the settings, to begin anew."""
        return {**self.__dict__, "_ahead": None}

    @property
    def num_files_skipped(self) -> int:
        """How many files could not be read so far."""
        return len(self._damaged)

    @staticmethod
    def get_frame_range(filename: str) -> tuple[int, int]:
        """First frame and the frame after the last that a file name stands for."""
        return layout.frame_range(filename)

    # ---- trajectories --------------------------------------------------------------------------------------------

    def reset_all(self) -> None:
        """Read the folders, waiting for data if need be, and give every environment a trajectory."""
        if self._ahead is not None:
            self._ahead.close()
        self._forget_handlers()
        self._ahead = ReadAhead(self.read_ahead)
        self.num_dataset_looped = 0
        self._recycled = False
        self._wait_for_data()
        self._assigning = True
        try:
            self.refresh_handlers()
        finally:
            self._assigning = False
        if self._recycled:
            # Every trajectory is in use: the first environment that asks for another one completes the pass.
            self.unused_trajectory_idxs.clear()

    def refresh_handlers(self, env_ids: Sequence[int] | Tensor | None = None) -> None:
        """Give some environments, or all, another trajectory."""
        if self._ahead is None:
            self.reset_all()
            return
        for env in range(self.num_envs) if env_ids is None else [int(env) for env in env_ids]:
            self._refresh_traj_handler(env)

    def _refresh_traj_handler(self, env: int) -> None:
        """Put an environment at the start frame of the next readable trajectory of the pool."""
        num_damaged = 0
        while True:
            folder = self._next_trajectory()
            self._expect(folder)
            opened = self._take(folder)
            self._expect_next()
            self._damaged.report(opened.damaged)
            if not opened.file_names:
                continue  # deleted since the folders were read
            if opened.file is None:
                num_damaged += 1
                if num_damaged > 2 * len(self.all_available_trajectory_dirs):
                    raise RuntimeError(f"nothing readable is left: {self._damaged}")
            elif self._is_too_old(opened.file):
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
        self._use(env, opened.file)

    @property
    def _reader(self) -> ReadAhead:
        if self._ahead is None:
            raise RuntimeError("no trajectories are open yet: call reset() or get_batch() first")
        return self._ahead

    def _expect_next(self) -> None:
        """Let the thread open the trajectories that come next, one for each environment."""
        window = [self.all_available_trajectory_dirs[i] for i in self.unused_trajectory_idxs[: self.num_envs]]
        # Only the end of the window is new, or all of it.
        new = list(itertools.takewhile(lambda folder: folder not in self._reader, reversed(window)))
        for folder in reversed(new):
            self._expect(folder)

    def _expect(self, folder: str) -> None:
        """Draw where to start in a trajectory, and let it be opened there."""
        if folder not in self._reader:
            self._reader.expect(folder, self._open, folder, int(np.random.randint(*self.starting_frame_range)))

    def _open(self, folder: str, start: int) -> OpenedTrajectory:
        """Read the file of a trajectory that holds the start frame, or the first whole one after it."""
        names = layout.frame_files(folder)
        if names and start >= self.get_frame_range(names[-1])[1]:
            start = 0
        damaged = []
        for index, name in enumerate(names):
            first, stop = self.get_frame_range(name)
            if stop <= start:
                continue
            try:
                return OpenedTrajectory(
                    names, index, max(first, start), self._load(os.path.join(folder, name)), damaged
                )
            except FrameFileError as error:
                damaged.append((os.path.join(folder, name), str(error)))
        return OpenedTrajectory(names, 0, 0, None, damaged)

    def _take(self, path: str) -> Any:
        """The content of a folder or file that is expected; the time this takes counts as waiting."""
        begin = time.perf_counter()
        try:
            return self._reader.take(path)
        finally:
            self.waiting_seconds += time.perf_counter() - begin

    def _is_too_old(self, file: LoadedFile) -> bool:
        if self.max_policy_age is None or ITERATION_FIELD not in file.others:
            return False
        return int(file.others[ITERATION_FIELD].max()) < self.current_iteration - self.max_policy_age

    def _maintain_handler(self, env: int) -> bool:
        """After the last frame of a file go on to the next one; True iff that took a new trajectory."""
        if self.traj_cursors[env] < self._file_stops[env]:
            return False
        while self.traj_file_idxs[env] + 1 < len(self.traj_file_names[env]):
            self.traj_file_idxs[env] += 1
            if self._refresh_traj_data(env):
                self.traj_cursors[env] = self._file_starts[env]
                return False
        self._refresh_traj_handler(env)
        return True

    # ---- files ---------------------------------------------------------------------------------------------------

    def _refresh_traj_data(self, env: int) -> bool:
        """Read the file that an environment has come to; False for one that cannot be read."""
        path = os.path.join(self.traj_identifiers[env], self.traj_file_names[env][self.traj_file_idxs[env]])
        try:
            file = self._take(self._expect_file(env, path))
        except FrameFileError as error:
            self._damaged.report([(path, str(error))])
            return False
        before, identity = self._playing[env]
        if file_identity(before) != identity:
            return False  # a failure that its writer took back: what is there now is another episode
        self._use(env, file)
        return True

    def _expect_file(self, env: int, path: str) -> str:
        """Let a file be read that follows the one an environment is in; returns the name of the result."""
        key = f"{path} after {self._playing[env][1]}"
        self._reader.expect(key, self._load, path)
        return key

    def _use(self, env: int, file: LoadedFile) -> None:
        """Play the frames of a file next, and let the thread read the file after it."""
        index = self.traj_file_idxs[env]
        self._file_starts[env], self._file_stops[env] = self.get_frame_range(self.traj_file_names[env][index])
        self._store.put(env, file.packed)
        self._other_arrays[env] = file.others
        folder, names = self.traj_identifiers[env], self.traj_file_names[env]
        self._playing[env] = os.path.join(folder, names[index]), file.identity
        if index + 1 < len(names):
            self._expect_file(env, os.path.join(folder, names[index + 1]))

    def _load(self, path: str) -> LoadedFile:
        """Read a file; `FrameFileError` for one that holds no transitions like those of the others."""
        return self._store.load(path, self.metadata, self.assemble_obs_components)

    def assemble_obs_components(self, traj_data: dict[str, Any]) -> dict[str, Any]:
        """Replace the components `obs_{name}` by `observations`: decompressed, in segment order; returns the same."""
        return assemble_observations(traj_data, self.metadata)

    @property
    def traj_datas(self) -> list[dict[str, Tensor]]:
        """The file that each environment is in: every array as a tensor on the device; empty before the first."""
        if not self._store.columns:
            return [{} for _ in range(self.num_envs)]
        counts = self._file_stops - self._file_starts
        return [
            self._store.fields(env, int(counts[env])) | as_tensors(others, self.device)
            for env, others in enumerate(self._other_arrays)
        ]

    def all_frames(self) -> Iterator[dict[str, Tensor]]:
        """The frames of every file once, fields `(n, ...)` on the host, whatever is being played; waits for data."""
        if not self.all_available_trajectory_dirs:
            self._wait_for_data()
        for folder in list(self.all_available_trajectory_dirs):
            for name in layout.frame_files(folder):
                path = os.path.join(folder, name)
                try:
                    file = self._load(path)
                except FrameFileError as error:
                    self._damaged.report([(path, str(error))])
                    continue
                yield self._store.unpack(torch.from_numpy(file.packed))

    # ---- transitions ---------------------------------------------------------------------------------------------

    def get_buffer(self, num_transitions_per_env: int | None = None) -> Any:
        """A new `Transition` with leaves `(N, ...)`, or `(n, N, ...)`."""
        leading = (self.num_envs,) if num_transitions_per_env is None else (num_transitions_per_env, self.num_envs)
        names = (*FIELDS, "observations", "privileged_observations")
        return Transition(*(self._store.empty(name, leading) for name in names))

    def fill_transition(self, buffer: Any, env_ids: Sequence[int] | Tensor | None = None) -> None:
        """Write the next transition of some environments, or all, into a buffer with leaves `(N, ...)`.

        StopIteration when there is no next one for one of them. What follows the very last frame is that frame again.
        """
        self.look_after_collectors()
        envs = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, dtype=np.int64)
        if self._is_exhausted[envs].any():
            raise StopIteration
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
        buffer[slice(None) if env_ids is None else torch.from_numpy(envs).to(self.device)] = values
        self.num_transitions_read += len(envs)

    def _fill_transition_per_env(self, buffer: Any, env: int) -> None:
        """Write the next transition of one environment into its row of a buffer with leaves `(N, ...)`."""
        self.fill_transition(buffer, [env])

    def _frames_at(self, envs: np.ndarray) -> dict[str, Tensor]:
        """The frames at the cursors of some environments, fields `(n, ...)`."""
        return self._store.gather(envs, self.traj_cursors[envs] - self._file_starts[envs])

    def _advance(self, envs: np.ndarray) -> np.ndarray:
        """Move on by a frame; bool `(n,)`, True where what follows is not the next frame of the same trajectory."""
        self.traj_cursors[envs] += 1
        is_cut = np.zeros(len(envs), dtype=np.bool_)
        for place in np.flatnonzero(self.traj_cursors[envs] >= self._file_stops[envs]):
            env = int(envs[place])
            expected = self.traj_cursors[env]
            try:
                # A file that had to be skipped leaves a gap, over which an episode does not go on.
                is_cut[place] = self._maintain_handler(env) or self.traj_cursors[env] != expected
            except StopIteration:
                self.traj_cursors[env] -= 1
                is_cut[place] = self._is_exhausted[env] = True
        return is_cut
