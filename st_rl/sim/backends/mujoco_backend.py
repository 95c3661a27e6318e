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

    MuJoCo's state is float64 and lives in rows that torch shares; it is converted to float32 once for each step, when
    it is first read.
    """

    def __init__(self, model: Any, num_envs: int, physics: PhysicsCfg, device: torch.device | str = "cpu") -> None:
        """Create the robots in the model's default pose."""
        super().__init__(model, num_envs, physics, device)
        if self.device.type != "cpu":
            raise ValueError(f"MujocoBackend runs on the CPU, got device '{device}'")
        mujoco = require_mujoco()
        self.num_threads = physics.num_threads or _num_cores()
        self.batch = mujoco.batch.Batch(self.model, num_envs, self.num_threads)
        self._sensors = self.batch.bind("sensordata")
        self._forces = self.batch.bind("qfrc_actuator")
        self.batch.reset(stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self._state = torch.from_numpy(self.batch.state)
        self._fresh_row = self.batch.state[0].copy()
        self._columns = {name: _columns(self.batch, name) for name in ("qpos", "qvel", "ctrl")}
        # qpos and qvel lie side by side in a row, so one copy converts both.
        self._motion = slice(self._columns["qpos"].start, self._columns["qvel"].stop)
        self._motion32 = self._state[:, self._motion].float()
        self._qpos32, self._qvel32 = self._motion32.split([model.nq, model.nv], dim=1)
        self._sensors32 = torch.zeros(num_envs, model.nsensordata)
        self._forces32 = torch.zeros(num_envs, model.nv)
        self._motion_is_stale = self._sensors_are_stale = self._forces_are_stale = False
        self._engine_log = getattr(mujoco, "MjLogConfig", None)
        self._simulation_error = mujoco.batch.SimulationError
        self._failed = np.zeros(num_envs, dtype=bool)
        self._fields: dict[str, torch.Tensor] = {}
        self._constants_follow = False
        self._reported: set[int] = set()

    @property
    def qpos(self) -> torch.Tensor:
        """`(N, nq)` positions."""
        self._refresh_motion()
        return self._qpos32

    @property
    def qvel(self) -> torch.Tensor:
        """`(N, nv)` velocities."""
        self._refresh_motion()
        return self._qvel32

    @property
    def sensordata(self) -> torch.Tensor:
        """`(N, nsensordata)` sensor readings."""
        if self._sensors_are_stale:
            np.copyto(self._sensors32.numpy(), self._sensors)
            self._sensors_are_stale = False
        return self._sensors32

    @property
    def joint_force(self) -> torch.Tensor:
        """`(N, nv)` generalised force of the actuators."""
        if self._forces_are_stale:
            np.copyto(self._forces32.numpy(), self._forces)
            self._forces_are_stale = False
        return self._forces32

    def set_control(self, control: torch.Tensor) -> None:
        """Set the control `(N, nu)` that the following steps apply."""
        self._state[:, self._columns["ctrl"]].copy_(control)

    def step(self, num_substeps: int = 1) -> None:
        """Advance every robot by `num_substeps` calls of `mj_step`, outside Python's lock."""
        try:
            with _quiet(self._engine_log):
                self.batch.step(nstep=num_substeps)
        except self._simulation_error as error:
            # The robots named kept the state they had; the others were stepped.
            self._failed[error.ids] = True
            logger.warning(str(error))
        self._motion_is_stale = self._sensors_are_stale = self._forces_are_stale = True

    def reset(self, mask: torch.Tensor, qpos: torch.Tensor, qvel: torch.Tensor) -> None:
        """Write fresh rows for the robots of `mask` `(N,)`; on the CPU an index list costs no sync."""
        rows = np.flatnonzero(mask.numpy())
        if len(rows) == 0:
            return
        state = self.batch.state
        state[rows] = self._fresh_row
        state[rows, self._columns["qpos"]] = qpos.numpy()[rows]
        state[rows, self._columns["qvel"]] = qvel.numpy()[rows]
        self._refresh_motion()
        self._motion32.numpy()[rows] = state[rows, self._motion]
        self.sensordata.numpy()[rows] = 0.0
        self.joint_force.numpy()[rows] = 0.0

    def add_velocity(self, delta: torch.Tensor, mask: torch.Tensor, column: int = 0) -> None:
        """Add `delta` `(N, k)` to `k` columns of `qvel`, from `column` on, for the robots of `mask` `(N,)`."""
        start, stop = column, column + delta.shape[1]
        velocity = self.batch.state[:, self._columns["qvel"]][:, start:stop]
        np.add(velocity, delta.numpy(), out=velocity, where=mask.numpy()[:, None])
        if not self._motion_is_stale:
            np.copyto(self._qvel32.numpy()[:, start:stop], velocity)

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
        self._refresh_motion()
        # One sum instead of a test for each number: it is finite only if all of them are.
        diverged = self._motion32.sum(dim=1).isfinite().logical_not_()
        if self.batch.warning.any() or self._failed.any():
            unstable = self.batch.warning[:, _FIRST_UNSTABLE:, 1].any(axis=1) | self._failed
            diverged |= torch.from_numpy(unstable)
            self._report_other_warnings()
            self.batch.warning[:] = 0
            self._failed[:] = False
        return diverged

    def state_dict(self) -> dict[str, Any]:
        """Integration state of every robot, last readings and model fields per robot: enough to go on bit by bit."""
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
        self._motion32.copy_(self._state[:, self._motion])
        self._sensors32.copy_(state["sensordata"])
        self._forces32.copy_(state["joint_force"])
        self._motion_is_stale = self._sensors_are_stale = self._forces_are_stale = False
        for name, value in state["fields"].items():
            self.expand(name).copy_(value)
        if state["constants_follow"]:
            self.refresh_constants()
        self.batch.warning[:] = 0
        self._failed[:] = False

    def _refresh_motion(self) -> None:
        """Convert positions and velocities unless that has been done since the last step."""
        if self._motion_is_stale:
            np.copyto(self._motion32.numpy(), self.batch.state[:, self._motion])
            self._motion_is_stale = False

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
