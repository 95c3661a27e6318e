"""Stand-ins for packages that a benchmark imports but does not use: videos, uploads and browser viewers."""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from unittest.mock import MagicMock


def replace_missing(*names: str) -> None:
    """Put a mock in place of each named package that is not installed."""
    for name in names:
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))


def import_mjlab() -> None:
    """Import mjlab and register its tasks, with mocks in place of packages that are missing."""
    os.environ.setdefault("IMAGEIO_FFMPEG_EXE", "ffmpeg")
    os.environ.setdefault("MUJOCO_GL", "disable")
    replace_missing("mediapy")
    for _ in range(40):
        try:
            importlib.import_module("mjlab.tasks")
            return
        except ModuleNotFoundError as error:
            if not error.name or error.name.startswith("mjlab"):
                raise
            sys.modules[error.name] = MagicMock(__spec__=ModuleSpec(error.name, None))
