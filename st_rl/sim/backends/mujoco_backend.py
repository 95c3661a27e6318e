"""MuJoCo on CPU threads."""

import contextlib
import ctypes
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from st_rl.sim.backends.base import Backend, PhysicsCfg
from st_rl.sim.require import MjModel, mujoco
from st_rl.system_info import num_cores
from st_rl.utils.log import logger


class MujocoBackend(Backend):
    """Steps robots with `mujoco.batch.Batch`, bitwise equal to `mj_step` for each of them.

    MuJoCo's state is float64, in rows that torch shares; a step converts what a task reads to float32. Everything but a
    step is plain torch, so that the code of a task between two steps can be compiled. A reset writes the float32
    tensors only; the rows of MuJoCo are written before the next step, because few of them change and a masked write of
    all rows would evict them from the caches of the stepping threads.
    """

    def __init__(self, model: MjModel, num_envs: int, physics: PhysicsCfg, device: torch.device | str = "cpu") -> None:
        super().__init__(model, num_envs, physics, device)
        if self.device.type != "cpu":
            raise ValueError(f"MujocoBackend runs on the CPU, got device '{device}'")
        self.num_threads = physics.num_threads or num_cores()
        self._batch = mujoco.batch.Batch(self.model, num_envs, self.num_threads)
        self._sensor_rows = self._batch.bind("sensordata")
        self._force_rows = self._batch.bind("qfrc_actuator")
        self._batch.reset(stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self._state = torch.from_numpy(self._batch.state)
        self._initial_row = self._batch.state[0].copy()
        # Robots that were reset and of which the rows are not written yet.
        self._is_reset = torch.zeros(num_envs, dtype=torch.bool)
        self._columns = {name: _columns(self._batch, name) for name in ("qpos", "qvel", "ctrl")}
        # qpos and qvel are adjacent in a row, so one copy converts both.
        self._motion = slice(self._columns["qpos"].start, self._columns["qvel"].stop)
        self._motion32 = self._state[:, self._motion].float()
        self.qpos, self.qvel = self._motion32.split([model.nq, model.nv], dim=1)
        self.sensordata = torch.zeros(num_envs, model.nsensordata)
        self.joint_force = torch.zeros(num_envs, model.nv)
        self._engine_log = getattr(mujoco, "MjLogConfig", None)
        self._simulation_error = mujoco.batch.SimulationError
        self._diverged = torch.zeros(num_envs, dtype=torch.bool)
        self._reported: set[int] = set()
        self._is_forked = False
        if self.num_threads > 1:
            _THREADED_BACKENDS.add(self)

    @property
    def batch(self) -> Any:
        """The `mujoco.batch.Batch`, with all resets applied; RuntimeError in a forked child, which has no threads."""
        if self._is_forked:
            raise RuntimeError(
                f"the simulation cannot run in process {os.getpid()}: it was created before the process was forked, "
                "and its threads did not follow. Create the environment in the child, start processes with "
                "multiprocessing.get_context('spawn'), or set physics.num_threads=1"
            )
        self._write_resets()
        return self._batch

    def set_control(self, control: torch.Tensor) -> None:
        """Set the control `(N, nu)` of the following steps."""
        self._write_resets()
        self._state[:, self._columns["ctrl"]].copy_(control)

    def step(self, num_substeps: int = 1, read_sensors: bool = True) -> None:
        """Advance all robots by `num_substeps` calls of `mj_step`, without holding the GIL."""
        batch = self.batch
        try:
            with _silence(self._engine_log):
                batch.step(nstep=num_substeps)
        except self._simulation_error as error:
            # The robots in error.ids keep their state; the others were stepped.
            self._diverged.numpy()[error.ids] = True
            logger.warning(str(error))
        np.copyto(self._motion32.numpy(), batch.state[:, self._motion])
        np.copyto(self.sensordata.numpy(), self._sensor_rows)
        np.copyto(self.joint_force.numpy(), self._force_rows)
        if batch.warning.any():
            self._diverged.numpy()[:] |= batch.warning[:, _FIRST_DIVERGENCE:, 1].any(axis=1)
            self._report_other_warnings()
            batch.warning[:] = 0

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Reset the robots of `mask` `(N,)`; other robots stay bitwise unchanged."""
        column = mask[:, None]
        self._is_reset.logical_or_(mask)
        self._motion32.copy_(torch.where(column, torch.cat([qpos, qvel], dim=1), self._motion32))
        self.sensordata.masked_fill_(column, 0.0)
        self.joint_force.masked_fill_(column, 0.0)

    def add_velocity(self, delta: torch.Tensor, mask: torch.Tensor, column: int = 0) -> None:
        """Add `delta` `(N, k)` to `k` columns of `qvel`, starting at `column`, for the robots of `mask` `(N,)`."""
        start, width = self._columns["qvel"].start + column, delta.shape[1]
        delta = torch.where(mask[:, None], delta, 0.0)
        velocity, velocity32 = self._state[:, start : start + width], self.qvel[:, column : column + width]
        velocity.add_(delta)
        # The row of a reset robot still holds its last episode.
        velocity32.copy_(torch.where(self._is_reset[:, None], velocity32 + delta, velocity))

    def expand(self, field: str) -> torch.Tensor:
        """Give a model field one value per robot and return it, `(N, ...)` float64; writes take effect."""
        if field not in self._fields:
            self._fields[field] = torch.from_numpy(self.batch.expand(field))
        return self._fields[field]

    def refresh_constants(self) -> None:
        """Recompute the constants that depend on expanded fields."""
        self.batch.set_const()
        self._has_own_constants = True

    def check_diverged(self) -> torch.Tensor:
        """`(N,)` bool from the warnings and errors of the engine, which are cleared, and from non-finite states.

        MuJoCo resets a diverged simulation to the default pose and reports success, so the state alone does not tell.
        """
        # A sum is finite only if all its terms are.
        diverged = self._motion32.sum(dim=1).isfinite().logical_not_() | self._diverged
        self._diverged.fill_(False)
        return diverged

    def state_dict(self) -> dict[str, Any]:
        """State, last readings and expanded model fields of all robots, for a bit-exact resume."""
        self._write_resets()
        return {
            "state": self._state.clone(),
            "sensordata": self.sensordata.clone(),
            "joint_force": self.joint_force.clone(),
            **self._field_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; ValueError if it belongs to another robot or number of robots."""
        if state["state"].shape != self._state.shape:
            raise ValueError(
                f"the saved simulation has shape {tuple(state['state'].shape)} (robots, numbers), "
                f"this one {tuple(self._state.shape)}: load it with the same robot and num_envs"
            )
        self._state.copy_(state["state"])
        self._is_reset.fill_(False)
        self._motion32.copy_(self._state[:, self._motion])
        self.sensordata.copy_(state["sensordata"])
        self.joint_force.copy_(state["joint_force"])
        self._load_field_state(state)
        self.batch.warning[:] = 0
        self._diverged.fill_(False)

    def _write_resets(self) -> None:
        is_reset = self._is_reset.numpy()
        if is_reset.any():
            rows = np.flatnonzero(is_reset)
            self._batch.state[rows] = self._initial_row
            self._batch.state[rows, self._motion] = self._motion32.numpy()[rows]
            is_reset[:] = False

    def _report_other_warnings(self) -> None:
        """Log each kind of warning that does not mean divergence, such as a full contact buffer, once."""
        counts = self.batch.warning[:, :_FIRST_DIVERGENCE, 1]
        if not counts.any():
            return
        for kind in np.flatnonzero(counts.any(axis=0)):
            if int(kind) not in self._reported:
                self._reported.add(int(kind))
                row = int(np.flatnonzero(counts[:, kind])[0])
                text = mujoco.mju_warningText(int(kind), int(self.batch.warning[row, kind, 0]))
                logger.warning(f"MuJoCo, robot {row}: {text}")


_THREADED_BACKENDS: weakref.WeakSet[MujocoBackend] = weakref.WeakSet()


def _mark_forked_backends() -> None:
    """Make every use in a forked child an error: without threads it would wait forever, its deletion too."""
    for backend in _THREADED_BACKENDS:
        backend._is_forked = True
        # One more reference than there are, so that the batch is never deleted.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend._batch))


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_mark_forked_backends)

# Warnings from this index on mean divergence: bad positions, velocities, accelerations and controls.
_FIRST_DIVERGENCE = 3


def _columns(batch: Any, field: str) -> slice:
    """Columns of a state field in the rows of `batch.state`."""
    view = batch.bind(field)
    offset = (view.ctypes.data - batch.state.ctypes.data) // batch.state.itemsize
    return slice(offset, offset + view.shape[1])


@contextlib.contextmanager
def _silence(log: Any) -> Iterator[None]:
    """Keep MuJoCo from printing and from writing a log file; its warnings are read from the batch instead."""
    if log is None:  # MuJoCo before 4.0
        yield
        return
    before, quiet = log.get(), log.get()
    quiet.logto_console = quiet.logto_file = False
    log.set(quiet)
    try:
        yield
    finally:
        log.set(before)
