import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import mujoco
import numpy as np
import pytest
import torch

from st_rl.sim.tasks import make_task
from st_rl.sim.viewer.height_fields import height_field_mesh
from st_rl.sim.viewer.page import camera_view, reward_bars, robot_size, without_actuators
from st_rl.sim.viewer.session import ViewSession
from tests.browser import CHROMIUM, Browser, wait_for

pytest.importorskip("mjviser", reason='pip install "st_rl[view]"')


def make_session(name, num_envs=1):
    task = make_task(name, num_envs=num_envs)

    def load(checkpoint):
        return lambda obs: torch.zeros(len(obs), task.num_actions)

    return ViewSession(task, load("best.pt"), load, "best.pt")


@pytest.mark.parametrize(
    "name",
    ["quadruped-walk", "quadruped-rough", "quadruped-parkour", "quadruped-amp", "quadruped-track", "balance"],
)
def test_every_kind_of_task_is_drawn_with_all_its_decoration(name):
    from st_rl.sim.viewer.server import open_server
    from st_rl.sim.viewer.show import make_page

    session = make_session(name, num_envs=2)
    server, access = open_server("127.0.0.1", 0)
    try:
        page, renew = make_page(server, session, ["best.pt"])
        page._scene.show_contact_forces = True
        for _ in range(2):
            session.step()
            page.record(session.frame, session.time)
            page.draw(session.frame, session.ghost_qpos())
        page.draw_panels(session.frame)
        renew(["best.pt", "model_1.pt"])
        assert access.address == f"http://127.0.0.1:{server.get_port()}/"
        handle = page._scene._mesh_groups[0].handle
        assert np.isfinite(handle.batched_positions).all()
        assert (page._arrows is None) == (name in ("balance", "quadruped-track"))
        # Contact forces are those on the ground of the task, not on the thinned one that is drawn.
        np.testing.assert_array_equal(page._scene.mj_model.hfield_data, session.task.backend.model.hfield_data)
    finally:
        server.stop()


def test_robot_stays_in_view_when_the_camera_stops_following_and_follows_again(monkeypatch):
    from st_rl.sim.viewer.server import open_server
    from st_rl.sim.viewer.show import make_page

    session = make_session("quadruped-walk", num_envs=2)
    server, _ = open_server("127.0.0.1", 0)
    camera = SimpleNamespace(position=np.array([-1.6, -1.6, 0.9]), image_width=1280)
    monkeypatch.setattr(server, "get_clients", lambda: {0: SimpleNamespace(camera=camera)})
    try:
        page, _ = make_page(server, session, ["best.pt"])
        session.step()

        def view_of_robot():
            frame = session.frame._replace(qpos=session.frame.qpos + np.eye(1, 19) * 7.0)
            page.draw(frame)
            return camera.position - page._scene._mesh_groups[0].handle.batched_positions[0]

        followed = view_of_robot()
        for is_following in (False, True):
            page._follow(is_following)
            np.testing.assert_allclose(view_of_robot(), followed, atol=1e-5)
        page._follow(False)
        late = SimpleNamespace(position=np.array([-1.6, -1.6, 0.9]), image_width=1280, on_update=lambda callback: None)
        page._place_camera(cast(Any, SimpleNamespace(camera=late)))
        np.testing.assert_allclose(late.position, camera.position, atol=1e-5)
    finally:
        server.stop()


def test_phone_that_takes_the_view_for_wide_windows_late_is_corrected():
    from st_rl.sim.viewer.server import open_server
    from st_rl.sim.viewer.show import make_page

    server, _ = open_server("127.0.0.1", 0)
    try:
        page, _ = make_page(server, make_session("quadruped-walk"), ["best.pt"])
        callbacks: list[Any] = []
        camera = SimpleNamespace(position=np.full(3, 3.0), look_at=np.zeros(3), image_width=390)
        camera.on_update = callbacks.append
        page._place_camera(cast(Any, SimpleNamespace(camera=camera)))
        above_panel = camera_view(page._robot_size, is_phone=True)
        assert (camera.position, camera.look_at) == above_panel
        camera.position, camera.look_at = (np.array(place) for place in camera_view(page._robot_size, is_phone=False))
        callbacks[0](camera)
        assert (camera.position, camera.look_at) == above_panel
        moved = camera.position = np.array([-2.0, 0.5, 0.6])
        callbacks[0](camera)
        assert camera.position is moved
    finally:
        server.stop()


def test_height_field_is_thinned_without_moving_it_and_steep_places_are_darker():
    xml = """<mujoco><asset><hfield name="a" nrow="3" ncol="4" size="1 1 1 1"/>
    <hfield name="b" nrow="801" ncol="1001" size="4 5 2 1"/></asset><worldbody><geom type="hfield" hfield="a"/>
    <geom type="hfield" hfield="b"/></worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    model.hfield_data[:12] = np.arange(12) / 12
    slope = np.linspace(0, 1, 1001)
    model.hfield_data[12:] = np.tile(np.where(slope < 0.5, slope, 0.9), 801)
    vertices, faces, gray = height_field_mesh(model, 1)
    assert 100_000 < len(vertices) == len(gray) <= 300_000
    np.testing.assert_allclose(vertices.min(axis=0), [-4, -5, 0], atol=1e-6)
    np.testing.assert_allclose(vertices.max(axis=0), [4, 5, 1.8], atol=1e-6)
    x, height = vertices[:, 0], vertices[:, 2]
    np.testing.assert_allclose(height[x < 0], 2 * (x[x < 0] + 4) / 8, atol=1e-6)
    assert len(faces) == 2 * (len(np.unique(x)) - 1) * (len(np.unique(vertices[:, 1])) - 1)
    assert gray[np.abs(x) < 0.02].min() < 100 < gray[np.abs(x) > 0.1].min()
    vertices, faces, _ = height_field_mesh(model, 0)
    np.testing.assert_allclose(vertices[:, 2], np.arange(12) / 12, atol=1e-6)
    # Every face looks up.
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    assert (np.cross(b - a, c - a)[:, 2] > 0).all()


@pytest.mark.parametrize("name", ["quadruped-walk", "humanoid-walk"])
@pytest.mark.parametrize(("is_phone", "width", "height"), [(False, 960, 800), (True, 390, 844)])
def test_camera_shows_the_whole_robot_beside_the_panel(name, is_phone, width, height):
    model = make_task(name, num_envs=1).backend.model
    size = robot_size(model, mujoco.MjData(model))
    assert 0.5 < size < 2.5
    position, target = (np.array(place) for place in camera_view(size, is_phone))
    forward = (target - position) / np.linalg.norm(target - position)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    # Places half of the size above, below and beside the base, in a field of view of 75 degrees.
    rays = 0.5 * size * np.array([[0, 0, 1], [0, 0, -1], right, -right]) - position
    depth = rays @ forward
    up = rays @ np.cross(right, forward) / depth / np.tan(np.radians(37.5))
    across = rays @ right / depth / np.tan(np.radians(37.5)) * height / width
    assert np.abs(across).max() < 1.0
    # The panel of a phone covers the lower 60%.
    assert up.max() < 1.0
    assert up.min() > (0.2 if is_phone else -1.0)
    assert up.max() - up.min() > 0.2


def test_frame_carries_the_forces_of_the_actuators():
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><joint name="a"/><geom size="1"/></body></worldbody>
        <actuator><motor joint="a" gear="2"/></actuator></mujoco>"""
    )
    data = mujoco.MjData(still := without_actuators(model))
    data.ctrl[:] = 1.0
    mujoco.mj_forward(still, data)
    assert data.qfrc_actuator[0] == 0.0
    mujoco.mj_forward(model, data)
    assert data.qfrc_actuator[0] == 2.0


def test_reward_bars_scale_with_the_largest_term_and_escape_names():
    page = reward_bars(["a<b", "energy"], np.array([2.0, -1.0]))
    assert "a&lt;b" in page
    assert page.count("width:100.0%") == 1
    assert page.count("width:50.0%") == 1
    assert "-1.0000" in page
    assert "+0.0000" in reward_bars(["energy"], np.array([-1e-6]))


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_browser_steers_pushes_swaps_and_leaves(tmp_path):
    from st_rl.sim.viewer.show import show_session

    session, addresses, stop = make_session("quadruped-walk"), [], threading.Event()
    arguments = (session, lambda: ["best.pt", "model_1.pt"], "127.0.0.1", 0, addresses.append, stop.is_set)
    thread = threading.Thread(target=show_session, args=arguments, daemon=True)
    thread.start()
    try:
        wait_for(lambda: addresses, 60, "the page")
        time.sleep(0.3)
        assert session.time == 0.0, "nothing is simulated while nobody looks"
        with Browser(500, 400) as browser:
            browser.open(addresses[0])
            browser.wait("[...document.querySelectorAll('button')].some(b => b.textContent === 'Push')", 60)
            wait_for(lambda: session.time > 0.1, 60, "the simulation")
            browser.fill("lin_vel_x (m/s)", "0.4")
            wait_for(lambda: session.controls.command == (0.4, *session.controls.command[1:]), 60, "the command")
            wait_for(lambda: session.frame.commands[0, 0] == np.float32(0.4), 60, "the command to arrive")
            pushes, push = [], session.push
            session.push = lambda *arguments: (pushes.append(arguments), push(*arguments))
            browser.click("Push")
            wait_for(lambda: pushes, 60, "the push")
            assert pushes[0] == (90, 1)
            browser.choose("best.pt", "model_1.pt")
            wait_for(lambda: session.checkpoint == "model_1.pt", 60, "the other checkpoint")
        wait_for(lambda: session.time == (time.sleep(0.4), session.time)[1], 60, "the simulation to stop")
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
