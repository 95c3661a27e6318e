"""Shows the robots of a running training: their states go to a page in a process of its own.

The training never waits for the page: it writes rows into a shared file while a browser is connected, and nothing
otherwise. The process of the page runs at low priority and ends with the training.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from st_rl.sim.envs.task import StepOutcome, Task
from st_rl.sim.require import mujoco
from st_rl.sim.viewer.frames import FrameLayout, SharedFrames
from st_rl.sim.viewer.server import ViewerError, claim_port
from st_rl.utils.log import logger

MODEL_FILE, LAYOUT_FILE, FRAMES_FILE, LOG_FILE = "model.mjb", "layout.json", "frames.bin", "log.txt"
_START_S = 60.0
# Shortest time between two rows of a training on a CPU, s.
_ROW_S = 0.03


class TrainingView:
    """Serves a page with the first robots of a task that is being trained."""

    def __init__(self, task: Task, steps_per_iteration: int, host: str, port: int):
        """Start the page; ViewerError if it cannot be served."""
        # Before anything is started, so that a port in use is an error at once.
        port = claim_port(host, port)
        self._task = task
        self._layout = FrameLayout.of_task(task)
        self._pack = self._layout.packer(task)
        self._folder = Path(tempfile.mkdtemp(prefix="st_rl_view_"))
        # On a GPU a whole rollout is one captured graph: the page gets its steps together, when the iteration is over.
        self._is_cuda = torch.device(task.device).type == "cuda"
        self._capacity = steps_per_iteration if self._is_cuda else 1
        self._frames = self._write_files()
        self._rows = torch.zeros(self._capacity, self._layout.width, device=task.device)
        self._slot = self._step = 0
        self._next_row = 0.0
        self._copy = _DeviceCopy(self._rows) if self._is_cuda else None
        # Until the first step, the page shows how the robots start.
        self._pack(self._rows[0], torch.zeros(len(self._layout.reward_names), device=task.device))
        self._frames.write(self._rows[:1].cpu().numpy())
        self._process, self.address = self._start(host, port)
        task.step_observers.append(self._observe)

    def _write_files(self) -> SharedFrames:
        layout = self._layout
        mujoco.mj_saveModel(self._task.backend.model, str(self._folder / MODEL_FILE))
        settings = {"layout": dataclasses.asdict(layout), "capacity": self._capacity}
        (self._folder / LAYOUT_FILE).write_text(json.dumps(settings))
        return SharedFrames(self._folder / FRAMES_FILE, layout.width, self._capacity, create=True)

    def _start(self, host: str, port: int) -> tuple[subprocess.Popen[str], str]:
        """Start the process of the page and return it with the address that it prints."""
        command = [sys.executable, "-m", "st_rl.sim.viewer.training_page", str(self._folder), host, str(port)]
        root = str(Path(__file__).resolve().parents[3])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # No CUDA: the page draws in the browser, and a second context would take memory from the training.
        variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (self._folder / LOG_FILE).open("w") as log:
            # In a session of its own, so that Ctrl-C stops the training only, which then closes the page.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=variables,
                start_new_session=True,
            )
        line = process.stdout.readline() if process.stdout is not None else ""
        answer = json.loads(line) if line else {"error": self._describe_failure()}
        if "error" in answer:
            process.wait(_START_S)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ViewerError(answer["error"])
        return process, answer["address"]

    def _describe_failure(self) -> str:
        """Return the last line that the process of the page logged before it ended."""
        lines = (self._folder / LOG_FILE).read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"the process of the viewer ended: {said[-1] if said else 'without a message'}"

    def _observe(self, outcome: StepOutcome) -> None:
        """Write a row after a step of the task; while a rollout is captured, the copy becomes a part of the graph."""
        if self._is_cuda:
            self._pack(self._rows[self._slot], outcome.log)
            self._slot = (self._slot + 1) % self._capacity
            return
        self._step += 1
        now = time.perf_counter()
        if self._frames.is_watched and now >= self._next_row:
            self._next_row = now + _ROW_S
            self._pack(self._rows[0], outcome.log)
            self._frames.write(self._rows.numpy(), self._step)

    def after_iteration(self, iteration: int) -> None:
        """Tell the page about an iteration; on a GPU, also copy the rows of its rollout without waiting for them."""
        self._frames.iteration = iteration
        if self._copy is None or not self._frames.is_watched:
            return
        rows = self._copy.take()
        if rows is not None:
            self._frames.write(rows, (iteration - 1) * self._capacity)
        self._copy.start()

    def close(self) -> None:
        """End the page; the training continues without it."""
        if self._observe in self._task.step_observers:
            self._task.step_observers.remove(self._observe)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            logger.warning("the process of the viewer did not end and is killed")
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _DeviceCopy:
    """Copies a tensor from a GPU to pinned memory on a stream of its own; neither host nor training waits for it."""

    def __init__(self, source: torch.Tensor):
        self._source = source
        self._target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        self._stream = torch.cuda.Stream(source.device)
        self._done = torch.cuda.Event()
        self._is_started = False

    def start(self) -> None:
        """Copy the values as they are after the work that is queued now; nothing happens while a copy is under way.

        The training may overwrite rows during the copy: a robot is then shown one rollout later, which is not visible.
        """
        if self._is_started:
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._source.device))
        with torch.cuda.stream(self._stream):
            self._target.copy_(self._source, non_blocking=True)
            self._done.record(self._stream)
        self._is_started = True

    def take(self) -> np.ndarray | None:
        """Return the copied values once; None if there are none yet."""
        if not self._is_started or not self._done.query():
            return None
        self._is_started = False
        return self._target.numpy()
