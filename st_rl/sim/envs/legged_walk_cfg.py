"""Settings of walking tasks; the defaults are those of `quadruped-walk`."""

from dataclasses import dataclass, field, replace
from typing import cast

from st_rl.sim.envs.cfg import NoiseCfg, NormalizationCfg, Range, TaskCfg

DEPLOYABLE_LATENCY_S: Range = (0.0, 0.03)
"""Delay of actions for which a deployable policy is trained."""


@dataclass
class CommandsCfg:
    """Commanded velocities, sampled uniformly."""

    lin_vel_x: Range = (-0.5, 1.0)
    """Forward velocity, m/s."""
    lin_vel_y: Range = (-0.4, 0.4)
    """Leftward velocity, m/s."""
    ang_vel_yaw: Range = (-0.8, 0.8)
    """Yaw rate, rad/s."""
    standing_fraction: float = 0.1
    """Fraction of commands that are zero."""
    resample_s: float = 5.0
    """Seconds between two commands."""
    moving_threshold: float = 0.1
    """Commands of a smaller norm become zero: stand on all feet."""


def straight_ahead(lin_vel_x: Range, standing_fraction: float = 0.0) -> CommandsCfg:
    """Commands without lateral velocity and yaw rate."""
    return CommandsCfg(lin_vel_x, (0.0, 0.0), (0.0, 0.0), standing_fraction)


@dataclass
class GaitCfg:
    """The gait clock."""

    period_s: float = 0.5
    """Seconds of one stride."""
    offsets: tuple[float, ...] = (0.0, 0.5, 0.5, 0.0)
    """Phase of each foot, from front to rear and in each row the right one first; the default is a trot."""
    stance_fraction: float = 0.55
    """Fraction of a stride in which a foot is on the ground."""
    swing_height: float = 0.06
    """Height of the sole in the middle of a swing, m."""


@dataclass
class WalkNoiseCfg(NoiseCfg):
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
    height_scan: float = 0.02
    """m, for tasks with a height scan."""


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
class ResetCfg:
    """Largest deviation of an initial state from the default pose."""

    joint_pos: float = 0.15
    """rad"""
    yaw: float = 0.2
    """rad"""
    velocity: float = 0.2
    """m/s and rad/s of the base."""


@dataclass
class LeggedWalkCfg(TaskCfg):
    """Settings of a walking task; the defaults are those of `quadruped-walk`."""

    only_positive_rewards: bool = True
    normalization: NormalizationCfg = field(
        default_factory=lambda: NormalizationCfg(
            {"lin_vel": 1.0, "ang_vel": 0.25, "commands": 2.0, "joint_pos": 1.0, "joint_vel": 0.05}
        )
    )
    observe_linear_velocity: bool = True
    """Whether the actor sees the base linear velocity, which hardware cannot measure; the critic always does."""
    deployable: bool = False
    """Whether the actor sees only what a robot measures, and learns with delayed actions, for `st-rl deploy`.

    All other terms become privileged, and `control.latency_s` is 0 to 30 ms where it would be zero.
    """
    commands: CommandsCfg = field(default_factory=CommandsCfg)
    """Commands."""
    gait: GaitCfg = field(default_factory=GaitCfg)
    """The gait clock."""
    noise: WalkNoiseCfg = field(default_factory=WalkNoiseCfg)  # pyright: ignore[reportIncompatibleVariableOverride]
    randomization: RandomizationCfg = field(default_factory=RandomizationCfg)
    """Domain randomization."""
    push: PushCfg = field(default_factory=PushCfg)
    """Pushes."""
    reset: ResetCfg = field(default_factory=ResetCfg)
    """Initial states."""

    def __post_init__(self) -> None:
        """Add the latency of a deployable policy."""
        if self.deployable and tuple(self.control.latency_s) == (0.0, 0.0):
            self.control = replace(self.control, latency_s=DEPLOYABLE_LATENCY_S)

    def for_evaluation(self, fine: bool = True) -> "LeggedWalkCfg":
        """Return a copy without noise, pushes, latency and randomization, with fine physics by default."""
        cfg = cast("LeggedWalkCfg", super().for_evaluation(fine))
        cfg.push.max_speed = 0.0
        cfg.control.latency_s = (0.0, 0.0)
        cfg.randomization = RandomizationCfg(None, None, None)
        return cfg
