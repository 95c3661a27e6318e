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

# Seconds between two frames, between two updates of plots and bars, and between two looks for a browser.
_FRAME_S, _PANEL_S, _IDLE_S = 0.1, 1.0, 0.2
_NICENESS = 10


def read_layout(folder: Path) -> tuple[FrameLayout, SharedFrames]:
    """Read what the training wrote into the folder."""
    settings = json.loads((folder / LAYOUT_FILE).read_text())
    layout = FrameLayout(**settings["layout"])
    return layout, SharedFrames(folder / FRAMES_FILE, layout.width, settings["capacity"])


class TrainingPage:
    """Draws the rows of a training as they come, spread over the time that an iteration takes."""

    def __init__(self, page: ViewerPage, layout: FrameLayout, frames: SharedFrames):
        self._page, self._layout, self._frames = page, layout, frames
        self._sequence = 0
        self._rows: list[Frame] = []
        self._interval = _FRAME_S
        self._read_at = self._panels_at = time.perf_counter()
        self._steps = 0

    def update(self) -> None:
        """Draw the next frame, if there is one."""
        now = time.perf_counter()
        found = self._frames.read(self._sequence)
        if found is not None:
            self._sequence, rows = found
            self._rows = [self._layout.unpack(row) for row in rows]
            # Played in the time that the last rows took to come.
            self._interval = max(_FRAME_S, (now - self._read_at) / max(1, len(self._rows)))
            self._read_at = now
        if not self._rows or self._page.controls.is_paused:
            return
        index = min(len(self._rows) - 1, int((now - self._read_at) / self._interval))
        frame = self._rows[index]
        self._page.record(frame, self._steps * self._layout.step_dt)
        self._steps += 1
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
    while not is_over.is_set():
        frames.is_watched = page.is_watched
        if frames.is_watched:
            drawn.update()
        is_over.wait(_FRAME_S if frames.is_watched else _IDLE_S)
    os._exit(0)


if __name__ == "__main__":
    main()
