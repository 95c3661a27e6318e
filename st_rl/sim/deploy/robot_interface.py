"""What a walking task does between raw sensors and joint targets, for a policy that runs on a robot."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from st_rl.env.signals import Signal
from st_rl.sim.deploy.measured_state import MeasuredState, Tensors, find_read_signals, sensor_signals, state_signals
from st_rl.sim.envs.legged_task import LeggedTask
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.term_tables import ObsColumn
from st_rl.sim.robots.save_mjcf import save_mjcf


class RobotInterface(nn.Module):
    """Observations from raw sensors, and joint targets from actions, as a walking task computes them.

    `inputs` and `states` describe the tensors; in the methods each has a leading axis `N`. Every state starts as zeros.
    """

    default_joint_pos: Tensor
    action_scale: Tensor
    lower: Tensor
    upper: Tensor
    obs_scale: Tensor

    cfg: Any

    def __init__(self, task: LeggedTask, ignored: Collection[str] = ()) -> None:
        """Read the interface from a task; `ignored` terms, which the policy does not use, are zeros."""
        super().__init__()
        self.ignored = frozenset(ignored)
        self.cfg, self.robot, self._io = task.cfg, task.robot, task.describe_io()
        table, num_joints = task.observation_table, task.robot.num_joints
        self.columns: Sequence[ObsColumn] = [c for c in table.columns if c.start < table.num_actor]
        """Terms of the actor observation, in order."""
        scales = [column.scale for column in self.columns for _ in range(column.width)]
        for name, value in {
            "default_joint_pos": torch.as_tensor(task.robot.default_joint_pos),
            "action_scale": torch.as_tensor(task.cfg.control.action_scale).expand(num_joints).clone(),
            "lower": task.joint_control.lower,
            "upper": task.joint_control.upper,
            "obs_scale": torch.tensor(scales),
        }.items():
            self.register_buffer(name, value.detach().to("cpu", torch.float32))
        self.clip_actions = task.cfg.control.clip_actions
        self.clip_observations = task.cfg.normalization.clip_observations
        self._read_settings(task)
        self.states: dict[str, Signal] = self.state_signals()
        """What one step passes to the next."""
        terms = {column.name: column.term for column in self.columns if column.name not in self.ignored}
        self.inputs, self.unmeasured = find_read_signals(terms, self.sensors(), self.states, self.measure)
        """Raw inputs by name; the attribute that no robot measures, by the name of the term that reads it."""
        for column in self._unmeasured_columns():
            # Such a term is an input itself.
            term, meaning = column.term, column.description or f"observation term {column.name}"
            unit = f"{term.unit} in the frame {term.frame}" if term.frame else term.unit
            self.inputs[column.name] = Signal(_shape(column), unit, meaning, must_be_estimated=True)

    def observe(self, inputs: Tensors, state: Tensors) -> Tensor:
        """`(N, O)` actor observation, scaled and clipped."""
        measured = self.measure(inputs, state)
        parts = [self._term(column, measured, inputs).float() for column in self.columns]
        return (torch.cat(parts, dim=1) * self.obs_scale).clamp(-self.clip_observations, self.clip_observations)

    def _term(self, column: ObsColumn, measured: MeasuredState, inputs: Tensors) -> Tensor:
        """`(N, width)` columns of one term, before scaling."""
        if column.name in self.ignored:
            return torch.zeros(measured.num_envs, column.width)
        return inputs[column.name].flatten(1) if column.name in self.unmeasured else column.term.function(measured)

    def clip(self, actions: Tensor) -> Tensor:
        """Actions `(N, J)` within `clip_actions`."""
        return actions.clamp(-self.clip_actions, self.clip_actions)

    def joint_targets(self, inputs: Tensors, state: Tensors, actions: Tensor) -> Tensor:
        """`(N, J)` joint position targets of clipped actions `(N, J)`, within the limits, rad."""
        targets = torch.addcmul(self.action_center(inputs, state), actions, self.action_scale)
        return torch.minimum(torch.maximum(targets, self.lower), self.upper)

    def next_state(self, inputs: Tensors, state: Tensors, obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """The states after a step with observation `(N, O)` and clipped actions `(N, J)`."""
        return {"previous_actions": actions, "phase": (state["phase"] + self._phase_step).frac()}

    def read_task(self, task: LeggedTask) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs and states of all robots of a task in its current state, as a robot would deliver them."""
        readings = self._readings(task)
        readings |= {c.name: c.term.function(task).unflatten(1, _shape(c)) for c in self._unmeasured_columns()}
        inputs = {name: readings[name].detach().cpu().clone() for name in self.inputs}
        return inputs, {name: value.cpu().clone() for name, value in self._started_states(task).items()}

    def sent_targets(self, task: LeggedTask) -> Tensor:
        """`(N, J)` joint targets that the last step of a task sent to its joints, rad."""
        return task.joint_control.targets.cpu()

    def initial_states(self, task: LeggedTask) -> tuple[np.ndarray, np.ndarray]:
        """Positions `(N, nq)` and velocities `(N, nv)` of all robots of a task, as `robot.xml` has them."""
        return task.backend.qpos.double().cpu().numpy(), task.backend.qvel.double().cpu().numpy()

    def save_robot(self, path: Path) -> None:
        """Write the robot in its world as an MJCF file with all files it needs; its controls are joint targets."""
        gains = np.stack([self._io["stiffness"], self._io["damping"]], axis=1)
        save_mjcf(self.robot, gains, self._io["joint_target_range"], path)

    def describe(self) -> dict[str, Any]:
        """What a controller needs to know of robot and task, for `deploy.yaml`."""
        robot, io = self.robot, self._io
        lower, upper = np.transpose(io["joint_target_range"])
        columns = {
            "default_pos": io["default_joint_pos"],
            "lower": lower,
            "upper": upper,
            "stiffness": io["stiffness"],
            "damping": io["damping"],
            "effort_limit": io["effort_limit"],
            # No MJCF has one.
            "velocity_limit": np.full(robot.num_joints, np.inf),
            "action_scale": np.broadcast_to(io["action_scale"], robot.num_joints),
        }
        rows = zip(*(map(_finite, column) for column in columns.values()))
        base = robot.require_locomotion("a deployed policy")
        return {
            "control_period_s": io["control_period_s"],
            "torque_period_s": io["torque_period_s"],
            "quaternion": "w, x, y, z",
            "joints": [{"name": name, **dict(zip(columns, row))} for name, row in zip(io["joint_names"], rows)],
            "feet": [foot.name for foot in robot.feet],
            "robot": {
                "base_body": io["base_body"],
                "base_qpos": base.qpos,
                "base_qvel": base.qvel,
                "joint_qpos": robot.qpos_indices,
                "joint_qvel": robot.qvel_indices,
                "foot_sensors": [foot.contact for foot in robot.feet],
                "mass_kg": robot.mass,
            },
            "sensor_noise": self._sensor_noise(),
            **self._describe_task(),
            "clip_actions": self.clip_actions,
            "observation": io["obs_terms"],
            "frames": io["frames"],
        }

    # What differs between walking and motion tracking.

    def _read_settings(self, task: LeggedTask) -> None:
        """Copy what observations and states need of the task."""
        if not isinstance(task, LeggedWalk):
            raise TypeError(f"{type(task).__name__} is not a walking task: use make_interface of tracking_interface")
        self._steering = task.describe_steering()
        self._fall = {"max_tilt_rad": math.acos(task.MAX_TILT_COSINE), "contact_sensors": task.fall_sensors}
        self._phase_step = task.step_dt / task.cfg.gait.period_s

    def sensors(self) -> dict[str, Signal]:
        """All raw inputs that a policy may need, by name."""
        return sensor_signals(self.robot)

    def state_signals(self) -> dict[str, Signal]:
        """What one step passes to the next, by name."""
        return state_signals(self.robot)

    def measure(self, inputs: Tensors, state: Tensors) -> MeasuredState:
        """What observation terms read."""
        return MeasuredState(self.robot, self.cfg, inputs, state)

    def action_center(self, inputs: Tensors, state: Tensors) -> Tensor:
        """Joint targets `(J,)` or `(N, J)` of actions of zero, rad."""
        return self.default_joint_pos

    def _readings(self, task: LeggedTask) -> dict[str, Tensor]:
        """Raw inputs of all robots of a task by name."""
        # A task with a history is not a LeggedWalk, but has its attributes.
        walk = cast("LeggedWalk", task)
        return {
            "joint_pos": walk.joint_pos,
            "joint_vel": walk.joint_vel,
            "base_ang_vel": walk.base_ang_vel,
            "orientation": walk.orientation,
            "command": walk.commands,
            "foot_contact": walk.foot_contact.float(),
        }

    def _started_states(self, task: LeggedTask) -> dict[str, Tensor]:
        """States of all robots of a task by name."""
        walk = cast("LeggedWalk", task)
        return {"previous_actions": walk.actions, "phase": walk.phase[:, None]}

    def _describe_task(self) -> dict[str, Any]:
        """What an operator may ask for, and what a fall is."""
        commands = {name: vars(self.cfg.commands)[name] for name in ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")}
        return {"commands": commands, "steering": self._steering, "clock": self._io["clock"], "fall": self._fall}

    def _sensor_noise(self) -> dict[str, float]:
        """Amplitude of the uniform noise of the training by input; for the orientation a rotation in rad."""
        noise = self.cfg.noise
        amplitudes = {"joint_pos": noise.joint_pos, "joint_vel": noise.joint_vel, "base_ang_vel": noise.ang_vel}
        return {name: noise.level * value for name, value in {**amplitudes, "orientation": noise.gravity}.items()}

    def _unmeasured_columns(self) -> list[ObsColumn]:
        return [column for column in self.columns if column.name in self.unmeasured]


def _finite(value: float) -> float | None:
    """The number; None for an infinite one."""
    return float(value) if math.isfinite(value) else None


def _shape(column: ObsColumn) -> tuple[int, ...]:
    """Shape of a term without the batch axis."""
    return (column.shape,) if isinstance(column.shape, int) else tuple(column.shape)
