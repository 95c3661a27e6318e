"""Training curves in one CSV file."""

import csv
import os
import re
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from st_rl.utils.files import atomic_write, flush_to_disk, name_file, read_text
from st_rl.utils.files.readers import check_columns

_STEP = re.compile(r"-?[0-9]{1,18}")
_REMEDY = "restore it from a copy, or move it away to start a new one"


class CsvWriter:
    """Writes `progress.csv`: one row per step, one column per tag; new tags add columns.

    A row is written when the next step begins, on `flush` and on `close`; only these two flush it to disk. On an
    existing file, as in a resumed training, old rows from this writer's first step on are replaced.
    """

    file_name = "progress.csv"

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.path = Path(log_dir) / self.file_name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._columns = ["step", "wall_time"]
        self._step = 0
        self._row: dict[str, Any] = {}
        # The highest step that this writer has written.
        self._last_step: int | None = None

    def add_scalar(
        self,
        tag: str,
        value: float | Tensor,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
    ) -> None:
        """Set one value in the row of `global_step`; tags over time instead of steps (`.../time`) are skipped."""
        if tag.endswith("/time"):
            return
        step = self._step if global_step is None else int(global_step)
        if step != self._step:
            self._write_row()
        self._step = step
        if not self._row:
            self._row = {"step": step, "wall_time": f"{time.time() if walltime is None else walltime:.3f}"}
        self._row[tag] = float(value)

    def flush(self) -> None:
        """Write the current row and flush the file to disk."""
        self._write_row()
        if self._last_step is not None:
            flush_to_disk(self.path)

    def close(self) -> None:
        """Write the last row."""
        self.flush()

    def _write_row(self) -> None:
        """Append the current row, or rewrite the file if that is not enough."""
        if not self._row:
            return
        row, self._row = self._row, {}
        step = int(row["step"])
        is_continuation = self._last_step is not None and step > self._last_step
        if is_continuation and row.keys() <= set(self._columns):
            with open(self.path, "a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns, restval="").writerow(row)
        else:
            self._rewrite(row)
        self._last_step = step if self._last_step is None else max(step, self._last_step)

    def _rewrite(self, row: dict[str, Any]) -> None:
        """Rewrite the whole file with `row` at its step."""
        rows = {int(old["step"]): old for old in self._read()}
        if self._last_step is None:
            rows = {step: old for step, old in rows.items() if step < row["step"]}
        rows[row["step"]] = {**rows.get(row["step"], {}), **row}
        self._columns += [tag for tag in row if tag not in self._columns]
        with atomic_write(self.path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            writer.writeheader()
            writer.writerows(rows[step] for step in sorted(rows))

    def _read(self) -> list[dict[str, Any]]:
        """Return the complete rows of the file and adopt its columns."""
        if not self.path.exists():
            return []
        lines = read_text(self.path, _REMEDY).splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):  # truncated by a crash
            lines.pop()
        reader = csv.DictReader(lines)
        with name_file(self.path, _REMEDY):
            columns = reader.fieldnames or []
            check_columns(len(columns))
            self._columns += [tag for tag in columns if tag not in self._columns]
            return [
                {tag: value for tag, value in row.items() if tag is not None and value is not None}
                for row in reader
                if _STEP.fullmatch(row.get("step") or "")
            ]
