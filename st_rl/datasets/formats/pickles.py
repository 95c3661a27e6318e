"""Reads pickled motions without executing code."""

from pathlib import Path
from typing import Any

from st_rl.datasets.clip import MotionError
from st_rl.utils.files.plain_pickle import PlainPickleError, load_plain_pickle

PICKLES = (".pkl", ".pickle", ".joblib")


def load_pickle(path: Path) -> Any:
    """The content of a pickle of numpy arrays and plain containers; MotionError for anything else."""
    try:
        return load_plain_pickle(path)
    except PlainPickleError as error:
        remedy = "save it again as a dictionary of numpy arrays, numbers and strings, on the machine that made it"
        raise MotionError(str(path), "the pickle", f"is refused ({error})", remedy) from error
