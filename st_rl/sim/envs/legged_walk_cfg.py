"""Settings of walking tasks; the defaults are those of `quadruped-walk`."""

from dataclasses import dataclass, field

from st_rl.sim.envs.cfg import NormalizationCfg, Range
from st_rl.sim.envs.legged_task_cfg import LeggedTaskCfg, SensorNoiseCfg


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
class WalkNoiseCfg(SensorNoiseCfg):
    """Amplitude of the uniform noise on each measured quantity, in its unit; the critic sees none."""

    height_scan: float = 0.02
    """m, for tasks with a height scan."""


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
class LeggedWalkCfg(LeggedTaskCfg):
    """Settings of a walking task; the defaults are those of `quadruped-walk`."""

    only_positive_rewards: bool = True
    normalization: NormalizationCfg = field(
        default_factory=lambda: NormalizationCfg(
            {"lin_vel": 1.0, "ang_vel": 0.25, "commands": 2.0, "joint_pos": 1.0, "joint_vel": 0.05}
        )
    )
    commands: CommandsCfg = field(default_factory=CommandsCfg)
    """Commands."""
    gait: GaitCfg = field(default_factory=GaitCfg)
    """The gait clock."""
    noise: WalkNoiseCfg = field(default_factory=WalkNoiseCfg)  # pyright: ignore[reportIncompatibleVariableOverride]
    reset: ResetCfg = field(default_factory=ResetCfg)
    """Initial states."""
