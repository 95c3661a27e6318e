"""Run folders: the files in them, and how a user names one."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from st_rl.cli.support.command_line import CommandError, UsageError, conf, program, quote
from st_rl.cli.support.run_folders.pretrained import PRETRAINED_PREFIX, copy_pretrained

RUNS = Path("runs")
RUN_FILE = "run.json"
CONFIG_FILE = "config.json"
PROGRESS_FILE = "progress.csv"
BEST_FILE = "best.pt"
TEACHER_FILE = "teacher.pt"
EVAL_FILE = "eval.json"
VIDEO_FILE = "play.mp4"
TRACES_FILE = "play.json"
POLICY_FILE = "policy.onnx"
EXPORT_FILE = "policy.json"
REPORT_FILE = "report.html"
SWEEP_FILE = "sweep.json"
TIMESTAMP = "%Y-%m-%d_%H-%M-%S"
CHANGED = "changed_settings"
"""Key of `run.json`: settings that differ from the defaults of the task, dotted name -> [default, value]."""
PARENTS = "parents"
"""Key of `run.json`: the run that a training started from, the run that that one started from, and so on."""
ENDED = "ended"
"""Key of `run.json`: how and when a training ended."""
_SHOWN_RUNS = 8
# Beginnings of names in which the colon does not separate a checkpoint.
_NAME_PREFIXES = ("gym:", "mjlab:", PRETRAINED_PREFIX)
# Commands that write a file of a run.
_WRITERS = {EVAL_FILE: "eval", TRACES_FILE: "play", VIDEO_FILE: "play", EXPORT_FILE: "export"}


_TIME = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}")


class RunFolder:
    """The folder of a training run."""

    def __init__(self, path: Path):
        self.path = path

    def file(self, name: str) -> Path:
        """Return the path of a file of the run."""
        return self.path / name

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run; CommandError if it is missing or corrupt."""
        from st_rl.utils.files import read_json_object

        try:
            return read_json_object(self.file(name), self.remedy(name))
        except FileNotFoundError:
            raise CommandError(f"{self.path} has no {name}: it is not a run of st-rl train") from None
        except (OSError, ValueError) as error:
            raise CommandError(str(error)) from error

    def remedy(self, name: str) -> str:
        """Return how to get a damaged file of the run again."""
        if name in _WRITERS:
            return f"write it again with st-rl {_WRITERS[name]} {quote(self.path)}, or delete it"
        return "restore it from a copy, or name another run"

    def read_optional_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file of the run, or return None if it does not exist."""
        return self.read_json(name) if self.file(name).is_file() else None

    @property
    def settings(self) -> dict[str, Any]:
        """`run.json`: the task and the options of `st-rl train`."""
        return self.read_json(RUN_FILE)

    @property
    def task(self) -> str:
        """Task of the run; CommandError if only a script can build its environment."""
        settings = self.settings
        if settings.get("task") is None:
            raise CommandError(
                f"{self.file(RUN_FILE)} names no task: the run was trained from Python on "
                f"{settings.get('environment', 'an environment')}, which st-rl cannot build: evaluate and play it in "
                "Python with load_policy(run). st-rl report and st-rl export do not need the environment"
            )
        return str(settings["task"])

    @property
    def has_checkpoints(self) -> bool:
        """Whether a checkpoint has been saved."""
        return self.file(BEST_FILE).is_file() or any(self.path.glob("model_*.pt"))

    @property
    def iterations(self) -> list[int]:
        """Iterations with a checkpoint, in order."""
        names = (path.stem.removeprefix("model_") for path in self.path.glob("model_*.pt"))
        return sorted(int(name) for name in names if name.isdecimal())

    def checkpoint(self, choice: str = "best") -> Path:
        """Return a checkpoint: `best` (if there is none, the newest), `last`, an iteration number, or a file.

        CommandError if the run has no checkpoints, or not that one.
        """
        from st_rl.utils.files.checkpoint import newest_checkpoint

        best = self.file(BEST_FILE)
        newest = newest_checkpoint(self.path) or best
        if not newest.is_file():
            raise CommandError(
                f"{self.path} has no checkpoints (model_*.pt): wait until the first one is saved, start the "
                f"training again with the same command and --log-dir {quote(self.path)}, or name another run"
            )
        if choice in ("best", "last"):
            return best if choice == "best" and best.is_file() else newest
        named = self.file(f"model_{choice}.pt") if choice.isdecimal() else Path(choice)
        for path in (named, self.path / named):
            if path.is_file():
                return path
        known = [*(["best"] if best.is_file() else []), *map(str, self.iterations)]
        raise CommandError(f"no checkpoint '{choice}' in {self.path}; it has: {', '.join(known)}")


@dataclass
class PolicyOptions:
    """Options of commands that read the policy of a run."""

    run: Annotated[str, conf("arg", metavar="RUN")]
    """Run: its folder, the beginning of its name, a task (its newest run), latest, or pretrained:NAME; RUN:CHECKPOINT
    names a checkpoint too."""
    checkpoint: str = "best"
    """Checkpoint: best, last, an iteration number, or a file."""


@dataclass
class RunOptions(PolicyOptions):
    """Options of commands that also build the task of the run."""

    task: str | None = None
    """Task of the run, to confirm that gym:... or mjlab:... in its run.json may import code."""


class PolicyAddress(NamedTuple):
    """What a user types for a trained policy: `RUN` or `RUN:CHECKPOINT`."""

    run: str
    """Run: its folder, the beginning of its name, a task (its newest run), or latest."""
    checkpoint: str
    """Checkpoint: best, last, an iteration number, or a file."""

    @classmethod
    def parse(cls, text: str, checkpoint: str = "best") -> PolicyAddress:
        """Split at the last colon, unless it belongs to the run's name; `checkpoint` if the text names none."""
        run, colon, named = text.rpartition(":")
        if not colon or f"{run}:" in _NAME_PREFIXES or Path(text).expanduser().exists():
            return cls(text, checkpoint)
        if not run or not named:
            raise UsageError(f"'{text}' lacks a {'checkpoint' if run else 'run'}: type RUN or RUN:CHECKPOINT")
        return cls(run, named)


def find_policy(name: str, checkpoint: str = "best", root: Path = RUNS) -> tuple[RunFolder, Path]:
    """Find the run and the checkpoint that a user names, as `RUN` or `RUN:CHECKPOINT`.

    `checkpoint` is the one of a name without it. UsageError or CommandError if there is no such run or checkpoint.
    """
    address = PolicyAddress.parse(name, checkpoint)
    run = find_run(address.run, root)
    return run, run.checkpoint(address.checkpoint)


def find_run(name: str, root: Path = RUNS, announce: bool = True) -> RunFolder:
    """Find the run that a user names and, unless the name is its folder, print which one it is (with `announce`).

    A name is a folder, `latest`, a task (its newest run), the beginning of a run's name, or `pretrained:NAME`, which is
    copied from the package. A folder of runs stands for the newest of them, the folder of a sweep for its best trial.
    """
    run = _find_run(name, root)
    if announce and run.path != Path(name).expanduser():
        print(f"Run: {run.path}", flush=True)
    return run


def _find_run(name: str, root: Path) -> RunFolder:
    if name.startswith(PRETRAINED_PREFIX):
        return RunFolder(copy_pretrained(name, root))
    folder = Path(name).expanduser()
    if folder.is_file() and folder.suffix == ".pt":
        raise UsageError(f"{name} is a checkpoint: name its folder {folder.parent}, and --checkpoint {folder.name}")
    best_trial = _best_trial(folder)
    if best_trial is not None:
        return RunFolder(best_trial)
    if folder.is_dir():
        is_run = (folder / RUN_FILE).is_file() or any(folder.glob("model_*.pt"))
        holds_runs = folder.resolve() == root.resolve() or not is_run
        return ((list_runs(folder) if holds_runs else []) or [RunFolder(folder)])[-1]
    runs = list_runs(root)
    if not runs:
        raise UsageError(f"no run '{name}': there are no runs in {root}/; start one with st-rl train TASK")
    if name == "latest":
        return runs[-1]
    of_task = [run for run in runs if run.path.parent.relative_to(root).as_posix() == _file_name(name)]
    if of_task:
        return of_task[-1]
    matches = [
        run for run in runs if run.path.name.startswith(name) or run.path.relative_to(root).as_posix().startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    shown = ", ".join(str(run.path) for run in (matches or runs)[-_SHOWN_RUNS:])
    if not matches:
        raise UsageError(f"no run '{name}'; the newest runs: {shown}")
    raise UsageError(f"{len(matches)} runs begin with '{name}', name one of them: {shown}")


def _best_trial(folder: Path) -> Path | None:
    """Return the folder of a sweep's best trial; None for any other folder."""
    if not (folder / SWEEP_FILE).is_file():
        return None
    number = _read_optional(folder / SWEEP_FILE).get("best_trial")
    return folder / f"trial_{number}" if type(number) is int else None


def list_runs(root: Path = RUNS) -> list[RunFolder]:
    """Return all runs under a folder, the newest last."""
    found = []
    for path in root.rglob(RUN_FILE) if root.is_dir() else ():
        started = str(_read_optional(path).get("started", ""))
        # A damaged run is never the newest.
        found.append((started if _TIME.match(started) else "", str(path.parent)))
    return [RunFolder(Path(folder)) for _, folder in sorted(found)]


def _read_optional(path: Path) -> dict[str, Any]:
    """Read a JSON file; empty if it is damaged."""
    from st_rl.utils.files import read_json_object

    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return {}


def new_run_folder(task: str, name_format: str = TIMESTAMP, root: Path = RUNS) -> Path:
    """Return a path for a new run that does not exist yet: `root/TASK/TIME`."""
    timestamp = time.strftime(name_format)
    folder = root / _file_name(task) / timestamp
    number = 2
    while folder.exists():
        folder, number = folder.with_name(f"{timestamp}-{number}"), number + 1
    return folder


def make_run_folder(path: Path | None, task: str) -> RunFolder:
    """Create the folder of a new run, `runs/TASK/TIME` if `path` is None; UsageError if it contains checkpoints.

    A run without a checkpoint has nothing to resume: its files are replaced.
    """
    run = RunFolder(path or new_run_folder(task))
    make_writable(run.path, "choose another with --log-dir")
    if run.has_checkpoints:
        raise UsageError(
            f"{run.path} already contains a run: resume it with {program()} resume {quote(run.path)}, or "
            "choose another --log-dir"
        )
    return run


def _file_name(task: str) -> str:
    """Return the name of a task without characters that are special in paths."""
    return re.sub(r"[^\w.-]+", "-", task).strip("-")


def writable_file(path: Path) -> Path:
    """Return `path` after creating its folder; CommandError if it cannot be written."""
    if path.is_dir():
        raise CommandError(f"{path} is a folder: name a file in it with --output")
    make_writable(path.parent, "choose another place with --output")
    return path


def make_writable(folder: Path, remedy: str = "copy the run to a folder of yours") -> None:
    """Create a folder; CommandError with the remedy if it cannot be created or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot create the folder {folder}: {error.strerror or error}; {remedy}") from error
    if not os.access(folder, os.W_OK):
        raise CommandError(f"no permission to write to the folder {folder}; {remedy}")
