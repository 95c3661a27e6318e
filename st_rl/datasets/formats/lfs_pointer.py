"""Recognizes Git LFS pointers, the small text files in place of data that has not been downloaded."""

from pathlib import Path

from st_rl.datasets.clip import MotionError

_FIRST_LINE = b"version https://git-lfs.github.com/spec/"


def reject_lfs_pointer(path: Path) -> None:
    """MotionError if the file is a Git LFS pointer."""
    with path.open("rb") as file:
        if file.read(len(_FIRST_LINE)) != _FIRST_LINE:
            return
    raise MotionError(
        str(path), "the file", "is a Git LFS pointer, not the motion itself", "download it with: git lfs pull"
    )
