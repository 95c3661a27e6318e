"""Stand-ins for packages that a benchmark imports but does not use: videos, uploads and browser viewers."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from unittest.mock import MagicMock


def replace_missing(*names: str) -> None:
    """Put a mock in place of each named package that is not installed."""
    for name in names:
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
