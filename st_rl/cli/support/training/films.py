"""Films of the policy in the log of a training, rendered by a process beside it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from st_rl.cli.support.command_line import program
from st_rl.cli.support.run_folders.run_folder import RunFolder
from st_rl.cli.support.task_source import is_external
from st_rl.utils.log import logger

if TYPE_CHECKING:
    from st_rl.runners import OnPolicyRunner

FILMS_FOLDER = "films"
SECONDS, WIDTH, HEIGHT = 5.0, 400, 240
_NICENESS = 10
# Films that may fail in a row before no more are recorded.
_MAX_FAILURES = 2
# Time that the last film of a training gets, s.
_LAST_FILM_S = 60.0


@contextmanager
def record_films(runner: OnPolicyRunner, run: RunFolder) -> Iterator[None]:
    """Put a film into the log every `video_interval` iterations of the trainings in the block, if it is set."""
    from st_rl.utils.distributed import is_main

    interval = runner.cfg.get("video_interval")
    if not interval or not is_main():
        yield
        return
    recorder = FilmRecorder(runner, run, int(interval))
    runner.iteration_observers.append(recorder.after_iteration)
    try:
        yield
    finally:
        runner.iteration_observers.remove(recorder.after_iteration)
        recorder.close()


class FilmRecorder:
    """Renders one film at a time; an error is reported and never reaches the training."""

    def __init__(self, runner: OnPolicyRunner, run: RunFolder, interval: int):
        self._runner, self._run, self._interval = runner, run, interval
        self._folder = run.file(FILMS_FOLDER)
        self._process: subprocess.Popen[bytes] | None = None
        self._checkpoint, self._errors = self._folder / "film.pt", self._folder / "film.log"
        self._iteration = 0
        self._failures = 0

    def after_iteration(self, iteration: int) -> None:
        """Log a film that is finished, and begin one where it is due; one that is due during another is left out."""
        try:
            self._collect()
            if iteration % self._interval == 0 and self._process is None and self._failures < _MAX_FAILURES:
                self._start(iteration)
        except Exception as error:  # whatever goes wrong with a film, the training continues
            self._fail(str(error))

    def close(self) -> None:
        """Wait for the film that is being rendered, for a minute at most."""
        if self._process is None:
            return
        try:
            end = time.monotonic() + _LAST_FILM_S
            while self._process.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._collect()
        except Exception as error:
            self._fail(str(error))

    def _video(self, iteration: int) -> Path:
        return self._folder / f"film_{iteration}.mp4"

    def _start(self, iteration: int) -> None:
        """Save the networks and start `st-rl play` on them, at low priority."""
        from st_rl.runners.on_policy_runner import OPTIMIZER_KEYS
        from st_rl.utils.files import plain_value, save_checkpoint

        self._folder.mkdir(exist_ok=True)
        state = {key: value for key, value in self._runner.alg.state_dict().items() if key not in OPTIMIZER_KEYS}
        save_checkpoint(plain_value({**state, "iter": iteration, "infos": None}, "checkpoint"), self._checkpoint)
        command = [*_own_command(), "play", str(self._run.path), "--checkpoint", str(self._checkpoint), "--no-viewer"]
        command += ["--output", str(self._video(iteration)), "--seconds", f"{SECONDS:g}"]
        command += ["--width", str(WIDTH), "--height", str(HEIGHT)]
        task = self._run.task
        if is_external(task):
            command += ["--task", task]
        root = str(Path(__file__).resolve().parents[4])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # One thread and no GPU, which belong to the training; not a rank of torchrun.
        ranks = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
        variables = {key: value for key, value in os.environ.items() if key not in ranks}
        variables |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=variables,
                start_new_session=True,
            )
        self._iteration = iteration
        with suppress(AttributeError, OSError):  # not on Windows
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    def _collect(self) -> None:
        """Log the film of a process that has ended."""
        if self._process is None or self._process.poll() is None:
            return
        code, self._process = self._process.returncode, None
        said = self._errors.read_text(errors="replace").strip().splitlines()
        for file in (self._checkpoint, self._errors):
            file.unlink(missing_ok=True)
        video = self._video(self._iteration)
        if code != 0:
            self._fail(said[-1] if said else f"st-rl play ended with {code}")
            return
        self._failures = 0
        self._runner.log_film(video, video.with_suffix(".gif"), self._iteration)

    def _fail(self, reason: str) -> None:
        self._failures += 1
        end = "; no more films in this training" if self._failures == _MAX_FAILURES else ""
        logger.warning(f"no film of iteration {self._iteration}: {reason}{end}")


def _own_command() -> list[str]:
    """The command line of this program, as a child process can run it: a script of the user registers own tasks."""
    words = shlex.split(program())
    is_script = len(words) == 2 and words[1].endswith(".py")
    return [sys.executable, *(words[1:] if is_script else ("-m", "st_rl"))]
