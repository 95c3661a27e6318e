"""Re-exports `DaggerSaver`, which a documented example imports from here."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # At the point of use: savers stand on runners, and runners on data sets.
    if name != "DaggerSaver":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return importlib.import_module("st_rl.runners.dagger_saver").DaggerSaver
