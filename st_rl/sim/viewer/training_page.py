"""The process that serves the page of a training: python -m st_rl.sim.viewer.training_page FOLDER HOST PORT."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from st_rl.sim.require import mujoco
from st_rl.sim.viewer.controls import Controls
from st_rl.sim.viewer.frames import Frame, FrameLayout, SharedFrames
from st_rl.sim.viewer.page import ViewerPage
from st_rl.sim.viewer.server import ViewerError, open_server
from st_rl.sim.viewer.training import FRAMES_FILE, LAYOUT_FILE, MODEL_FILE

# Seconds between two frames, the same with rows of whole rollouts, between two updates of plots and bars, and between
# two looks for a browser.
_FRAME_S, _ROLLOUT_FRAME_S, _PANEL_S, _IDLE_S = 0.1, 0.04, 1.0, 0.2
# Slowest playback of the rows of a rollout, times real time.
_SLOWEST = 5.0
_NICENESS = 10


def read_layout(folder: Path) -> tuple[FrameLayout, SharedFrames]:
    """Read what the training wrote into the folder."""
    settings = json.loads((folder / LAYOUT_FILE).read_text())
    layout = FrameLayout(**settings["layout"])
    return layout, SharedFrames(folder / FRAMES_FILE, layout.width, settings["capacity"])


class TrainingPage:
    """Draws the rows of a training as they come.

    The rows of a whole rollout are played in real time, or slower if they come less often; rollouts that come meanwhile
    are left out, so that one sees how the robots move.
    """

    def __init__(self, page: ViewerPage, layout: FrameLayout, frames: SharedFrames):
        self._page, self._layout, self._frames = page, layout, frames
        self._sequence = self._step = self._recorded = 0
        self._rows: list[Frame] = []
        self._interval = layout.step_dt
        self._read_at = self._panels_at = time.perf_counter()

    def _read(self, now: float) -> None:
        """Read new rows, if there are any."""
        found = self._frames.read(self._sequence)
        if found is None:
            return
        self._sequence, rows = found
        before, self._step, step_dt = self._step, self._frames.step, self._layout.step_dt
        # Played at the pace of the training, but not for minutes after it has paused.
        pace = (now - self._read_at) / max(1, self._step - before) if len(rows) > 1 else 0.0
        self._interval = min(max(step_dt, pace), _SLOWEST * step_dt)
        self._rows = [self._layout.unpack(row) for row in rows]
        self._read_at, self._recorded = now, 0

    def update(self, now: float) -> None:
        """Draw the frame of the time `now`, s, if there is one."""
        if now - self._read_at >= self._interval * len(self._rows):
            self._read(now)
        if not self._rows or self._page.controls.is_paused:
            return
        index = min(len(self._rows) - 1, int((now - self._read_at) / self._interval))
        first = self._step - len(self._rows) + 1
        for row in range(self._recorded, index + 1):
            self._page.record(self._rows[row], (first + row) * self._layout.step_dt)
        self._recorded = max(self._recorded, index + 1)
        frame = self._rows[index]
        self._page.draw(frame)
        if now - self._panels_at >= _PANEL_S:
            self._panels_at = now
            self._page.draw_panels(frame)
            self._page.set_status(f"**{self._layout.task}**, iteration {self._frames.iteration}")


def main() -> None:
    """Serve the page until the training closes its end of standard input."""
    folder, host, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with contextlib.suppress(AttributeError, OSError):  # not on Windows
        os.nice(_NICENESS)
    try:
        layout, frames = read_layout(folder)
        server, access = open_server(host, port)
    except (OSError, ViewerError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    page = ViewerPage(server, mujoco.MjModel.from_binary_path(str(folder / MODEL_FILE)), layout, Controls())
    print(json.dumps({"address": access.address}), flush=True)
    is_over = threading.Event()
    # The training may be killed: its end of the pipe is then closed by the system.
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    drawn = TrainingPage(page, layout, frames)
    frame_s = _FRAME_S if frames.capacity == 1 else _ROLLOUT_FRAME_S
    while not is_over.is_set():
        frames.is_watched = page.is_watched
        if frames.is_watched:
            drawn.update(time.perf_counter())
        is_over.wait(frame_s if frames.is_watched else _IDLE_S)
    os._exit(0)


if __name__ == "__main__":
    main()
