"""Settings of all tasks of robots with a floating base: what policies observe, randomization and pushes."""

from dataclasses import dataclass, field, replace
from typing import cast

from st_rl.sim.envs.cfg import NoiseCfg, NormalizationCfg, Range, TaskCfg

DEPLOYABLE_LATENCY_S: Range = (0.0, 0.03)
"""Delay of actions for which a deployable policy is trained."""


@dataclass
class SensorNoiseCfg(NoiseCfg):
    """Amplitude of the uniform noise on each measured quantity, in its unit; the critic sees none."""

    lin_vel: float = 0.1
    """m/s"""
    ang_vel: float = 0.2
    """rad/s"""
    gravity: float = 0.05
    """Fraction of the vector's length."""
    joint_pos: float = 0.01
    """rad"""
    joint_vel: float = 1.5
    """rad/s"""


@dataclass
class RandomizationCfg:
    """Properties sampled once per robot; None keeps the value of the robot's file."""

    friction: Range | None = (0.5, 1.25)
    """Sliding friction of every surface."""
    base_mass: Range | None = (0.9, 1.2)
    """Factor of mass and inertia of the trunk: the base, and bodies named torso, trunk or chest."""
    motor_strength: Range | None = (0.9, 1.1)
    """Factor of all motor torques of a robot."""


@dataclass
class PushCfg:
    """Random changes of the base velocity."""

    interval_s: float = 5.0
    """Mean seconds between two pushes."""
    max_speed: float = 0.5
    """Largest change along each horizontal axis, m/s; 0 disables pushes."""


@dataclass
class LeggedTaskCfg(TaskCfg):
    """Settings of walking and of motion tracking."""

    normalization: NormalizationCfg = field(
        default_factory=lambda: NormalizationCfg({"lin_vel": 1.0, "ang_vel": 0.25, "joint_pos": 1.0, "joint_vel": 0.05})
    )
    observe_linear_velocity: bool = True
    """Whether the actor sees the base linear velocity, which hardware cannot measure; the critic always does."""
    deployable: bool = False
    """Whether the actor sees only what a robot measures, and learns with delayed actions, for `st-rl deploy`.

    All other terms become privileged, and `control.latency_s` is 0 to 30 ms where it would be zero.
    """
    noise: SensorNoiseCfg = field(default_factory=SensorNoiseCfg)  # pyright: ignore[reportIncompatibleVariableOverride]
    randomization: RandomizationCfg = field(default_factory=RandomizationCfg)
    """Domain randomization."""
    push: PushCfg = field(default_factory=PushCfg)
    """Pushes."""

    def __post_init__(self) -> None:
        """Add the latency of a deployable policy."""
        if self.deployable and tuple(self.control.latency_s) == (0.0, 0.0):
            self.control = replace(self.control, latency_s=DEPLOYABLE_LATENCY_S)

    def for_evaluation(self, fine: bool = True) -> "LeggedTaskCfg":
        """Return a copy without noise, pushes, latency and randomization, with fine physics by default."""
        cfg = cast("LeggedTaskCfg", super().for_evaluation(fine))
        cfg.push.max_speed = 0.0
        cfg.control.latency_s = (0.0, 0.0)
        cfg.randomization = RandomizationCfg(None, None, None)
        return cfg
