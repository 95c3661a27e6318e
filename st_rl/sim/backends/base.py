"""The interface of physics backends, and the physics settings."""

import contextlib
import copy
import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from st_rl.sim.require import MjData, MjModel, mujoco


@dataclass(frozen=True)
class PhysicsCfg:
    """Settings of the physics engine."""

    timestep: float = 0.01
    """Seconds per physics step."""
    substeps: int = 2
    """Physics steps per action."""
    iterations: int = 3
    """Maximum number of solver iterations (one breaks training)."""
    ls_iterations: int = 5
    """Maximum number of line-search iterations per solver iteration."""
    integrator: Literal["Euler", "RK4", "implicit", "implicitfast"] = "implicitfast"
    """MuJoCo's integrator."""
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"
    """Shape of the friction cone."""
    solver: Literal["PGS", "CG", "Newton"] = "Newton"
    """Constraint solver."""
    num_threads: int = 0
    """Threads that step robots on the CPU; 0 for one per core."""
    max_contacts: int = 0
    """Contacts per robot that the GPU backend allocates; 0 derives it from the geoms. Checkpoints warn of overflows."""

    @property
    def control_period(self) -> float:
        """Seconds between two actions."""
        return self.timestep * self.substeps


def fine_physics(physics: PhysicsCfg, timestep: float = 0.005, iterations: int = 50) -> PhysicsCfg:
    """The same control period with small substeps and a converged solver, for evaluation."""
    substeps = max(1, round(physics.control_period / timestep))
    fine_timestep = physics.control_period / substeps
    return replace(physics, timestep=fine_timestep, substeps=substeps, iterations=iterations, ls_iterations=20)


def with_physics(model: MjModel, physics: PhysicsCfg) -> MjModel:
    """A copy of a model with the options of `physics`."""
    if not 0 < physics.timestep < math.inf or physics.substeps < 1:
        raise ValueError(
            f"physics needs timestep > 0 and substeps >= 1, got {physics.timestep} and {physics.substeps}: correct them"
        )
    if physics.num_threads < 0:
        raise ValueError(f"physics.num_threads is {physics.num_threads}: give a number of threads, or 0 for all cores")
    model = copy.copy(model)
    model.opt.timestep = physics.timestep
    model.opt.iterations = physics.iterations
    model.opt.ls_iterations = physics.ls_iterations
    for option, enum, prefix in (
        ("integrator", mujoco.mjtIntegrator, "mjINT"),
        ("cone", mujoco.mjtCone, "mjCONE"),
        ("solver", mujoco.mjtSolver, "mjSOL"),
    ):
        setattr(model.opt, option, getattr(enum, f"{prefix}_{vars(physics)[option].upper()}"))
    return model


class Backend(ABC):
    """Steps `N` copies of one model; all methods select robots by masks.

    `qpos`, `qvel`, `sensordata` and `joint_force` are float32 tensors on `device` at fixed addresses with the current
    values; a task reads them and never writes them. Sensors and forces belong to the state before the last substep, as
    after `mj_step`, and are zero for a robot between its reset and its next step. On a GPU all methods but
    `state_dict`, `load_state_dict` and `snapshot` run without host syncs and data-dependent shapes.
    """

    qpos: torch.Tensor
    """`(N, nq)` positions; a free joint has its quaternion as w, x, y, z."""
    qvel: torch.Tensor
    """`(N, nv)` velocities; of a free joint linear in the world frame, angular in the body frame."""
    sensordata: torch.Tensor
    """`(N, nsensordata)` sensor readings."""
    joint_force: torch.Tensor
    """`(N, nv)` generalized force of the actuators."""

    def __init__(self, model: MjModel, num_envs: int, physics: PhysicsCfg, device: torch.device | str) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.model = with_physics(model, physics)
        self.physics = physics
        self.num_envs = num_envs
        self.device = torch.device(device)
        self._fields: dict[str, torch.Tensor] = {}
        self._has_own_constants = False

    @abstractmethod
    def set_control(self, control: torch.Tensor) -> None:
        """Set the control `(N, nu)` of the following steps."""

    @abstractmethod
    def step(self, num_substeps: int = 1, read_sensors: bool = True) -> None:
        """Advance all robots by `num_substeps` physics steps.

        Without `read_sensors`, `sensordata` may be anything until the next step with it.
        """

    @abstractmethod
    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the robots of `mask` `(N,)` to rows of `qpos` `(N, nq)` and `qvel` `(N, nv)`.

        Clears their time, activations, applied forces and warm start. Other robots stay bitwise unchanged.
        """

    @abstractmethod
    def add_velocity(self, delta: torch.Tensor, mask: torch.Tensor, column: int = 0) -> None:
        """Add `delta` `(N, k)` to `k` columns of `qvel`, starting at `column`, for the robots of `mask` `(N,)`."""

    @abstractmethod
    def expand(self, field: str) -> torch.Tensor:
        """Give a model field one value per robot and return it, `(N, ...)`; writes take effect."""

    @abstractmethod
    def refresh_constants(self) -> None:
        """Recompute the constants that depend on expanded fields, such as `body_mass`."""

    @abstractmethod
    def check_diverged(self) -> torch.Tensor:
        """`(N,)` bool: robots of which the simulation diverged since the last call, even if MuJoCo reset it."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next step depends on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; ValueError if it belongs to another model or number of robots."""

    def _field_state(self) -> dict[str, Any]:
        """The part of a `state_dict` about expanded model fields."""
        fields = {name: value.clone() for name, value in self._fields.items()}
        return {"fields": fields, "constants_follow": self._has_own_constants}

    def _load_field_state(self, state: dict[str, Any]) -> None:
        for name, value in state["fields"].items():
            self.expand(name).copy_(value)
        if state["constants_follow"]:
            self.refresh_constants()

    def during_capture(self, stream: torch.cuda.Stream) -> AbstractContextManager[None]:
        """The context that a graph capture on `stream` runs in."""
        return contextlib.nullcontext()

    def snapshot(self, index: int, data: MjData = None) -> MjData:
        """One robot as a `mujoco.MjData` after `mj_forward`, for rendering; synchronizes with the device."""
        data = mujoco.MjData(self.model) if data is None else data
        data.qpos[:] = self.qpos[index].cpu().numpy()
        data.qvel[:] = self.qvel[index].cpu().numpy()
        mujoco.mj_forward(self.model, data)
        return data
