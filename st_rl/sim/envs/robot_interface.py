"""What a walking task does between raw sensors and joint targets, for a policy that runs on a robot.

A term of the observation table is evaluated here with the same function as in the simulation, on a `MeasuredState`
instead of the task. So the function of a term says which sensors it needs: a function that reads only attributes of
`MeasuredState` runs on a robot; one that reads anything else needs what no robot measures.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.envs.term_tables import ObsColumn
from st_rl.sim.robots import Robot
from st_rl.sim.terms.observations import gait_clock, yaw_angle, zero_small_commands
from st_rl.utils.rotations import quat_rotate_inverse
from st_rl.utils.signals import Signal

Tensors = Mapping[str, Tensor]


class MeasuredState:
    """The state of a walking robot as far as it can be measured: attributes of `LeggedWalk` from raw sensors.

    `N` robots, `J` joints and `F` feet in the order of the robot.
    """

    def __init__(self, interface: "RobotInterface", inputs: Tensors, state: Tensors) -> None:
        self.cfg: LeggedWalkCfg = interface.cfg
        self.robot: Robot = interface.robot
        self.step_dt: float = interface.step_dt
        self._interface, self._inputs, self._state = interface, inputs, state

    @property
    def joint_pos(self) -> Tensor:
        """`(N, J)` rad."""
        return self._inputs["joint_pos"]

    @property
    def joint_vel(self) -> Tensor:
        """`(N, J)` rad/s."""
        return self._inputs["joint_vel"]

    @property
    def joint_offset(self) -> Tensor:
        """`(N, J)` joint positions relative to the default pose, rad."""
        return self.joint_pos - self._interface.default_joint_pos

    @property
    def base_ang_vel(self) -> Tensor:
        """`(N, 3)` rad/s, in the frame of the base."""
        return self._inputs["base_ang_vel"]

    @property
    def orientation(self) -> Tensor:
        """`(N, 4)` unit quaternion w, x, y, z of the base in the world."""
        return self._inputs["orientation"]

    @property
    def projected_gravity(self) -> Tensor:
        """`(N, 3)` direction of gravity in the frame of the base."""
        down = self._interface.down.expand(len(self.orientation), 1, 3)
        return quat_rotate_inverse(self.orientation, down)[:, 0]

    @property
    def heading(self) -> Tensor:
        """`(N,)` yaw of the base, rad."""
        return yaw_angle(self.orientation)

    @property
    def foot_contact(self) -> Tensor:
        """`(N, F)` bool: the foot touches something."""
        return self._inputs["foot_contact"] > 0.5

    @property
    def commands(self) -> Tensor:
        """`(N, 3)` forward and leftward velocity, m/s, and yaw rate, rad/s; small commands are zero."""
        return zero_small_commands(self._inputs["command"], self.cfg.commands.moving_threshold)

    @property
    def moving(self) -> Tensor:
        """`(N,)` bool: the command is not to stand."""
        return self.commands.norm(dim=1) > self.cfg.commands.moving_threshold

    @property
    def actions(self) -> Tensor:
        """`(N, J)` last action, clipped."""
        return self._state["previous_actions"]

    @property
    def phase(self) -> Tensor:
        """`(N,)` gait clock, from 0 to 1 over a stride."""
        return self._state["phase"].squeeze(1)

    def clock(self) -> Tensor:
        """`(N, 2)` sine and cosine of the gait clock; zeros for a robot that stands."""
        return gait_clock(self.phase, self.moving, self._interface.quarter_turn, self._interface.full_turn)


class RobotInterface(nn.Module):
    """Observations from raw sensors, and joint targets from actions, as a walking task computes them.

    `inputs` and `states` describe the tensors; in the methods each has a leading axis `N`. Every state starts as zeros.
    """

    default_joint_pos: Tensor
    action_scale: Tensor
    lower: Tensor
    upper: Tensor
    obs_scale: Tensor
    down: Tensor
    quarter_turn: Tensor
    full_turn: Tensor

    def __init__(self, task: LeggedWalk) -> None:
        super().__init__()
        self.cfg, self.robot, self.step_dt = task.cfg, task.robot, task.step_dt
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
            "down": torch.tensor([0.0, 0.0, -1.0]),
            "quarter_turn": torch.tensor([0.0, math.pi / 2]),
            "full_turn": torch.tensor(2 * math.pi),
        }.items():
            self.register_buffer(name, value.detach().to("cpu", torch.float32))
        self.clip_actions = task.cfg.control.clip_actions
        self.clip_observations = task.cfg.normalization.clip_observations
        self._phase_step = task.step_dt / task.cfg.gait.period_s
        self.states: dict[str, Signal] = {
            "previous_actions": Signal((num_joints,), "1", "clipped actions of the last step"),
            "phase": Signal((1,), "stride", "gait clock, from 0 to 1 over a stride"),
        }
        """What one step passes to the next."""
        sensors = _sensors(num_joints, len(task.robot.feet))
        recorder = _Recorder({name: torch.zeros(1, *signal.shape) for name, signal in sensors.items()})
        self.unmeasured = self._find_unmeasured(recorder)
        """Attribute of the task that no robot measures, by the name of the term that reads it."""
        self.inputs: dict[str, Signal] = {name: sensors[name] for name in sensors if name in recorder.read}
        """Raw inputs by name: the sensors that the terms read, then terms that no sensor measures."""
        for column in self._unmeasured_columns():
            meaning = f"observation term {column.name}"
            self.inputs[column.name] = Signal(_shape(column), "SI, before scaling", meaning, must_be_estimated=True)

    def observe(self, inputs: Tensors, state: Tensors) -> Tensor:
        """`(N, O)` actor observation, scaled and clipped."""
        measured = MeasuredState(self, inputs, state)
        parts = [
            inputs[column.name].flatten(1) if column.name in self.unmeasured else column.term.function(measured)
            for column in self.columns
        ]
        scaled = torch.cat([part.float() for part in parts], dim=1) * self.obs_scale
        return scaled.clamp(-self.clip_observations, self.clip_observations)

    def clip(self, actions: Tensor) -> Tensor:
        """Actions `(N, J)` within `clip_actions`."""
        return actions.clamp(-self.clip_actions, self.clip_actions)

    def joint_targets(self, actions: Tensor) -> Tensor:
        """`(N, J)` joint position targets of clipped actions `(N, J)`, within the limits, rad."""
        targets = torch.addcmul(self.default_joint_pos, actions, self.action_scale)
        return torch.minimum(torch.maximum(targets, self.lower), self.upper)

    def next_state(self, state: Tensors, actions: Tensor) -> dict[str, Tensor]:
        """The states after a step with clipped actions `(N, J)`."""
        return {"previous_actions": actions, "phase": (state["phase"] + self._phase_step).frac()}

    def read_task(self, task: LeggedWalk) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Inputs and states of all robots of a task in its current state, as a robot would deliver them."""
        readings = {
            "joint_pos": task.joint_pos,
            "joint_vel": task.joint_vel,
            "base_ang_vel": task.base_ang_vel,
            "orientation": task.orientation,
            "command": task.commands,
            "foot_contact": task.foot_contact.float(),
        }
        readings |= {c.name: c.term.function(task).unflatten(1, _shape(c)) for c in self._unmeasured_columns()}
        inputs = {name: readings[name].detach().cpu().clone() for name in self.inputs}
        return inputs, {
            "previous_actions": task.actions.cpu().clone(),
            "phase": task.phase[:, None].cpu().clone(),
        }

    def sent_targets(self, task: LeggedWalk) -> Tensor:
        """`(N, J)` joint targets that the last step of a task sent to its joints, rad."""
        return task.joint_control.targets.cpu()

    def describe(self) -> dict[str, Any]:
        """What a controller needs to know of robot and task, for `deploy.yaml`."""
        robot, cfg = self.robot, self.cfg
        control, count = cfg.control, robot.num_joints
        stiffness = robot.stiffness if control.stiffness is None else [control.stiffness] * count
        damping = robot.damping if control.damping is None else [control.damping] * count
        columns = {
            "default_pos": robot.default_joint_pos,
            "lower": self.lower.double().numpy(),
            "upper": self.upper.double().numpy(),
            "stiffness": stiffness,
            "damping": damping,
            "effort_limit": robot.effort_limit,
            "action_scale": [float(scale) for scale in np.broadcast_to(control.action_scale, count)],
        }
        rows = zip(*(map(_finite, column) for column in columns.values()))
        return {
            "control_period_s": self.step_dt,
            "joints": [{"name": name, **dict(zip(columns, row))} for name, row in zip(robot.joint_names, rows)],
            "feet": [foot.name for foot in robot.feet],
            "actuation": robot.actuation,
            "clip_actions": self.clip_actions,
            "clip_observations": self.clip_observations,
            "observation": [
                {"name": c.name, "start": c.start, "width": c.width, "scale": c.scale} for c in self.columns
            ],
            "gait_period_s": cfg.gait.period_s,
            "commands": {name: list(getattr(cfg.commands, name)) for name in ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")},
            "moving_threshold": cfg.commands.moving_threshold,
        }

    def _find_unmeasured(self, inputs: Tensors) -> dict[str, str]:
        """The attribute that a `MeasuredState` of these inputs lacks, by the name of the term that reads it."""
        state = {name: torch.zeros(1, *signal.shape) for name, signal in self.states.items()}
        measured, found = MeasuredState(self, inputs, state), {}
        for column in self.columns:
            try:
                column.term.function(measured)
            except AttributeError as error:
                if error.obj is not measured:
                    raise
                found[column.name] = str(error.name)
        return found

    def _unmeasured_columns(self) -> list[ObsColumn]:
        return [column for column in self.columns if column.name in self.unmeasured]


class _Recorder(dict[str, Tensor]):
    """A dictionary that records which keys are read."""

    def __init__(self, values: Tensors) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Tensor:
        self.read.add(key)
        return super().__getitem__(key)


def _sensors(num_joints: int, num_feet: int) -> dict[str, Signal]:
    """All sensors that a robot may have."""
    return {
        "joint_pos": Signal((num_joints,), "rad", "positions of the joints, in the order of `joints`"),
        "joint_vel": Signal((num_joints,), "rad/s", "velocities of the joints, in the order of `joints`"),
        "base_ang_vel": Signal((3,), "rad/s in the frame of the base", "angular velocity x, y, z of the base"),
        "orientation": Signal((4,), "unit quaternion w, x, y, z", "rotation from the base to the world, z up"),
        "command": Signal((3,), "m/s, m/s, rad/s in the frame of the base", "forward, leftward and yaw velocity"),
        "foot_contact": Signal((num_feet,), "1", "1 where the foot touches something, else 0, in the order of `feet`"),
    }


def _finite(value: float) -> float | None:
    """The number; None for an infinite one."""
    return float(value) if math.isfinite(value) else None


def _shape(column: ObsColumn) -> tuple[int, ...]:
    """Shape of a term without the batch axis."""
    return (column.shape,) if isinstance(column.shape, int) else tuple(column.shape)
