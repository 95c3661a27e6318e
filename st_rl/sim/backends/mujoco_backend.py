"""MuJoCo on the threads of a CPU."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from st_rl.sim.backends.base import Backend, PhysicsCfg
from st_rl.sim.require import require_mujoco
from st_rl.utils.log import logger


class MujocoBackend(Backend):
    """Steps robots with `mujoco.batch.Batch`, which is bitwise equal to `mj_step` for each of them.

    MuJoCo's state is float64 and lives in rows that torch shares; each step converts what a task reads to float32.
    Everything but a step is plain torch, so that what a task does between two steps can be compiled. A reset writes
    these float32 tensors only; the rows of MuJoCo follow when somebody needs them, because few of them change and to
    write all of them under a mask would take them out of the caches of the threads that step them.
    """

    def __init__(self, model: Any, num_envs: int, physics: PhysicsCfg, device: torch.device | str = "cpu") -> None:
        """Create the robots in the model's default pose."""
        super().__init__(model, num_envs, physics, device)
        if self.device.type != "cpu":
            raise ValueError(f"MujocoBackend runs on the CPU, got device '{device}'")
        mujoco = require_mujoco()
        self.num_threads = physics.num_threads or _num_cores()
        self._batch = mujoco.batch.Batch(self.model, num_envs, self.num_threads)
        self._sensors = self._batch.bind("sensordata")
        self._forces = self._batch.bind("qfrc_actuator")
        self._batch.reset(stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self._state = torch.from_numpy(self._batch.state)
        self._fresh_row = self._batch.state[0].copy()
        # Robots that were reset and whose rows have not been written yet.
        self._is_fresh = torch.zeros(num_envs, dtype=torch.bool)
        self._columns = {name: _columns(self._batch, name) for name in ("qpos", "qvel", "ctrl")}
        # qpos and qvel lie side by side in a row, so one copy converts both.
        self._motion = slice(self._columns["qpos"].start, self._columns["qvel"].stop)
        self._motion32 = self._state[:, self._motion].float()
        self._qpos32, self._qvel32 = self._motion32.split([model.nq, model.nv], dim=1)
        self._sensors32 = torch.zeros(num_envs, model.nsensordata)
        self._forces32 = torch.zeros(num_envs, model.nv)
        self._engine_log = getattr(mujoco, "MjLogConfig", None)
        self._simulation_error = mujoco.batch.SimulationError
        self._unstable = torch.zeros(num_envs, dtype=torch.bool)
        self._fields: dict[str, torch.Tensor] = {}
        self._constants_follow = False
        self._reported: set[int] = set()

    @property
    def batch(self) -> Any:
        """The `mujoco.batch.Batch`, up to date."""
        self._write_starts()
        return self._batch

    @property
    def qpos(self) -> torch.Tensor:
        """`(N, nq)` positions."""
        return self._qpos32

    @property
    def qvel(self) -> torch.Tensor:
        """`(N, nv)` velocities."""
        return self._qvel32

    @property
    def sensordata(self) -> torch.Tensor:
        """`(N, nsensordata)` sensor readings."""
        return self._sensors32

    @property
    def joint_force(self) -> torch.Tensor:
        """`(N, nv)` generalised force of the actuators."""
        return self._forces32

    def set_control(self, control: torch.Tensor) -> None:
        """Set the control `(N, nu)` that the following steps apply."""
        self._write_starts()
        self._state[:, self._columns["ctrl"]].copy_(control)

    def step(self, num_substeps: int = 1) -> None:
        """Advance every robot by `num_substeps` calls of `mj_step`, outside Python's lock."""
        batch = self.batch
        try:
            with _quiet(self._engine_log):
                batch.step(nstep=num_substeps)
        except self._simulation_error as error:
            # The robots named kept the state they had; the others were stepped.
            self._unstable.numpy()[error.ids] = True
            logger.warning(str(error))
        np.copyto(self._motion32.numpy(), batch.state[:, self._motion])
        np.copyto(self._sensors32.numpy(), self._sensors)
        np.copyto(self._forces32.numpy(), self._forces)
        if batch.warning.any():
            self._unstable.numpy()[:] |= batch.warning[:, _FIRST_UNSTABLE:, 1].any(axis=1)
            self._report_other_warnings()
            batch.warning[:] = 0

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Start the robots of `mask` `(N,)` afresh; a masked write, so others keep every bit."""
        column = mask[:, None]
        self._is_fresh.logical_or_(mask)
        self._motion32.copy_(torch.where(column, torch.cat([qpos, qvel], dim=1), self._motion32))
        self._sensors32.masked_fill_(column, 0.0)
        self._forces32.masked_fill_(column, 0.0)

    def add_velocity(self, delta: torch.Tensor, mask: torch.Tensor, column: int = 0) -> None:
        """Add `delta` `(N, k)` to `k` columns of `qvel`, from `column` on, for the robots of `mask` `(N,)`."""
        start, width = self._columns["qvel"].start + column, delta.shape[1]
        delta = torch.where(mask[:, None], delta, 0.0)
        velocity, velocity32 = self._state[:, start : start + width], self._qvel32[:, column : column + width]
        velocity.add_(delta)
        # The row of a robot that was reset is still that of its last episode.
        velocity32.copy_(torch.where(self._is_fresh[:, None], velocity32 + delta, velocity))

    def expand(self, field: str) -> torch.Tensor:
        """Give a field of the model a value per robot and return it live, `(N, ...)` float64."""
        if field not in self._fields:
            self._fields[field] = torch.from_numpy(self.batch.expand(field))
        return self._fields[field]

    def refresh_constants(self) -> None:
        """Make constants follow fields that were written after `expand`."""
        self.batch.set_const()
        self._constants_follow = True

    def check_diverged(self) -> torch.Tensor:
        """`(N,)` bool from the engine's warnings, its errors and the numbers themselves; clears the first two.

        MuJoCo resets a simulation that blows up to its default pose and reports success, so the numbers alone would
        not tell.
        """
        # One sum instead of a test for each number: it is finite only if all of them are.
        diverged = self._motion32.sum(dim=1).isfinite().logical_not_() | self._unstable
        self._unstable.fill_(False)
        return diverged

    def state_dict(self) -> dict[str, Any]:
        """Integration state of every robot, last readings and model fields per robot: enough to go on bit by bit."""
        self._write_starts()
        return {
            "state": self._state.clone(),
            "sensordata": self.sensordata.clone(),
            "joint_force": self.joint_force.clone(),
            "fields": {name: value.clone() for name, value in self._fields.items()},
            "constants_follow": self._constants_follow,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; ValueError when it belongs to another robot or number of robots."""
        if state["state"].shape != self._state.shape:
            raise ValueError(
                f"the saved simulation has shape {tuple(state['state'].shape)} (robots, numbers), "
                f"this one {tuple(self._state.shape)}: load it with the same robot and num_envs"
            )
        self._state.copy_(state["state"])
        self._is_fresh.fill_(False)
        self._motion32.copy_(self._state[:, self._motion])
        self._sensors32.copy_(state["sensordata"])
        self._forces32.copy_(state["joint_force"])
        for name, value in state["fields"].items():
            self.expand(name).copy_(value)
        if state["constants_follow"]:
            self.refresh_constants()
        self.batch.warning[:] = 0
        self._unstable.fill_(False)

    def _write_starts(self) -> None:
        """Write the rows of robots that were reset."""
        is_fresh = self._is_fresh.numpy()
        if is_fresh.any():
            rows = np.flatnonzero(is_fresh)
            self._batch.state[rows] = self._fresh_row
            self._batch.state[rows, self._motion] = self._motion32.numpy()[rows]
            is_fresh[:] = False

    def _report_other_warnings(self) -> None:
        """Log warnings that do not mean divergence, such as a full contact buffer, once for each kind."""
        counts = self.batch.warning[:, :_FIRST_UNSTABLE, 1]
        if not counts.any():
            return
        for kind in np.flatnonzero(counts.any(axis=0)):
            if int(kind) not in self._reported:
                self._reported.add(int(kind))
                row = int(np.flatnonzero(counts[:, kind])[0])
                text = require_mujoco().mju_warningText(int(kind), int(self.batch.warning[row, kind, 0]))
                logger.warning(f"MuJoCo, robot {row}: {text}")


# MuJoCo numbers its warnings; bad positions, velocities, accelerations and controls are the last four.
_FIRST_UNSTABLE = 3


def _num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _columns(batch: Any, field: str) -> slice:
    """Columns of a state field in the rows of the batch."""
    view = batch.bind(field)
    offset = (view.ctypes.data - batch.state.ctypes.data) // batch.state.itemsize
    return slice(offset, offset + view.shape[1])


@contextlib.contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Keep the engine from printing and from writing a log file: what it warns of is read and counted instead."""
    if log is None:  # MuJoCo before 4.0 has no switch for it.
        yield
        return
    before, quiet = log.get(), log.get()
    quiet.logto_console = quiet.logto_file = False
    log.set(quiet)
    try:
        yield
    finally:
        log.set(before)
