"""Run folders: where they are, what they hold, and how a user names one."""

import json
import os
import re
from pathlib import Path
from typing import Any

from st_rl.cli.support.command_line import CommandError, UsageError

RUNS = Path("runs")
RUN_FILE = "run.json"
CONFIG_FILE = "config.json"
BEST_FILE = "best.pt"
TEACHER_FILE = "teacher.pt"
SWEEP_FILE = "sweep.json"
_SHOWN_RUNS = 8


class RunFolder:
    """A folder that a training filled; every file of it has its name here."""

    def __init__(self, path: Path):
        self.path = path

    def file(self, name: str) -> Path:
        """A file of the run."""
        return self.path / name

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the run; CommandError when it is missing or damaged."""
        path = self.file(name)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CommandError(f"{self.path} has no {name}: it is not a run that st-rl train started") from None
        except (OSError, ValueError) as error:
            raise CommandError(f"cannot read {path}: {error}") from error

    def read_json_if_there(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, or None."""
        return self.read_json(name) if self.file(name).is_file() else None

    @property
    def settings(self) -> dict[str, Any]:
        """What `st-rl train` was asked to do."""
        return self.read_json(RUN_FILE)

    def checkpoint(self, choice: str = "best") -> Path:
        """A checkpoint: `best` (else the newest), `last`, an iteration number, or a file.

        CommandError when the run holds none, or not that one.
        """
        from st_rl.utils.files import newest_checkpoint

        newest = newest_checkpoint(self.path)
        best = self.file(BEST_FILE)
        if newest is None and not best.is_file():
            raise CommandError(
                f"{self.path} has no checkpoints (model_*.pt): let the training reach its first save, or name another"
            )
        if choice == "best":
            return best if best.is_file() else _not_none(newest)
        if choice == "last":
            return newest if newest is not None else best
        named = self.file(f"model_{choice}.pt") if choice.isdecimal() else Path(choice)
        for path in (named, self.path / named):
            if path.is_file():
                return path
        raise CommandError(f"no checkpoint '{choice}' in {self.path}; it holds {self._checkpoint_list()}")

    def _checkpoint_list(self) -> str:
        names = [path.stem.removeprefix("model_") for path in self.path.glob("model_*.pt")]
        numbers = sorted(int(name) for name in names if name.isdecimal())
        best = ["best"] if self.file(BEST_FILE).is_file() else []
        return ", ".join([*best, *map(str, numbers)])


def _not_none(path: Path | None) -> Path:
    if path is None:
        raise CommandError("the run has no checkpoints")
    return path


def find_run(name: str, root: Path = RUNS) -> RunFolder:
    """The run that a user means: a folder, `latest`, a task (its newest run), or the beginning of a run's name.

    The folder of a sweep means its best trial.
    """
    folder = Path(name).expanduser()
    if folder.is_file() and folder.suffix == ".pt":
        raise UsageError(f"{name} is a checkpoint: name its folder {folder.parent}, and --checkpoint {folder.name}")
    best_trial = _best_trial(folder)
    if best_trial is not None:
        return RunFolder(best_trial)
    if folder.is_dir() and (folder.resolve() == root.resolve() or not _is_run(folder)) and list_runs(folder):
        return list_runs(folder)[-1]
    if folder.is_dir():
        return RunFolder(folder)
    runs = list_runs(root)
    if not runs:
        raise UsageError(f"no run '{name}': the folder {root}/ holds no runs; start one with st-rl train TASK")
    if name == "latest":
        return runs[-1]
    of_task = [run for run in runs if run.path.parent.relative_to(root).as_posix() == _safe_name(name)]
    if of_task:
        return of_task[-1]
    matches = [run for run in runs if _starts(run, root, name)]
    if len(matches) == 1:
        return matches[0]
    shown = ", ".join(str(run.path) for run in (matches or runs)[-_SHOWN_RUNS:])
    if not matches:
        raise UsageError(f"no run '{name}'; the newest runs: {shown}")
    raise UsageError(f"'{name}' is the beginning of {len(matches)} runs, name one of them: {shown}")


def _best_trial(folder: Path) -> Path | None:
    """The folder of a sweep's best trial; None for any other folder."""
    try:
        number = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))["best_trial"]
    except (OSError, ValueError, KeyError):
        return None
    return None if number is None else folder / f"trial_{number}"


def _starts(run: RunFolder, root: Path, name: str) -> bool:
    return run.path.name.startswith(name) or run.path.relative_to(root).as_posix().startswith(name)


def _is_run(folder: Path) -> bool:
    return (folder / RUN_FILE).is_file() or any(folder.glob("model_*.pt"))


def list_runs(root: Path = RUNS) -> list[RunFolder]:
    """All runs under a folder, the newest last."""
    found = []
    for path in root.rglob(RUN_FILE) if root.is_dir() else ():
        try:
            started = str(json.loads(path.read_text(encoding="utf-8")).get("started", ""))
        except (OSError, ValueError, AttributeError):
            started = ""
        found.append((started, str(path.parent)))
    return [RunFolder(Path(folder)) for _, folder in sorted(found)]


def new_run_folder(task: str, timestamp: str, root: Path = RUNS) -> Path:
    """A name for a new run that no other run has."""
    folder = root / _safe_name(task) / timestamp
    number = 2
    while folder.exists():
        folder, number = folder.with_name(f"{timestamp}-{number}"), number + 1
    return folder


def _safe_name(task: str) -> str:
    """A task's name without characters that file systems dislike."""
    return re.sub(r"[^\w.-]+", "-", task).strip("-")


def writable_file(path: Path) -> Path:
    """A file that a command may write, or one line on why it may not."""
    if path.is_dir():
        raise CommandError(f"{path} is a folder: name a file in it with --output")
    make_writable(path.parent, "choose another place with --output")
    return path


def make_writable(folder: Path, remedy: str) -> None:
    """Create a folder, or say in one line why that cannot be and what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot create the folder {folder}: {error.strerror or error}; {remedy}") from error
    if not os.access(folder, os.W_OK):
        raise CommandError(f"no permission to write to the folder {folder}; {remedy}")
