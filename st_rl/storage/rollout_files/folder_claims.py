"""Trajectory folders that one writer has for itself, whoever else writes beside it."""

import contextlib
import os

from st_rl.storage.rollout_files import layout


class FolderClaims:
    """Hands out indices of trajectories whose folders nobody else writes to.

    A folder belongs to whoever made it: making a folder that exists fails, on shared file systems too.
    """

    def __init__(self, save_dir: str):
        self.save_dir = save_dir
        known = layout.own_trajectories(save_dir)
        self.is_fresh = not known
        indices = [(layout.trajectory_index(folder), folder) for folder in known]
        self._known = [(index, folder) for index, folder in indices if index is not None]
        self._next_index = 1 + max((index for index, _ in self._known), default=-1)

    def claim_first(self, count: int, reuse_empty: bool) -> list[int]:
        """Indices for `count` robots: folders that were left empty, where nobody can be using them, then new ones."""
        empty = [index for index, folder in self._known if not layout.frame_files(folder)] if reuse_empty else []
        claimed = sorted(empty)[:count]
        return claimed + [self.claim_next() for _ in range(count - len(claimed))]

    def claim_next(self) -> int:
        """The next index whose folder does not exist yet; makes it."""
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
                # Only an empty folder goes: what somebody put there stays.
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
