"""Learning curves of a run."""

import csv
import io
import math
from pathlib import Path

from st_rl.utils.files import name_file, read_text
from st_rl.utils.files.readers import check_columns

Curves = dict[str, tuple[list[float], list[float]]]
"""Steps and values by log tag."""

# Tags with steps in seconds instead of iterations.
_OVER_TIME = "/time"
_REMEDY = "restore it from a copy, or move it away for a report without learning curves"


def read_curves(progress: Path) -> Curves:
    """Read the curves of a `progress.csv`, empty if it is missing; lines and cells that are not numbers are skipped."""
    curves: Curves = {}
    if not progress.is_file():
        return curves
    reader = csv.DictReader(io.StringIO(read_text(progress, _REMEDY), newline=""))
    with name_file(progress, _REMEDY):
        step_column = (reader.fieldnames or ["step"])[0]
        check_columns(len(reader.fieldnames or ()))
        for row in reader:
            step = read_number(row.get(step_column))
            if step is None:
                continue
            for tag, text in row.items():
                value = read_number(text)
                if value is None or tag == step_column or tag is None or tag.endswith(_OVER_TIME):
                    continue
                xs, ys = curves.setdefault(tag, ([], []))
                xs.append(step)
                ys.append(value)
    return curves


def read_number(value: object) -> float | None:
    """Return a finite number or the text of one; None for anything else."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
