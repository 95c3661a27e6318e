"""The page of the viewer: draws frames with mjviser, and turns what the user does into controls."""

from __future__ import annotations

import copy
import html
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from st_rl.sim.require import MjData, MjModel, mujoco
from st_rl.sim.viewer.controls import SPEEDS, Controls, slider_limits, spread_offsets
from st_rl.sim.viewer.frames import Frame, FrameLayout
from st_rl.sim.viewer.height_fields import add_height_fields
from st_rl.utils.tensors import rotations

if TYPE_CHECKING:
    import viser

COMMAND_COLOR, VELOCITY_COLOR = (44, 181, 115), (59, 130, 246)
COMMAND_NAMES = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")
_UNITS = ("m/s", "m/s", "rad/s")
_TRACE_SECONDS = 8.0
# Width below which a page is one of a phone, pixels.
_PHONE_WIDTH = 600
# Length of an arrow in m per m/s, and its height above the base, m.
_ARROW_SCALE, _ARROW_HEIGHT = 0.4, 0.25
# Distance between robots that start at the same place, m, and step of the command sliders.
_SPACING, _COMMAND_STEP = 1.6, 0.05


class ViewerPage:
    """Draws the robots of a task for all connected browsers.

    Callbacks of the browser only set attributes and controls; `draw` and `draw_panels` send, from one thread.
    """

    def __init__(self, server: viser.ViserServer, model: MjModel, layout: FrameLayout, controls: Controls):
        from mjviser import ViserMujocoScene

        self._server, self._layout, self.controls = server, layout, controls
        self._model = without_actuators(model)
        self._data = mujoco.MjData(self._model)
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.dock_right()
        server.scene.set_up_direction("+z")
        self._robot_size = robot_size(self._model, self._data)
        server.initial_camera.position, server.initial_camera.look_at = camera_view(self._robot_size, is_phone=False)
        server.on_client_connect(self._place_camera)
        add_height_fields(server, self._model, "/fixed_bodies")
        self._scene = ViserMujocoScene(server, self._model, layout.num_robots)
        self._offsets = spread_offsets(layout.num_robots, _SPACING * layout.shares_origin)
        capacity = round(_TRACE_SECONDS / layout.step_dt)
        # Rows of the last seconds, each begins with its time.
        self._velocity_traces: deque[np.ndarray] = deque(maxlen=capacity)
        self._joint_traces: deque[np.ndarray] = deque(maxlen=capacity)
        self._shows_arrows = True
        self._tracked_place = np.zeros(3)
        self._ghost: list[tuple[int, Any]] = []
        self._arrows: Any = None
        self._lock = threading.Lock()
        self._status = server.gui.add_markdown("")
        tabs = server.gui.add_tab_group()
        self._robot_tab = tabs.add_tab("Robot")
        with self._robot_tab:
            self._add_view_gui()
        with tabs.add_tab("Rewards"):
            self._rewards_html = server.gui.add_html("")
        with tabs.add_tab("Traces"):
            self._add_plots()

    # ---- what the user sets --------------------------------------------------------------------------------------

    def _add_view_gui(self) -> None:
        """Add what only changes the view: robot, camera, arrows, contact forces, terrain."""
        gui, controls, scene = self._server.gui, self.controls, self._scene
        with gui.add_folder("View", order=1.0):
            if self._layout.num_robots > 1:
                robot = gui.add_slider("Robot", 0, self._layout.num_robots - 1, 1, 0)
                robot.on_update(lambda _: self._choose_robot(int(robot.value)))
                alone = gui.add_checkbox("Hide others", False)
                alone.on_update(lambda _: setattr(scene, "show_only_selected", alone.value))
            follow = gui.add_checkbox("Follow camera", True)
            follow.on_update(lambda _: self._follow(follow.value))
            if self._layout.has_commands:
                arrows = gui.add_checkbox("Velocity arrows", True, hint="green: command, blue: measured")
                arrows.on_update(lambda _: setattr(self, "_shows_arrows", arrows.value))
            forces = gui.add_checkbox("Contact forces", False)
            forces.on_update(lambda _: setattr(scene, "show_contact_forces", forces.value))
            ground = gui.add_checkbox("Terrain", True)
            ground.on_update(lambda _: setattr(scene.fixed_bodies_frame, "visible", ground.value))
            paused = gui.add_checkbox("Pause", False)
            paused.on_update(lambda _: setattr(controls, "is_paused", paused.value))

    def _follow(self, is_following: bool) -> None:
        """Let the camera follow the chosen robot, or stay where it is, without a jump of the view."""
        # A followed robot is drawn at the origin of the scene.
        place = self._tracked_place if is_following else -self._tracked_place
        self._scene.camera_tracking_enabled = is_following
        for client in self._server.get_clients().values():
            client.camera.position = client.camera.position - place

    def _place_camera(self, client: viser.ClientHandle) -> None:
        """Let a new browser see the robot, wherever it is."""
        self._show_robot(client.camera)
        # A slow browser takes the view of the server, which is for wide windows, after this one.
        client.camera.on_update(self._correct_camera)

    def _show_robot(self, camera: viser.CameraHandle) -> None:
        if camera.image_width < _PHONE_WIDTH:
            camera.position, camera.look_at = camera_view(self._robot_size, is_phone=True)
        if not self._scene.camera_tracking_enabled:
            camera.position = camera.position + self._tracked_place

    def _correct_camera(self, camera: viser.CameraHandle) -> None:
        """Show a phone the robot above its panel if it has the view for wide windows."""
        wide, _ = camera_view(self._robot_size, is_phone=False)
        if camera.image_width < _PHONE_WIDTH and np.allclose(camera.position, wide, atol=1e-3):
            self._show_robot(camera)

    def _choose_robot(self, robot: int) -> None:
        self.controls.robot = self._scene.env_idx = robot
        with self._lock:
            self._velocity_traces.clear()
            self._joint_traces.clear()

    def add_command_gui(self, ranges: Sequence[tuple[float, float]], start: Sequence[float]) -> None:
        """Add sliders of the command within the trained `ranges`."""
        values = [round(round(float(value) / _COMMAND_STEP) * _COMMAND_STEP, 2) for value in start]
        self.controls.command = (values[0], values[1], values[2])
        with self._robot_tab, self._server.gui.add_folder("Command", order=0.5):
            for axis, (name, unit) in enumerate(zip(COMMAND_NAMES, _UNITS)):
                limits = slider_limits(*ranges[axis])
                if limits is not None:
                    self._add_command_slider(f"{name} ({unit})", axis, limits, values)

    def add_push_gui(self) -> None:
        """Add pushes in a direction with a strength."""
        gui, controls = self._server.gui, self.controls
        with self._robot_tab, gui.add_folder("Push", order=0.6):
            direction = gui.add_slider("Direction (deg)", -180, 180, 15, 90, hint="0 is forward, 90 to the left")
            speed = gui.add_slider("Strength (m/s)", 0.1, 3.0, 0.1, 1.0)
            button = gui.add_button("Push")

            @button.on_click
            def _(_: object) -> None:
                chosen = direction.value, speed.value
                controls.send(lambda session: session.push(*chosen))

    def add_time_gui(self) -> None:
        """Add reset and slow motion."""
        gui, controls = self._server.gui, self.controls
        with self._robot_tab, gui.add_folder("Time", order=0.7):
            reset = gui.add_button("Reset")
            reset.on_click(lambda _: controls.send(lambda session: session.restart()))
            slow = gui.add_button_group("Speed", tuple(SPEEDS))
            slow.on_click(lambda _: setattr(controls, "speed", SPEEDS[slow.value]))

    def _add_command_slider(self, label: str, axis: int, limits: tuple[float, float], values: list[float]) -> None:
        low, high = limits
        slider = self._server.gui.add_slider(label, low, high, _COMMAND_STEP, min(max(values[axis], low), high))

        def apply(_: object) -> None:
            values[axis] = float(slider.value)
            self.controls.command = (values[0], values[1], values[2])

        slider.on_update(apply)

    def add_terrain_gui(self, kinds: Sequence[str], num_levels: int, kind: int, level: int) -> None:
        """Add a choice of the terrain on which the robot starts again."""
        gui = self._server.gui
        with self._robot_tab, gui.add_folder("Start on terrain", order=0.8):
            kinds_list = gui.add_dropdown("Kind", tuple(kinds), initial_value=kinds[kind])
            levels = gui.add_slider("Level", 0, max(1, num_levels - 1), 1, level)
            move = gui.add_button("Go")

            @move.on_click
            def _(_: object) -> None:
                chosen = list(kinds).index(kinds_list.value), min(int(levels.value), num_levels - 1)
                self.controls.send(lambda session: session.move_to_terrain(*chosen))

    def add_clip_gui(self, clips: Sequence[tuple[str, float]]) -> None:
        """Add the reference ghost: which clip, and a scrubber that holds it at a time."""
        gui, controls = self._server.gui, self.controls
        self._ghost = self._add_ghost()
        names = [f"{number}: {name}" for number, (name, _) in enumerate(clips)]
        with self._robot_tab, gui.add_folder("Reference", order=0.9):
            shown = gui.add_checkbox("Ghost", True)
            clip = gui.add_dropdown("Clip", tuple(names), initial_value=names[0])
            plays = gui.add_checkbox("Play", True)
            scrubber = gui.add_slider("Time (s)", 0.0, max(0.1, round(clips[0][1], 2)), 0.02, 0.0, disabled=True)

            def apply(_: object) -> None:
                controls.clip = names.index(clip.value)
                scrubber.max = max(0.1, round(clips[controls.clip][1], 2))
                scrubber.disabled = plays.value
                controls.clip_time = None if plays.value else min(float(scrubber.value), scrubber.max)
                for _, handle in self._ghost:
                    handle.visible = shown.value

            for element in (shown, clip, plays, scrubber):
                element.on_update(apply)

    def _add_ghost(self) -> list[tuple[int, Any]]:
        """Add a translucent copy of the robot; returns its bodies and their handles."""
        from mjviser.conversions import merge_geoms

        model, handles = self._model, []
        for body in range(1, model.nbody):
            geoms = [int(g) for g in np.flatnonzero(model.geom_bodyid == body) if model.geom_rgba[g, 3] > 0]
            if not geoms:
                continue
            mesh = merge_geoms(model, geoms)
            handle = self._server.scene.add_mesh_simple(
                f"/ghost/{body}", mesh.vertices, mesh.faces, color=(160, 120, 255), opacity=0.4, cast_shadow=False
            )
            handles.append((body, handle))
        return handles

    def add_checkpoint_gui(self, names: Sequence[str], current: str) -> Callable[[Sequence[str]], None]:
        """Add a list of checkpoints to swap while the robot walks; returns a function that renews the names."""
        gui = self._server.gui
        with self._robot_tab, gui.add_folder("Policy", order=0.4):
            chosen = gui.add_dropdown("Checkpoint", tuple(names), initial_value=current)

        @chosen.on_update
        def _(_: object) -> None:
            name = chosen.value
            self.controls.send(lambda session: session.load_checkpoint(name))

        def renew(found: Sequence[str]) -> None:
            if tuple(found) != tuple(chosen.options) and chosen.value in found:
                chosen.options = tuple(found)

        return renew

    # ---- what the user sees --------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        """Whether a browser is connected."""
        return bool(self._server.get_clients())

    def set_status(self, text: str) -> None:
        """Show a line of Markdown above the controls."""
        if self._status.content != text:
            self._status.content = text

    def record(self, frame: Frame, time_s: float) -> None:
        """Add a frame to the traces of the chosen robot."""
        robot, layout = self.controls.robot, self._layout
        with self._lock:
            positions = frame.qpos[robot, list(layout.joint_qpos)]
            self._joint_traces.append(np.concatenate([[time_s], positions, frame.actions[robot]]))
            if layout.has_commands:
                velocity = self._base_velocity(frame)[robot]
                self._velocity_traces.append(np.concatenate([[time_s], frame.commands[robot], velocity]))

    def draw(self, frame: Frame, ghost: np.ndarray | None = None) -> None:
        """Send the poses of all robots, the arrows and the ghost with pose `(nq,)`."""
        model, data, count = self._model, self._data, self._layout.num_robots
        positions, rotation = np.empty((count, model.nbody, 3)), np.empty((count, model.nbody, 3, 3))
        for robot in range(count):
            data.qpos[:] = frame.qpos[robot]
            mujoco.mj_kinematics(model, data)
            positions[robot] = data.xpos + self._offsets[robot]
            rotation[robot] = data.xmat.reshape(-1, 3, 3)
        chosen = min(self.controls.robot, count - 1)
        # Contacts are computed where the robot is drawn, which on flat ground makes no difference.
        qpos = frame.qpos.astype(np.float64)
        if self._layout.base_qpos is not None:
            qpos[:, self._layout.base_qpos : self._layout.base_qpos + 3] += self._offsets
        self._scene.mj_data.qfrc_applied[:] = frame.joint_force[chosen]
        self._scene.update_from_arrays(positions, rotation, env_idx=chosen, qpos=qpos, qvel=frame.qvel)
        self._tracked_place = positions[chosen, self._tracked_body]
        shift = -self._tracked_place if self._scene.camera_tracking_enabled else np.zeros(3)
        self._draw_arrows(frame, positions[:, self._layout.base_body] + shift)
        if ghost is not None and self._ghost:
            data.qpos[:] = ghost
            mujoco.mj_kinematics(model, data)
            for body, handle in self._ghost:
                handle.position, handle.wxyz = data.xpos[body] + self._offsets[chosen] + shift, data.xquat[body]

    @property
    def _tracked_body(self) -> int:
        body = self._scene._tracked_body_id
        return self._layout.base_body if body is None else body

    def _draw_arrows(self, frame: Frame, bases: np.ndarray) -> None:
        """Draw command and velocity of each robot above its base `(K, 3)`."""
        if not self._layout.has_commands:
            return
        if self._arrows is not None and self._arrows.visible != self._shows_arrows:
            self._arrows.visible = self._shows_arrows
        if not self._shows_arrows:
            return
        forward = rotations.rotate(self._orientations(frame), np.array([1.0, 0.0, 0.0]))
        heading = np.arctan2(forward[:, 1], forward[:, 0])
        points = np.empty((2, len(bases), 2, 3), dtype=np.float32)
        for kind, planar in enumerate((frame.commands, self._base_velocity(frame))):
            start = bases + np.array([0.0, 0.0, _ARROW_HEIGHT + 0.06 * kind])
            along = np.stack(
                [
                    np.cos(heading) * planar[:, 0] - np.sin(heading) * planar[:, 1],
                    np.sin(heading) * planar[:, 0] + np.cos(heading) * planar[:, 1],
                    np.full(len(bases), 1e-4),
                ],
                axis=1,
            )
            points[kind] = np.stack([start, start + _ARROW_SCALE * along], axis=1)
        flat = points.reshape(-1, 2, 3)
        if self._arrows is None:
            colors = np.repeat(np.array([COMMAND_COLOR, VELOCITY_COLOR], dtype=np.uint8), len(bases), axis=0)
            self._arrows = self._server.scene.add_arrows(
                "/velocities", flat, colors, shaft_radius=0.012, head_radius=0.03, head_length=0.06
            )
        else:
            self._arrows.points = flat

    def _orientations(self, frame: Frame) -> np.ndarray:
        """`(K, 4)` quaternions of the bases."""
        first = self._layout.base_qpos
        if first is None:
            return np.tile([1.0, 0.0, 0.0, 0.0], (self._layout.num_robots, 1))
        return frame.qpos[:, first + 3 : first + 7].astype(np.float64)

    def _base_velocity(self, frame: Frame) -> np.ndarray:
        """`(K, 3)` measured lin_vel_x, lin_vel_y, ang_vel_yaw in the frame of the base."""
        first = self._layout.base_qvel
        if first is None:
            return np.zeros((self._layout.num_robots, 3))
        linear = rotations.rotate_inverse(self._orientations(frame), frame.qvel[:, first : first + 3])
        return np.concatenate([linear[:, :2], frame.qvel[:, first + 5 : first + 6]], axis=1)

    def _add_plots(self) -> None:
        """Add plots of command against velocity, of joint positions and of actions."""
        layout = self._layout
        pair = (("command", _css(COMMAND_COLOR), 2), ("measured", _css(VELOCITY_COLOR), 2))
        titles = [f"{name} ({unit})" for name, unit in zip(COMMAND_NAMES, _UNITS)] if layout.has_commands else []
        self._velocity_plots = [self._add_plot(title, pair, 150, has_legend=True) for title in titles]
        count = len(layout.joint_names)
        joints = [(name, f"hsl({360 * i // count},65%,50%)", 1) for i, name in enumerate(layout.joint_names)]
        self._joint_plots = [self._add_plot(title, joints, 190) for title in ("joint positions (rad)", "actions")]

    def _add_plot(
        self, title: str, lines: Sequence[tuple[str, str, int]], height: int, has_legend: bool = False
    ) -> Any:
        """Add an empty plot over time; a line has a label, a color and a width."""
        from viser import uplot

        empty = (np.array([0.0, 1e-3]), *np.zeros((len(lines), 2)))
        series = [uplot.Series(label=label, stroke=color, width=width) for label, color, width in lines]
        legend = uplot.Legend(show=has_legend, live=False)
        scales: Any = {"x": {"time": False}}
        return self._server.gui.add_uplot(
            empty, (uplot.Series(label="s"), *series), title=title, height=height, scales=scales, legend=legend
        )

    def draw_panels(self, frame: Frame) -> None:
        """Send the bars of the reward terms and the plots."""
        self._rewards_html.content = reward_bars(self._layout.reward_names, frame.rewards)
        with self._lock:
            times, *velocities = columns_of(self._velocity_traces, 7)
            joint_times, *joints = columns_of(self._joint_traces, 1 + 2 * len(self._layout.joint_names))
        for axis, plot in enumerate(self._velocity_plots):
            plot.data = (times, velocities[axis], velocities[axis + 3])
        count = len(self._layout.joint_names)
        for plot, rows in zip(self._joint_plots, (joints[:count], joints[count:])):
            plot.data = (joint_times, *rows)


def columns_of(rows: Collection[np.ndarray], width: int) -> np.ndarray:
    """Rows `(n, width)` as columns `(width, n)`, time first; zeros without the two rows that a plot needs."""
    if len(rows) < 2:
        return np.vstack([[0.0, 1e-3], np.zeros((width - 1, 2))])
    return np.stack(list(rows), axis=1)


def _css(color: tuple[int, int, int]) -> str:
    return f"rgb{color}"


def robot_size(model: MjModel, data: MjData) -> float:
    """Largest extent of the geoms of all moving bodies, m."""
    mujoco.mj_kinematics(model, data)
    geoms = np.flatnonzero(model.geom_bodyid > 0)
    places, radius = data.geom_xpos[geoms], model.geom_rbound[geoms, None]
    return float(((places + radius).max(axis=0) - (places - radius).min(axis=0)).max())


def camera_view(size: float, is_phone: bool) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Position of the camera and the place it looks at, seen from a robot of a size in m.

    On a phone the panel covers the lower half: the camera looks at a place below the robot.
    """
    if is_phone:
        distance = 1.5 * (1.2 + size)
        return (-0.7 * distance, -0.7 * distance, 0.2 * distance), (0.0, 0.0, -0.4 * distance)
    distance = 1.2 + size
    return (-0.66 * distance, -0.66 * distance, 0.37 * distance), (0.0, 0.0, 0.0)


def reward_bars(names: Sequence[str], values: np.ndarray) -> str:
    """HTML of one bar for each reward term, rewards to the right in green and penalties in red."""
    largest = max(1e-9, float(np.abs(values).max(initial=0.0)))
    rows = []
    for name, value in zip(names, values):
        width, color = 100 * abs(float(value)) / largest, "#2cb573" if value >= 0 else "#e5484d"
        shown = round(float(value), 4) + 0.0  # not -0.0
        rows.append(
            f'<div style="margin:0 1em 0.45em">{html.escape(name)}<span style="float:right">{shown:+.4f}</span>'
            f'<div style="height:0.5em;background:rgba(128,128,128,0.2)"><div class="st-rl-bar" '
            f'style="height:100%;width:{width:.1f}%;background:{color}"></div></div></div>'
        )
    return f'<div style="font-size:0.8em;padding-top:0.6em">{"".join(rows)}</div>'


def without_actuators(model: MjModel) -> MjModel:
    """A copy of a model whose actuators do nothing: a frame has their forces."""
    model = copy.copy(model)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    return model
