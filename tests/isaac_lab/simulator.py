"""A stand-in for Isaac Sim: mocks for its packages, and a cart-pole in place of its physics.

With it Isaac Lab's own environment, wrapper, configuration and exporter classes run without the simulator.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

PACKAGES = ("isaaclab", "isaaclab_rl", "isaaclab_tasks", "isaaclab_assets", "isaaclab_contrib")
# Packages of the simulator, and others that Isaac Lab imports and that play no part in learning.
MOCKED = (
    *(
        "omni",
        "isaacsim",
        "carb",
        "pxr",
        "usdrt",
        "warp",
        "pinocchio",
        "pink",
        "hid",
        "pyglet",
        "cv2",
        "imageio",
        "h5py",
    ),
    *("transformers", "torchvision", "scipy", "matplotlib", "skimage", "moviepy", "psutil", "websockets", "starlette"),
)


def find_sources() -> list[str]:
    """Folders of Isaac Lab's packages: below `ISAACLAB_PATH`, or in the wheel `isaaclab`; empty without either."""
    roots = [Path(os.environ["ISAACLAB_PATH"])] if os.environ.get("ISAACLAB_PATH") else []
    wheel = find_spec("isaaclab")
    roots += [Path(folder) for folder in (wheel.submodule_search_locations or [] if wheel else [])]
    for root in roots:
        if (root / "source" / "isaaclab_rl").is_dir():
            return [str(root / "source" / name) for name in PACKAGES]
    return []


class _AnyMeta(type):
    def __getattr__(cls, name: str) -> Any:
        return _make_any(cls, name)


class _Any(metaclass=_AnyMeta):
    """A class with every attribute, each a class like it; calling it gives a mock, deriving from it a plain class."""

    def __new__(cls, *args: object, **kwargs: object) -> Any:
        return MagicMock() if "mocked" in vars(cls) else object.__new__(cls)

    def __class_getitem__(cls, item: object) -> Any:
        return cls


def _make_any(owner: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    made = _AnyMeta(name, (_Any,), {"mocked": True})
    setattr(owner, name, made)
    return made


class _AnyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _make_any(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        is_mocked = fullname.split(".")[0] in MOCKED
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_mocked else None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _AnyModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Simulation(MagicMock):
    """`SimulationContext` without a stage and a window."""

    device, render_mode = "cpu", 0
    RenderMode = types.SimpleNamespace(PARTIAL_RENDERING=1)

    @classmethod
    def instance(cls) -> None:
        return None

    def __init__(self, cfg: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.cfg = cfg
        self.has_gui = self.has_rtx_sensors = lambda: False

    def get_physics_dt(self) -> float:
        return self.cfg.dt


class Scene(MagicMock):
    """`InteractiveScene` with the physics of its articulations."""

    def __init__(self, cfg: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_envs, self.articulations = cfg.num_envs if cfg else 0, {}
        self.env_origins = torch.zeros(self.num_envs, 3)
        CartPole.num_envs = self.num_envs

    def update(self, dt: float) -> None:
        for articulation in self.articulations.values():
            articulation.step(dt)


class CartPole:
    """`Articulation` of a cart with a pole: 1 kg each, the centre of the pole 0.5 m above the cart."""

    num_envs = 0
    NAMES = ("slider_to_cart", "cart_to_pole")

    def __init__(self, cfg: object):
        zeros = torch.zeros(self.num_envs, 2)
        self._ALL_INDICES = torch.arange(self.num_envs)
        self.force = torch.zeros(self.num_envs)
        self.data = types.SimpleNamespace(
            joint_pos=zeros.clone(), joint_vel=zeros.clone(), default_joint_pos=zeros, default_joint_vel=zeros.clone()
        )
        self.data.default_root_state = torch.zeros(self.num_envs, 13)

    def find_joints(self, name: str) -> tuple[list[int], list[str]]:
        return [self.NAMES.index(name)], [name]

    def set_joint_effort_target(self, target: torch.Tensor, joint_ids: list[int]) -> None:
        self.force = target[:, 0].clamp(-400.0, 400.0)

    def write_root_pose_to_sim(self, pose: torch.Tensor, env_ids: torch.Tensor) -> None:
        pass

    write_root_velocity_to_sim = write_root_pose_to_sim

    def write_joint_state_to_sim(self, pos: torch.Tensor, vel: torch.Tensor, joint_ids: None, env_ids: Any) -> None:
        self.data.joint_pos[env_ids], self.data.joint_vel[env_ids] = pos, vel

    def reset(self, env_ids: object) -> None:
        pass

    def step(self, dt: float) -> None:
        """Integrate the equations of motion by one semi-implicit Euler step."""
        pos, vel = self.data.joint_pos, self.data.joint_vel
        sin, cos, rate = pos[:, 1].sin(), pos[:, 1].cos(), vel[:, 1]
        # Force on the cart with the pole's centrifugal part, divided by the total mass of 2 kg.
        drive = (self.force + 0.5 * rate.square() * sin) / 2.0
        angular = (9.81 * sin - cos * drive) / (0.5 * (4.0 / 3.0 - 0.5 * cos.square()))
        linear = drive - 0.25 * angular * cos
        vel += dt * torch.stack((linear, angular), dim=1)
        pos += dt * vel


def launch(sources: list[str]) -> None:
    """Make Isaac Lab importable, with the stand-in for the simulator and its physics."""
    sys.path[:0] = sources
    # The wheel's package of this name only starts the simulator.
    sys.modules.pop("isaaclab", None)
    sys.meta_path.insert(0, _Finder())
    import builtins

    builtins.ISAAC_LAUNCHED_FROM_TERMINAL = False  # pyright: ignore[reportAttributeAccessIssue]
    import isaaclab.envs.direct_rl_env as direct  # pyright: ignore[reportMissingImports]
    import isaaclab_tasks.direct.cartpole.cartpole_env as cartpole  # pyright: ignore[reportMissingImports]

    direct.SimulationContext, direct.InteractiveScene = Simulation, Scene
    direct.use_stage = MagicMock()
    direct.attach_stage_to_usd_context = MagicMock()
    direct.get_isaac_sim_version = lambda: types.SimpleNamespace(major=5)
    cartpole.Articulation, cartpole.spawn_ground_plane = CartPole, MagicMock()
    cartpole.sim_utils = MagicMock()
