"""Reads a file of every kind as st_rl's commands and classes do."""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.faults.originals import NUM_ENVS
from st_rl.cli import main
from st_rl.cli.commands.sweep.storage import StudyAddress, open_study
from st_rl.cli.support.run_folders.loaded_run import LoadedRun
from st_rl.cli.support.run_folders.run_folder import RunFolder, find_run
from st_rl.datasets.formats import read_motion
from st_rl.datasets.motion_loader import AMPLoader
from st_rl.loggers.csv_writer import CsvWriter
from st_rl.modules.policy.load import load_policy
from st_rl.runners import OnPolicyRunner
from st_rl.sim.robots import Robot
from st_rl.utils.files.folder_lock import FolderInUseError, FolderLock
from st_rl.utils.files.heartbeat import is_alive


class BareError(Exception):
    """A command ended with an error that it did not expect."""


class OtherWeightsError(Exception):
    """A damaged checkpoint was loaded with other weights."""


class Readers:
    """Reads mutants in place of the originals in a folder."""

    def __init__(self, folder: Path, files: dict[str, Path]):
        self.folder = folder
        self.files = files
        self.run = RunFolder(files["run.json"].parent)
        loaded = LoadedRun(self.run)
        self.runner: OnPolicyRunner = loaded.make_runner(loaded.make_env(NUM_ENVS, "cpu", 1), "cpu")
        self.weights = torch.load(files["checkpoint"], weights_only=True)["model_state_dict"]
        motions = dict.fromkeys((kind for kind in files if kind.startswith("motion")), self._read_motion)
        in_run = dict.fromkeys(("run.json", "config.json"), self._read_settings)
        shown = dict.fromkeys(("eval.json", "play.json", "policy.json"), self._report)
        data = dict.fromkeys(("trajectory pickle", "trajectory npz", "metadata.json"), self._check_dataset)
        self.by_kind: dict[str, Callable[[Path, str], None]] = {
            **(motions | in_run | shown | data),
            "progress.csv": self._read_progress,
            "checkpoint": self._load_checkpoint,
            "heartbeat": lambda path, way: is_alive(path) and None,
            "lock": self._take_lock,
            "sweep.json": lambda path, way: _quietly(find_run, str(path.parent), path.parent),
            "study.log": lambda path, way: (
                open_study(StudyAddress(str(path.parent), "sweep"), 4, 10).get_trials() and None
            ),
            "robot yaml": lambda path, way: Robot.from_file(path) and None,
            "robot mjcf": lambda path, way: Robot.from_file(path) and None,
        }

    def read(self, kind: str, way: str, data: bytes) -> None:
        """Read a mutant; raises what the reader raises."""
        path = self.files[kind]
        original = path.read_bytes()
        path.write_bytes(data)
        try:
            self.by_kind[kind](path, way)
        finally:
            path.write_bytes(original)

    def _read_settings(self, path: Path, way: str) -> None:
        """As `eval` and `report` read them; `latest` must find the other run."""
        latest = _quietly(find_run, "latest", self.folder / "runs")
        if not latest.path.is_dir():
            raise BareError("no run is the latest")
        self._report(path, way)
        LoadedRun(self.run)
        load_policy(self.run.path)

    def _report(self, path: Path, way: str) -> None:
        _run_command("report", str(self.run.path), "--output", str(self.folder / "report.html"))

    def _read_progress(self, path: Path, way: str) -> None:
        self._report(path, way)
        folder = self.folder / "resumed"
        folder.mkdir(exist_ok=True)
        copy = folder / path.name
        shutil.copy(path, copy)
        writer = CsvWriter(folder)
        try:
            writer.add_scalar("a", 1.0, 5)
            writer.flush()
        except ValueError as error:
            # The writer reads its own copy.
            raise ValueError(str(error).replace(str(copy), str(path))) from error

    def _check_dataset(self, path: Path, way: str) -> None:
        _run_command("dataset", "check", str(self.files["metadata.json"].parent))

    def _read_motion(self, path: Path, way: str) -> None:
        read_motion(path)
        AMPLoader("cpu", 1.0 / 30.0, motion_files=path)

    def _take_lock(self, path: Path, way: str) -> None:
        with contextlib.suppress(FolderInUseError):  # the process that wrote the original is running
            FolderLock(path.parent).release()

    def _load_checkpoint(self, path: Path, way: str) -> None:
        policy = load_policy(self.run.path, path)
        self.runner.load(path)
        if way in ("flip", "truncate"):
            for loaded in (policy.actor_critic.state_dict(), self.runner.alg.actor_critic.state_dict()):
                if not all(torch.equal(loaded[name], weights) for name, weights in self.weights.items()):
                    raise OtherWeightsError("the weights differ")


def _quietly(function: Callable[..., RunFolder], *arguments: object) -> RunFolder:
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*arguments)


def _run_command(*arguments: str) -> None:
    """Run a command of `st-rl`; ValueError with its message, BareError for an unexpected one."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(list(arguments))
    message = errors.getvalue() + output.getvalue()
    if "unexpected" in message or "Traceback" in message:
        raise BareError(message)
    if code != 0:
        raise ValueError(message)
