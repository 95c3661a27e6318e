"""What a walking robot measures of itself.

An observation term is evaluated with one function, in the simulation on the task and on a robot on a `MeasuredState`.
So the function of a term says which sensors it needs: a function that reads only attributes of `MeasuredState` runs on
a robot; one that reads anything else needs what no robot measures.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from st_rl.env.signals import Signal
from st_rl.sim.robots import Robot
from st_rl.sim.terms.observations import gait_clock, yaw_angle, zero_small_commands
from st_rl.utils.tensors.rotations import quat_rotate_inverse

if TYPE_CHECKING:
    from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
    from st_rl.sim.envs.term_tables import ObsTerm

Tensors = Mapping[str, Tensor]


def sensor_signals(robot: Robot) -> dict[str, Signal]:
    """All raw sensors that a robot may have, and the command, by name."""
    joints, feet = (robot.num_joints,), (len(robot.feet),)
    return {
        "joint_pos": Signal(joints, "rad", "positions of the joints, in the order of `joints`"),
        "joint_vel": Signal(joints, "rad/s", "velocities of the joints, in the order of `joints`"),
        "base_ang_vel": Signal((3,), "rad/s in the frame of the base", "angular velocity x, y, z of the base"),
        "orientation": Signal((4,), "unit quaternion w, x, y, z", "rotation from the base to the world, z up"),
        "command": Signal((3,), "m/s, m/s, rad/s in the frame of the base", "forward, leftward and yaw velocity"),
        "foot_contact": Signal(feet, "1", "1 where the foot touches something, else 0, in the order of `feet`"),
    }


def state_signals(robot: Robot) -> dict[str, Signal]:
    """What one step passes to the next, by name; zeros at the start."""
    return {
        "previous_actions": Signal((robot.num_joints,), "1", "clipped actions of the last step"),
        "phase": Signal((1,), "stride", "gait clock, from 0 to 1 over a stride"),
    }


class MeasuredState:
    """The state of a walking robot as far as it can be measured: attributes of `LeggedWalk` from raw sensors.

    `N` robots, `J` joints and `F` feet in the order of the robot.
    """

    def __init__(self, robot: Robot, cfg: "LeggedWalkCfg", inputs: Tensors, state: Tensors) -> None:
        self.robot, self.cfg, self.step_dt = robot, cfg, cfg.physics.control_period
        self.num_envs, self.device = len(state["previous_actions"]), state["previous_actions"].device
        self.default_joint_pos = torch.tensor(robot.default_joint_pos.tolist())
        self._inputs, self._state = inputs, state

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
        return self.joint_pos - self.default_joint_pos

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
        down = torch.tensor([[[0.0, 0.0, -1.0]]]).expand(len(self.orientation), 1, 3)
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
        return gait_clock(self.phase, self.moving, torch.tensor([0.0, math.pi / 2]), torch.tensor(2 * math.pi))


class TermSensors(NamedTuple):
    """What the functions of observation terms read."""

    sensors: dict[str, Signal]
    """Raw sensors by name."""
    unmeasured: dict[str, str]
    """The attribute of the task that no robot measures, by the name of the term that reads it."""


def find_sensors(terms: Mapping[str, "ObsTerm"], robot: Robot, cfg: "LeggedWalkCfg") -> TermSensors:
    """Evaluate the functions of terms on a `MeasuredState` and report what they read."""

    def measure(inputs: Tensors, state: Tensors) -> MeasuredState:
        return MeasuredState(robot, cfg, inputs, state)

    return find_read_signals(terms, sensor_signals(robot), state_signals(robot), measure)


def find_read_signals(
    terms: Mapping[str, "ObsTerm"],
    signals: Mapping[str, Signal],
    states: Mapping[str, Signal],
    measure: Callable[[Tensors, Tensors], MeasuredState],
) -> TermSensors:
    """Evaluate the functions of terms on what `measure` makes of inputs and states, and report what they read."""
    inputs = _Recorder({name: torch.zeros(1, *signal.shape) for name, signal in signals.items()})
    state = {name: torch.zeros(1, *signal.shape) for name, signal in states.items()}
    measured, unmeasured = measure(inputs, state), {}
    for name, term in terms.items():
        try:
            term.function(measured)
        except AttributeError as error:
            if error.obj is not measured:
                raise
            unmeasured[name] = str(error.name)
    return TermSensors({name: signal for name, signal in signals.items() if name in inputs.read}, unmeasured)


class _Recorder(dict[str, Tensor]):
    """A dictionary that records which keys are read."""

    def __init__(self, values: Tensors) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Tensor:
        self.read.add(key)
        return super().__getitem__(key)
