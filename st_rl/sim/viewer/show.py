"""Shows a session in the browser until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from st_rl.sim.envs.legged_task import LeggedTask
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.terrain_walk import TerrainWalk
from st_rl.sim.evaluation.command_grid import task_ranges
from st_rl.sim.viewer.page import ViewerPage
from st_rl.sim.viewer.server import open_server
from st_rl.sim.viewer.session import RealTime, ViewSession

# Seconds between two frames, two updates of plots and bars, and two looks into the run folder.
_FRAME_S, _PANEL_S, _CHECKPOINTS_S = 1 / 30, 0.25, 2.0
_IDLE_S = 0.1


def make_page(server: object, session: ViewSession, checkpoints: Sequence[str]) -> tuple[ViewerPage, Callable]:
    """Build the page of a session; also returns the function that renews its list of checkpoints."""
    task, layout = session.task, session.layout
    page = ViewerPage(server, task.backend.model, layout, session.controls)  # pyright: ignore[reportArgumentType]
    renew = page.add_checkpoint_gui(checkpoints, session.checkpoint)
    if isinstance(task, LeggedWalk):
        page.add_command_gui(task_ranges(task.cfg.commands), session.frame.commands[0].tolist())
    if isinstance(task, LeggedTask):
        page.add_push_gui()
    page.add_time_gui()
    if isinstance(task, TerrainWalk):
        page.add_terrain_gui(task.cfg.terrain_kinds, task.cfg.num_levels, int(task.kind[0]), int(task.level[0]))
    if session.clips:
        page.add_clip_gui(session.clips)
    return page, renew


def show_session(
    session: ViewSession,
    list_checkpoints: Callable[[], Sequence[str]],
    host: str,
    port: int,
    on_open: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Serve a page on which the session runs in real time while a browser is connected; `on_open` gets its address.

    Nothing is simulated without a browser. ViewerError if the page cannot be served.
    """
    server, access = open_server(host, port)
    try:
        page, renew = make_page(server, session, list_checkpoints())
        on_open(access.address)
        real_time, due = RealTime(), {"frame": 0.0, "panels": 0.0, "checkpoints": 0.0}

        def is_due(name: str, interval: float) -> bool:
            now = time.perf_counter()
            if now < due[name]:
                return False
            due[name] = now + interval
            return True

        while not should_stop():
            if not page.is_watched:
                time.sleep(_IDLE_S)
                continue
            session.step()
            if not session.controls.is_paused:
                page.record(session.frame, session.time)
            if is_due("frame", _FRAME_S):
                page.draw(session.frame, session.ghost_qpos())
            if is_due("panels", _PANEL_S):
                page.draw_panels(session.frame)
                page.set_status(describe(session))
            if is_due("checkpoints", _CHECKPOINTS_S):
                renew(list_checkpoints())
            time.sleep(real_time.wait_s(session.task.step_dt, session.controls.speed))
    finally:
        server.stop()


def describe(session: ViewSession) -> str:
    """One line of Markdown about a session."""
    state = "paused" if session.controls.is_paused else f"{session.time:.1f} s"
    line = f"**{session.layout.task}**, {session.checkpoint}, {state}"
    return f"{line}  \n{session.message}" if session.message else line
