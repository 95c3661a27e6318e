"""Files that cannot be read."""

import os
from collections.abc import Sequence

from st_rl.utils.log import logger

_NAMED_PATHS = 5


class DamagedFiles:
    """Remembers files that cannot be read, with the reason; warns once of each."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def report(self, damaged: Sequence[tuple[str, str]]) -> None:
        """Add files, each with a reason; not those that were said before or taken back by their writer."""
        for path, reason in damaged:
            if path not in self._reasons and os.path.exists(path):
                self._reasons[path] = reason
                logger.warning(f"skipped {path}: {reason}")

    def __str__(self) -> str:
        shown = [f"{path} ({reason})" for path, reason in list(self._reasons.items())[:_NAMED_PATHS]]
        more = len(self._reasons) - len(shown)
        return (
            "; ".join(shown) + (f" and {more} more" if more > 0 else "") + "; st-rl dataset repair removes such files"
        )
