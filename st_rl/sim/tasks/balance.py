"""The task `balance`: keep a pole upright on a cart. It learns in seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from st_rl.sim.envs.cfg import ControlCfg, NormalizationCfg, Range, TaskCfg
from st_rl.sim.envs.task import Task
from st_rl.sim.envs.term_tables import ObsTerm, RewardTerm, Term, default_weights
from st_rl.sim.tasks.training import TaskEntry, ppo_config


def upright(task: "Balance") -> torch.Tensor:
    """One when the pole points straight up, zero when it is level."""
    return task.pole_angle.cos()


def centred(task: "Balance") -> torch.Tensor:
    """Squared distance of the cart from the middle of the rail."""
    return task.cart_position.square()


def effort(task: "Balance") -> torch.Tensor:
    """Squared action."""
    return task.actions.square().sum(dim=1)


def pole_down(task: "Balance") -> torch.Tensor:
    """Whether the pole leans by more than `max_angle`."""
    return task.pole_angle.abs() > task.cfg.max_angle


def off_rail(task: "Balance") -> torch.Tensor:
    """Whether the cart is more than `max_position` from the middle."""
    return task.cart_position.abs() > task.cfg.max_position


@dataclass
class BalanceCfg(TaskCfg):
    """Settings of `balance`."""

    robot: str = "cartpole"
    """Path of an MJCF file with joints `slider` and `hinge`, or the name of a built-in robot."""
    num_envs: int = 64
    episode_length_s: float = 5.0
    control: ControlCfg = field(default_factory=lambda: ControlCfg(action_scale=6.0, clip_actions=2.0))
    """Force on the cart = action_scale * action, in N."""
    normalization: NormalizationCfg = field(
        default_factory=lambda: NormalizationCfg({"position": 1.0, "lin_vel": 0.5, "angle": 4.0, "ang_vel": 0.5})
    )
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(Balance.REWARDS))
    max_angle: float = 0.6
    """Angle of the pole from upright at which an episode ends, rad."""
    max_position: float = 2.0
    """Distance of the cart from the middle at which an episode ends, m."""
    start_spread: float = 0.2
    """Largest position and velocity of cart and pole at the start, m, rad, m/s and rad/s."""


class Balance(Task):
    """Cart-poles that are pushed by a force on the cart."""

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {
        "cart_position": ObsTerm(
            lambda task: task.cart_position[:, None],
            width=1,
            scale="position",
            unit="m",
            frame="joint",
            description="position of the cart on its rail, from the middle",
        ),
        "cart_velocity": ObsTerm(
            lambda task: task.cart_velocity[:, None],
            width=1,
            scale="lin_vel",
            unit="m/s",
            frame="joint",
            description="velocity of the cart",
        ),
        "pole_angle": ObsTerm(
            lambda task: task.pole_angle[:, None],
            width=1,
            scale="angle",
            unit="rad",
            frame="joint",
            description="angle of the pole from upright, from -pi to pi",
        ),
        "pole_velocity": ObsTerm(
            lambda task: task.pole_velocity[:, None],
            width=1,
            scale="ang_vel",
            unit="rad/s",
            frame="joint",
            description="angular velocity of the pole",
        ),
    }
    REWARDS: ClassVar[dict[str, RewardTerm]] = {
        "upright": RewardTerm(upright, 1.0),
        "centred": RewardTerm(centred, -0.2),
        "effort": RewardTerm(effort, -0.01),
    }
    TERMINATIONS: ClassVar[dict[str, Term]] = {"pole_down": pole_down, "off_rail": off_rail}
    METRICS: ClassVar[Sequence[str]] = ("Balance/angle", "Balance/position")
    ACTION_FORMULA: ClassVar[str] = "force = action_scale * clip(actions, -clip_actions, clip_actions), N on the cart"

    cfg: BalanceCfg
    cart_position: torch.Tensor
    """`(N,)` m"""
    cart_velocity: torch.Tensor
    """`(N,)` m/s"""
    pole_angle: torch.Tensor
    """`(N,)` from upright, from -pi to pi, rad"""
    pole_velocity: torch.Tensor
    """`(N,)` rad/s"""

    def __init__(self, cfg: BalanceCfg, num_envs: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        super().__init__(cfg, num_envs, device, seed)
        joints = {self.robot.model.joint(j).name: j for j in range(self.robot.model.njnt)}
        if not {"slider", "hinge"} <= set(joints) or self.robot.actuation != "torque":
            raise ValueError(
                f"{self.robot.path} is not a cart-pole: 'balance' needs joints 'slider' and 'hinge' and a <motor> on "
                f"the slider; it has the joints {', '.join(joints)}"
            )
        model = self.robot.model
        self._slider, self._hinge = (int(model.jnt_qposadr[joints[name]]) for name in ("slider", "hinge"))
        self._force = torch.tensor(cfg.control.action_scale, dtype=torch.float32, device=self.device)
        self.start()

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        near = [(-self.cfg.start_spread, self.cfg.start_spread)] * 2
        return {"position": near, "velocity": near, **super()._random_ranges()}

    def _apply_actions(self, actions: torch.Tensor) -> None:
        """Push the cart with the scaled action for one control period."""
        self.backend.set_control(actions * self._force)
        self.backend.step(self.cfg.physics.substeps)

    def _read_state(self) -> None:
        """Read the columns of both joints; positions and velocities have the same order."""
        qpos, qvel = self.backend.qpos, self.backend.qvel
        self.cart_position, self.cart_velocity = qpos[:, self._slider], qvel[:, self._slider]
        self.pole_angle = torch.remainder(qpos[:, self._hinge] + math.pi, 2 * math.pi) - math.pi
        self.pole_velocity = qvel[:, self._hinge]

    def _metrics(self) -> torch.Tensor:
        """`(N, 2)` absolute angle of the pole and position of the cart."""
        return torch.stack([self.pole_angle, self.cart_position], dim=1).abs_()

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Reset the cart-poles of `mask` near the middle with the pole almost upright."""
        self.backend.reset(mask, self.random["position"], self.random["velocity"])
        self.actions.masked_fill_(mask[:, None], 0.0)
        self._episode_length.masked_fill_(mask, 0)
        self._read_state()


TASK = TaskEntry(
    Balance,
    BalanceCfg,
    ppo_config("balance", max_iterations=40, hidden_dims=(32, 32)),
    "keep a pole upright on a cart; learned in seconds",
)
