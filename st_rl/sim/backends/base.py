"""The interface of a backend: `N` copies of one model that a task steps together."""

import contextlib
import copy
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from st_rl.sim.require import require_mujoco


@dataclass(frozen=True)
class PhysicsCfg:
    """How finely physics is computed."""

    timestep: float = 0.01
    """Seconds of one physics substep."""
    substeps: int = 2
    """Substeps for each action."""
    iterations: int = 3
    """Largest number of solver iterations (one breaks training)."""
    ls_iterations: int = 5
    """Largest number of line-search iterations of each solver iteration."""
    integrator: Literal["Euler", "RK4", "implicit", "implicitfast"] = "implicitfast"
    """MuJoCo's integrator."""
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"
    """Shape of the friction cone."""
    solver: Literal["PGS", "CG", "Newton"] = "Newton"
    """Constraint solver."""
    num_threads: int = 0
    """Threads that step robots on the CPU; 0 for one on each core."""
    max_contacts: int = 0
    """Contacts of one robot that a GPU has room for; 0 to work it out from its shapes. A snapshot says if it lacked."""

    @property
    def control_period(self) -> float:
        """Seconds between two actions."""
        return self.timestep * self.substeps


def fine_physics(physics: PhysicsCfg, timestep: float = 0.005, iterations: int = 50) -> PhysicsCfg:
    """The same control period computed with small substeps and a converged solver, to judge a policy."""
    substeps = max(1, round(physics.control_period / timestep))
    fine_timestep = physics.control_period / substeps
    return replace(physics, timestep=fine_timestep, substeps=substeps, iterations=iterations, ls_iterations=20)


def with_physics(model: Any, physics: PhysicsCfg) -> Any:
    """A copy of a `mujoco.MjModel` that is computed as `physics` says."""
    mujoco = require_mujoco()
    if physics.timestep <= 0 or physics.substeps < 1:
        raise ValueError(
            f"physics needs timestep > 0 and substeps >= 1, got {physics.timestep} and {physics.substeps}: correct them"
        )
    model = copy.copy(model)
    model.opt.timestep = physics.timestep
    model.opt.iterations = physics.iterations
    model.opt.ls_iterations = physics.ls_iterations
    model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{physics.integrator.upper()}")
    model.opt.cone = getattr(mujoco.mjtCone, f"mjCONE_{physics.cone.upper()}")
    model.opt.solver = getattr(mujoco.mjtSolver, f"mjSOL_{physics.solver.upper()}")
    return model


class Backend(ABC):
    """Steps `N` copies of one model; control in, state out, everything selected by masks.

    `qpos`, `qvel`, `sensordata` and `joint_force` are float32 tensors on `device` that stay at one address and hold the
    newest values; a task reads them and never writes them. Sensors and forces describe the state before the last
    substep, as after `mj_step`, and are zero for a robot that was reset and not stepped since. A GPU backend keeps
    every method but `state_dict`, `load_state_dict` and `snapshot` free of host syncs and data-dependent shapes.
    """

    def __init__(self, model: Any, num_envs: int, physics: PhysicsCfg, device: torch.device | str) -> None:
        """Remember a copy of the model with the options of `physics`, and the sizes."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.model = with_physics(model, physics)
        self.physics = physics
        self.num_envs = num_envs
        self.device = torch.device(device)

    @property
    @abstractmethod
    def qpos(self) -> torch.Tensor:
        """`(N, nq)` positions; a free joint has its quaternion as wxyz."""

    @property
    @abstractmethod
    def qvel(self) -> torch.Tensor:
        """`(N, nv)` velocities; of a free joint linear in the world's frame, angular in the body's."""

    @property
    @abstractmethod
    def sensordata(self) -> torch.Tensor:
        """`(N, nsensordata)` sensor readings."""

    @property
    @abstractmethod
    def joint_force(self) -> torch.Tensor:
        """`(N, nv)` generalised force of the actuators."""

    @abstractmethod
    def set_control(self, control: torch.Tensor) -> None:
        """Set the control `(N, nu)` that the following steps apply."""

    @abstractmethod
    def step(self, num_substeps: int = 1) -> None:
        """Advance every robot by `num_substeps` substeps."""

    @abstractmethod
    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Start the robots of `mask` `(N,)` afresh from rows of `qpos` `(N, nq)` and `qvel` `(N, nv)`.

        Clears their time, activations, applied forces and warm start. Other robots are untouched, bit by bit.
        """

    @abstractmethod
    def add_velocity(self, delta: torch.Tensor, mask: torch.Tensor, column: int = 0) -> None:
        """Add `delta` `(N, k)` to `k` columns of `qvel`, from `column` on, for the robots of `mask` `(N,)`: a push."""

    @abstractmethod
    def expand(self, field: str) -> torch.Tensor:
        """Give a field of the model a value per robot and return it live, `(N, ...)`; writes take effect."""

    @abstractmethod
    def refresh_constants(self) -> None:
        """Make constants follow fields that were written after `expand`, such as `body_mass`."""

    @abstractmethod
    def check_diverged(self) -> torch.Tensor:
        """`(N,)` bool: robots whose simulation became unstable since the last call, even if it recovered by itself."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, as copies."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of a backend with the same model and number of robots."""

    def during_capture(self, stream: Any) -> AbstractContextManager[None]:
        """What must be around the capture of a graph on a stream; a backend of a GPU has its own."""
        return contextlib.nullcontext()

    def snapshot(self, index: int, data: Any = None) -> Any:
        """One robot as a `mujoco.MjData` with positions computed, to render it; waits for the device."""
        mujoco = require_mujoco()
        data = mujoco.MjData(self.model) if data is None else data
        data.qpos[:] = self.qpos[index].cpu().numpy()
        data.qvel[:] = self.qvel[index].cpu().numpy()
        mujoco.mj_forward(self.model, data)
        return data
