"""Whether there is a screen to show something on."""

import os
import platform


def has_screen() -> bool:
    """Whether a window could be opened."""
    if platform.system() == "Linux":
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True
