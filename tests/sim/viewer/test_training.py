import socket
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from st_rl.sim.tasks import make_task
from st_rl.sim.viewer.frames import FrameLayout, SharedFrames
from st_rl.sim.viewer.server import ViewerError
from st_rl.sim.viewer.training import FRAMES_FILE, TrainingView
from st_rl.sim.viewer.training_page import TrainingPage, read_layout
from tests.browser import wait_for

pytest.importorskip("mjviser", reason='pip install "st_rl[view]"')


def test_training_sends_frames_only_while_a_browser_is_connected():
    task = make_task("quadruped-walk", num_envs=3)
    view = TrainingView(task, steps_per_iteration=4, host="127.0.0.1", port=0)
    try:
        layout, frames = read_layout(view._folder)
        actions = torch.zeros(3, 12)
        wait_for(lambda: not frames.is_watched, 10, "the page")
        # How the robots start, and nothing else.
        start = frames.read()
        assert start is not None
        np.testing.assert_array_equal(layout.unpack(start[1][0]).qpos, task.backend.qpos.numpy())
        task.step(actions)
        assert frames.read(start[0]) is None
        # The process of the page sets the flag again as long as no browser is connected.
        wait_for(lambda: _step_watched(task, actions, frames, start[0]) is not None, 10, "a frame")
        found = frames.read()
        assert found is not None
        frame = layout.unpack(found[1][0])
        assert np.isfinite(frame.qpos).all()
        assert (frame.qpos.shape, layout.num_robots) == ((3, 19), 3)
        view.after_iteration(5)
        assert frames.iteration == 5
    finally:
        view.close()
    assert view._process.poll() == 0
    assert not (view._folder / FRAMES_FILE).exists()
    assert task.step_observers == []


def _step_watched(task, actions, frames, last):
    frames.is_watched = True
    task.step(actions)
    return frames.read(last)


def test_port_in_use_ends_before_the_training():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        task = make_task("balance", num_envs=2)
        with pytest.raises(ViewerError, match=f"cannot open port {port}"):
            TrainingView(task, 4, "127.0.0.1", port)
    assert task.step_observers == []


def test_rollout_of_a_fast_training_is_played_in_real_time(tmp_path):
    layout = FrameLayout.of_task(make_task("balance", num_envs=1))
    training = SharedFrames(tmp_path / "frames.bin", layout.width, 4, create=True)
    drawn, recorded = [], []
    page = SimpleNamespace(
        controls=SimpleNamespace(is_paused=False),
        draw=lambda frame: drawn.append(round(float(frame.qpos[0, 0]))),
        record=lambda frame, time_s: recorded.append((round(float(frame.qpos[0, 0])), round(time_s / layout.step_dt))),
        draw_panels=lambda frame: None,
        set_status=lambda text: None,
    )
    player = TrainingPage(page, layout, SharedFrames(tmp_path / "frames.bin", layout.width, 4))
    begin = player._read_at
    # An iteration of 4 steps lasts one step of real time; looked at every 1.6 steps of real time.
    for tick in range(10):
        now = 1.6 * tick
        while training.step < 4 * (1 + int(now)):
            steps = training.step + 1 + np.arange(4, dtype=np.float32)
            training.write(np.tile(steps[:, None], (1, layout.width)), int(steps[-1]))
        player.update(begin + now * layout.step_dt)
    # Rows of one rollout follow each other in real time, and each rollout is shown to its end; others are left out.
    assert drawn == [1, 2, 4, 17, 18, 20, 37, 38, 40, 57]
    assert recorded == [(step, step) for step in (1, 2, 3, 4, 17, 18, 19, 20, 37, 38, 39, 40, 57)]
