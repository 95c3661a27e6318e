"""Joint control: from position targets to actuator controls of each substep."""

import itertools
import math
from collections.abc import Callable

import torch

from st_rl.sim.backends import Backend
from st_rl.sim.envs.cfg import ControlCfg
from st_rl.sim.robots import Robot


class JointControl:
    """Tracks joint position targets, delayed by each robot's latency, with servos or a PD controller.

    Position actuators take the target itself. Torque actuators get `kp (target - q) - kd qd` in every substep, within
    the effort limits.
    """

    def __init__(
        self,
        robot: Robot,
        backend: Backend,
        cfg: ControlCfg,
        random: torch.Tensor,
        register_buffer: Callable[[str, torch.Tensor], torch.Tensor],
    ) -> None:
        """Sample the latencies from uniform numbers `random` `(N,)`; `register_buffer` is the method of the task."""
        self._backend = backend
        self._substeps = backend.physics.substeps
        is_torque = robot.actuation == "torque"
        if is_torque and (cfg.stiffness is None or cfg.damping is None):
            raise ValueError(
                f"{robot.path} has torque actuators, which need PD gains: "
                "set control.stiffness and control.damping (for example 35 and 0.5)"
            )
        if not is_torque and (cfg.stiffness is not None or cfg.damping is not None):
            raise ValueError(
                f"the servos of {robot.path} have gains of their own, which control.stiffness and control.damping do "
                "not change: leave these out, and set the gains in the MJCF or in `actuators` of its description"
            )
        self._gains = (cfg.stiffness or 0.0, cfg.damping or 0.0) if is_torque else None
        self.target_range = robot.joint_range if is_torque else robot.control_range
        """`(nu, 2)` limits of joint targets, rad; infinite where there are none."""
        limits = torch.tensor(self.target_range, dtype=torch.float32)
        self.lower, self.upper = limits.to(backend.device).unbind(1)
        """`(nu,)` the same as tensors."""
        self.default = float_tensor(robot.default_joint_pos, backend.device).clamp(self.lower, self.upper)
        self.targets = self.default
        """`(N, nu)` joint targets of the last step, within the limits, before any latency."""
        self._effort = float_tensor(robot.effort_limit, backend.device)
        gain = robot.model.actuator_gainprm[:, 0] if is_torque else 1.0
        # Control per unit of joint position (servos) or joint torque (motors).
        self._control_factor = float_tensor(1 / (robot.gear * gain) if is_torque else robot.gear, backend.device)
        self._is_scaled = not torch.equal(self._control_factor, torch.ones_like(self._control_factor))
        self._q = Columns(robot.qpos_indices, backend.device)
        self._qd = Columns(robot.qvel_indices, backend.device)

        if not 0 <= cfg.latency_s[0] <= cfg.latency_s[1]:
            raise ValueError(f"control.latency_s is {cfg.latency_s}: give the shortest and the longest delay, s")
        low, high = (round(latency / backend.physics.timestep) for latency in cfg.latency_s)
        latency = low + torch.floor(random * (high - low + 1)).long().clamp(max=high - low)
        self.latency_s = latency * backend.physics.timestep
        substep = torch.arange(self._substeps, device=backend.device)[:, None]
        # (substeps, N): age of the target of a substep, in actions.
        age = -torch.div(substep - latency[None], self._substeps, rounding_mode="floor")
        self._age = register_buffer("latency_age", age.clamp(min=0))
        length = 1 + math.ceil(high / self._substeps)
        self._history = register_buffer("target_history", self.default.repeat(length, backend.num_envs, 1))

    def apply(self, targets: torch.Tensor) -> None:
        """Step physics for one control period with joint targets `(N, nu)`."""
        targets = self.targets = targets.clamp(self.lower, self.upper)
        is_delayed = len(self._history) > 1
        if is_delayed:
            self._history[1:].copy_(self._history[:-1].clone())
            self._history[0].copy_(targets)
        if not is_delayed and self._gains is None:
            self._set(targets)
            self._backend.step(self._substeps)
            return
        for substep in range(self._substeps):
            target = targets
            if is_delayed:
                index = self._age[substep, None, :, None].expand(1, -1, self._history.shape[2])
                target = self._history.gather(0, index).squeeze(0)
            self._set(target if self._gains is None else self._torque(target))
            self._backend.step(1, read_sensors=substep == self._substeps - 1)

    def reset(self, mask: torch.Tensor) -> None:
        """Clear the target history of the robots of `mask` `(N,)`."""
        if len(self._history) > 1:
            self._history.copy_(torch.where(mask[:, None], self.default, self._history))

    def _torque(self, target: torch.Tensor) -> torch.Tensor:
        """`(N, nu)` PD torque in the current state."""
        stiffness, damping = self._gains or (0.0, 0.0)
        torque = stiffness * (target - self._q(self._backend.qpos)) - damping * self._qd(self._backend.qvel)
        return torque.clamp(-self._effort, self._effort)

    def _set(self, value: torch.Tensor) -> None:
        """Send joint positions or torques `(N, nu)` to the actuators."""
        self._backend.set_control(value * self._control_factor if self._is_scaled else value)


class Columns:
    """Selects columns of a matrix: a view if they are adjacent, a copy otherwise."""

    def __init__(self, indices: tuple[int, ...], device: torch.device) -> None:
        adjacent = all(b == a + 1 for a, b in itertools.pairwise(indices))
        self._slice = slice(indices[0], indices[-1] + 1) if adjacent and indices else None
        self._indices = torch.tensor(indices, dtype=torch.long, device=device)

    def __call__(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the columns `(N, len(indices))` of `matrix` `(N, M)`."""
        return matrix[:, self._slice] if self._slice is not None else matrix.index_select(1, self._indices)


def float_tensor(values: object, device: torch.device) -> torch.Tensor:
    """Return a float32 tensor on a device."""
    return torch.as_tensor(values, dtype=torch.float32, device=device)
