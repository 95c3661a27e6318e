"""Physics backends: `N` copies of one model, stepped together."""

import torch

from st_rl.sim.backends.base import Backend, PhysicsCfg, fine_physics, with_physics
from st_rl.sim.backends.mujoco_backend import MujocoBackend
from st_rl.sim.backends.warp_backend import WarpBackend
from st_rl.sim.require import MjModel

__all__ = [
    "BACKENDS",
    "Backend",
    "MujocoBackend",
    "PhysicsCfg",
    "WarpBackend",
    "fine_physics",
    "make_backend",
    "with_physics",
]

BACKENDS: dict[str, type[Backend]] = {"cpu": MujocoBackend, "cuda": WarpBackend}
"""Backend class for each type of device."""


def make_backend(model: MjModel, num_envs: int, physics: PhysicsCfg, device: torch.device | str) -> Backend:
    """The backend for a device; ValueError for a type of device that has none."""
    kind = torch.device(device).type
    if kind not in BACKENDS:
        raise ValueError(f"no simulation backend for device '{device}'; devices with one: {', '.join(BACKENDS)}")
    return BACKENDS[kind](model, num_envs, physics, device)
