"""Re-exports `DaggerSaver`, which a documented example imports from here."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DaggerSaver":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    # Imported on use, because runners import datasets.
    from st_rl.runners.dagger_saver import DaggerSaver

    return DaggerSaver
