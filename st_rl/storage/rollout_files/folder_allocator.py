"""Allocates trajectory folders, also when several processes write to the same directory."""

import contextlib
import os

from st_rl.storage.rollout_files import layout


class FolderAllocator:
    """Allocates trajectory indices, and folders that no other process writes to.

    A folder belongs to the process that created it: `mkdir` fails if it exists, on shared file systems too.
    """

    def __init__(self, save_dir: str):
        self.save_dir = save_dir
        known = layout.own_trajectories(save_dir)
        self.is_fresh = not known
        digits = {os.path.basename(folder).removeprefix(layout.TRAJECTORY_PREFIX): folder for folder in known}
        self._known = [(int(index), folder) for index, folder in digits.items() if index.isdecimal()]
        self._next_index = 1 + max((index for index, _ in self._known), default=-1)

    def allocate(self, count: int, reuse_empty: bool) -> list[int]:
        """Allocate `count` indices; empty folders first if `reuse_empty`, which needs that no other process runs.

        Further empty folders, of killed processes, are then removed.
        """
        empty = sorted(index for index, folder in self._known if reuse_empty and not layout.frame_files(folder))
        reused = empty[:count]
        self.release(empty[count:])
        return reused + [self.allocate_next() for _ in range(count - len(reused))]

    def allocate_next(self) -> int:
        """Create the folder of the next free index and return the index."""
        while True:
            index = self._next_index
            self._next_index += 1
            try:
                os.mkdir(layout.trajectory_folder(self.save_dir, index))
            except FileExistsError:
                continue
            return index

    def release(self, indices: list[int]) -> None:
        """Remove the folders of these trajectories that hold no frames."""
        for index in indices:
            folder = layout.trajectory_folder(self.save_dir, index)
            if not layout.frame_files(folder):
                # rmdir removes empty folders only: files of others are kept.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
