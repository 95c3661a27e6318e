import socket

import numpy as np
import pytest
import torch

from st_rl.sim.tasks import make_task
from st_rl.sim.viewer.server import ViewerError
from st_rl.sim.viewer.training import FRAMES_FILE, TrainingView
from st_rl.sim.viewer.training_page import read_layout
from tests.browser import wait_for

pytest.importorskip("mjviser", reason='pip install "st_rl[view]"')


def test_training_sends_frames_only_while_a_browser_is_connected():
    task = make_task("quadruped-walk", num_envs=3)
    view = TrainingView(task, steps_per_iteration=4, host="127.0.0.1", port=0)
    try:
        layout, frames = read_layout(view._folder)
        actions = torch.zeros(3, 12)
        wait_for(lambda: not frames.is_watched, 10, "the page")
        task.step(actions)
        assert frames.read() is None
        # The process of the page sets the flag again as long as no browser is connected.
        wait_for(lambda: _step_watched(task, actions, frames) is not None, 10, "a frame")
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


def _step_watched(task, actions, frames):
    frames.is_watched = True
    task.step(actions)
    return frames.read()


def test_port_in_use_ends_before_the_training():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        task = make_task("balance", num_envs=2)
        with pytest.raises(ViewerError, match=f"cannot open port {port}"):
            TrainingView(task, 4, "127.0.0.1", port)
    assert task.step_observers == []
