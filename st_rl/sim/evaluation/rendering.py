"""Renders robots off-screen with the OpenGL library that the machine has."""

import copy
import ctypes.util
import importlib
import os
import platform
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from st_rl.sim.require import MjData, MjModel, mujoco
from st_rl.sim.terrain.visible_ground import VisibleGround

# Off-screen OpenGL on Linux: value of MUJOCO_GL, library, Debian package.
OFFSCREEN_LIBRARIES = (("egl", "EGL", "libegl1"), ("osmesa", "OSMesa", "libosmesa6"))
INSTALL_COMMAND = "apt-get install -y libegl1 libosmesa6"
# Largest number of geoms in a frame.
_MAX_GEOMS = 2000
# A larger shadow map costs a software renderer a third of its time, without a visible difference.
_SHADOW_SIZE = 2048
# Color of a ghost.
_GHOST_RGBA = np.array([0.63, 0.47, 1.0, 0.4], dtype=np.float32)
# Shorter arrows, m, consist of the head only and are left out.
_MIN_ARROW_LENGTH = 0.04


class RenderingError(RuntimeError):
    """This machine cannot render; the message says what to install."""


class Arrow(NamedTuple):
    """An arrow in a frame."""

    start: np.ndarray
    """`(3,)` world position of its tail."""
    vector: np.ndarray
    """`(3,)` from tail to tip."""
    rgba: tuple[float, float, float, float]


def has_display() -> bool:
    """Whether a window can be opened."""
    if platform.system() == "Linux":
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True


def choose_gl() -> str:
    """The value of MUJOCO_GL to render with: the given one, else the first library that is installed.

    Empty where MuJoCo's default works (a display, or not Linux). RenderingError without any library.
    """
    chosen = os.environ.get("MUJOCO_GL", "").strip().lower()
    if chosen or platform.system() != "Linux" or has_display():
        return chosen
    for name, library, _ in OFFSCREEN_LIBRARIES:
        if ctypes.util.find_library(library):
            return name
    raise RenderingError(f"neither EGL nor OSMesa is installed to render with: {INSTALL_COMMAND} (Debian and Ubuntu)")


def prepare_rendering() -> str:
    """Make MuJoCo use the library of `choose_gl`, even if MuJoCo is already imported; return its name."""
    name = choose_gl()
    if "mujoco" not in sys.modules and name:
        os.environ["MUJOCO_GL"] = name
    if name in ("egl", "osmesa"):
        # MuJoCo reads MUJOCO_GL only when it is first imported.
        try:
            context = importlib.import_module(f"mujoco.{name}").GLContext
        except (ImportError, AttributeError, RuntimeError) as error:
            raise RenderingError(_cannot_render(name, error)) from error
        sys.modules[mujoco.Renderer.__module__].gl_context.GLContext = context
    return name


def _cannot_render(name: str, error: BaseException) -> str:
    packages = {gl: package for gl, _, package in OFFSCREEN_LIBRARIES}
    remedy = f"apt-get install -y {packages[name]}" if name in packages else INSTALL_COMMAND
    other = "osmesa" if name == "egl" else "egl"
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"cannot render with {name or 'the display'} ({reason}): install its library with: {remedy} (Debian and "
        f"Ubuntu), or set MUJOCO_GL={other}"
    )


class FrameRenderer:
    """Renders `mujoco.MjData` as images; use it in a `with` block."""

    def __init__(self, model: MjModel, width: int = 640, height: int = 360, camera: str | None = None):
        """Open an OpenGL context for a model, seen by one of its cameras."""
        self.library = prepare_rendering()
        self._camera = self._find_camera(model, camera)
        model = copy.copy(model)
        visual, quality = model.vis.global_, model.vis.quality
        # The model sets the size of the off-screen buffer, which may be smaller than the frame.
        visual.offwidth, visual.offheight = max(visual.offwidth, width), max(visual.offheight, height)
        quality.shadowsize = min(quality.shadowsize, _SHADOW_SIZE)
        self._size = (height, width)
        self._ground = VisibleGround(model)
        self._ground.follow(model.body_pos[min(1, model.nbody - 1), :2])
        self._renderer = self._open()
        self._ghost_data: MjData | None = None
        self._ghost_offset: np.ndarray | None = None

    def _open(self) -> Any:
        """A `mujoco.Renderer` of the visible ground and the robot."""
        try:
            renderer = mujoco.Renderer(self._ground.model, *self._size, max_geom=_MAX_GEOMS)
        except Exception as error:  # each OpenGL library has its own error classes
            raise RenderingError(_cannot_render(self.library, error)) from error
        # Reflections render the scene twice, which is slow in software.
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        return renderer

    def _find_camera(self, model: MjModel, camera: str | None) -> Any:
        """The named camera, else the first one of the model, else one that tracks the first body."""
        if camera is not None:
            names = [model.camera(i).name for i in range(model.ncam)]
            if camera not in names:
                raise ValueError(f"the robot has no camera '{camera}'; its cameras: {', '.join(names) or 'none'}")
            return camera
        if model.ncam:
            return 0
        follow = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(model, follow)
        follow.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        follow.trackbodyid = min(1, model.nbody - 1)
        follow.azimuth, follow.elevation = 130.0, -18.0
        return follow

    def draw(self, data: MjData, arrows: Iterable[Arrow] = (), ghost: np.ndarray | None = None) -> np.ndarray:
        """Render one frame, `(height, width, 3)` uint8, with a translucent robot in the pose `ghost` `(nq,)` beside."""
        if self._ground.follow(data.xpos[min(1, len(data.xpos) - 1), :2]):
            self._renderer.close()
            self._renderer = self._open()
        self._renderer.update_scene(data, camera=self._camera)
        self._ground.arrange(self._renderer.scene)
        for arrow in arrows:
            self._add_arrow(arrow)
        if ghost is not None:
            self._add_ghost(ghost)
        return self._renderer.render()

    def _add_ghost(self, qpos: np.ndarray) -> None:
        """Add the moving geoms of the model in another pose, in one translucent color, to the right of the picture."""
        scene, model = self._renderer.scene, self._ground.model
        data = self._ghost_data = mujoco.MjData(model) if self._ghost_data is None else self._ghost_data
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        moving = model.body_weldid[model.geom_bodyid] > 0
        offset = self._ghost_offset
        if offset is None:
            places = data.geom_xpos[moving]
            size = places.max(axis=0) - places.min(axis=0)
            camera = scene.camera[0]
            right = np.cross(camera.forward, camera.up) * [1.0, 1.0, 0.0]
            offset = self._ghost_offset = max(np.linalg.norm(size[:2]), 0.8 * size[2]) * right / np.linalg.norm(right)
        first = scene.ngeom
        option, category = mujoco.MjvOption(), mujoco.mjtCatBit.mjCAT_DYNAMIC
        mujoco.mjv_addGeoms(model, data, option, mujoco.MjvPerturb(), category, scene)
        for shape in scene.geoms[first : scene.ngeom]:
            shape.rgba[:] = _GHOST_RGBA
            shape.matid = -1
            shape.pos[:] += offset
        # Both robots are in the middle of the picture.
        for camera in scene.camera:
            camera.pos[:] += 0.5 * offset

    def _add_arrow(self, arrow: Arrow) -> None:
        scene = self._renderer.scene
        if scene.ngeom >= scene.maxgeom or float(np.linalg.norm(arrow.vector)) < _MIN_ARROW_LENGTH:
            return
        shape = scene.geoms[scene.ngeom]
        kind = mujoco.mjtGeom.mjGEOM_ARROW
        rgba = np.asarray(arrow.rgba, dtype=np.float32)
        mujoco.mjv_initGeom(shape, kind, np.zeros(3), np.zeros(3), np.eye(3).reshape(-1), rgba)
        start = np.asarray(arrow.start, dtype=np.float64)
        # MuJoCo draws arrows at half their length.
        mujoco.mjv_connector(shape, kind, 0.012, start, start + 2.0 * np.asarray(arrow.vector, dtype=np.float64))
        scene.ngeom += 1

    def close(self) -> None:
        """Free the OpenGL context."""
        self._renderer.close()

    def __enter__(self) -> "FrameRenderer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
