"""Settings of walking tasks, by default those of `quadruped-walk`, and the table of their rewards."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

from st_rl.sim.backends import fine_physics
from st_rl.sim.envs.cfg import NormalizationCfg, Range, TaskCfg
from st_rl.sim.envs.task import Term
from st_rl.sim.terms import rewards as terms

# Every reward term with its function and its weight per second.
REWARDS: dict[str, tuple[Term, float]] = {
    "track_linear_velocity": (terms.track_linear_velocity, 2.0),
    "track_turning": (terms.track_turning, 0.8),
    "gait": (terms.gait, 0.5),
    "alive": (terms.alive, 0.3),
    "vertical_velocity": (terms.vertical_velocity, -1.0),
    "roll_and_pitch_rate": (terms.roll_and_pitch_rate, -0.02),
    "tilt": (terms.tilt, -2.0),
    "base_height": (terms.base_height, -30.0),
    "action_rate": (terms.action_rate, -0.005),
    "pose": (terms.pose, -0.05),
    "foot_slip": (terms.foot_slip, -0.02),
    "foot_clearance": (terms.foot_clearance, -30.0),
    "energy": (terms.energy, 0.0),
}


SCALED = {
    "base_lin_vel": "lin_vel",
    "base_ang_vel": "ang_vel",
    "commands": "commands",
    "joint_pos": "joint_pos",
    "joint_vel": "joint_vel",
}
"""Segments with a scale, and its name in `normalization.obs_scales`."""


@dataclass
class CommandsCfg:
    """Velocities that a robot is told to reach, drawn uniformly."""

    forward: Range = (-0.5, 1.0)
    """Forward speed, m/s."""
    sideways: Range = (-0.4, 0.4)
    """Speed to the left, m/s."""
    turning: Range = (-0.8, 0.8)
    """Turning rate to the left, rad/s."""
    standing_share: float = 0.1
    """Share of commands that are zero."""
    resample_s: float = 5.0
    """Seconds between two commands."""
    moving_threshold: float = 0.1
    """A command of a smaller norm means to stand on all feet, and becomes zero."""


@dataclass
class GaitCfg:
    """The clock that the robot walks to."""

    period_s: float = 0.5
    """Seconds of one stride."""
    offsets: tuple[float, ...] = (0.0, 0.5, 0.5, 0.0)
    """Phase of each foot, from front to rear and in each row the right one first; the default is a trot."""
    stance_share: float = 0.55
    """Share of a stride that a foot spends on the ground."""
    swing_height: float = 0.06
    """Height of the sole in the middle of a swing, m."""


@dataclass
class NoiseCfg:
    """Largest deviation of each measured quantity, uniform, in its own unit; the critic sees none."""

    level: float = 1.0
    """Factor for all of them; 0 switches noise off."""
    lin_vel: float = 0.1
    """m/s"""
    ang_vel: float = 0.2
    """rad/s"""
    gravity: float = 0.05
    """Share of the vector's length."""
    joint_pos: float = 0.01
    """rad"""
    joint_vel: float = 1.5
    """rad/s"""


@dataclass
class RandomizationCfg:
    """Properties drawn once for each robot; None leaves what the robot's file says."""

    friction: Range | None = (0.5, 1.25)
    """Sliding friction of every surface."""
    base_mass: Range | None = (0.9, 1.2)
    """Factor for mass and inertia of the trunk: the base, and what is called torso, trunk or chest."""
    motor_strength: Range | None = (0.9, 1.1)
    """Factor for the torque of all motors of a robot."""


@dataclass
class PushCfg:
    """Sudden changes of the base's velocity."""

    interval_s: float = 5.0
    """Mean seconds between two pushes."""
    max_speed: float = 0.5
    """Largest change along each horizontal axis, m/s; 0 switches pushes off."""


@dataclass
class ResetCfg:
    """How far a new episode starts from the default pose, at most."""

    joint_pos: float = 0.15
    """rad"""
    yaw: float = 0.2
    """rad"""
    velocity: float = 0.2
    """m/s and rad/s of the base."""


@dataclass
class LeggedWalkCfg(TaskCfg):
    """Settings of a walking task; the defaults are those of `quadruped-walk`."""

    rewards: dict[str, float] = field(default_factory=lambda: {name: weight for name, (_, weight) in REWARDS.items()})
    """Weight of each reward term, per second; a term of weight 0 is not computed."""
    only_positive_rewards: bool = True
    """Whether the sum of the terms is cut off below at zero, so that falling early never pays."""
    normalization: NormalizationCfg = field(
        default_factory=lambda: NormalizationCfg(
            {"lin_vel": 1.0, "ang_vel": 0.25, "commands": 2.0, "joint_pos": 1.0, "joint_vel": 0.05}
        )
    )
    """Scales of observations."""
    observe_linear_velocity: bool = True
    """Whether the actor sees the base's linear velocity, which a real robot must estimate; the critic always does."""
    commands: CommandsCfg = field(default_factory=CommandsCfg)
    """Velocities to follow."""
    gait: GaitCfg = field(default_factory=GaitCfg)
    """The clock to walk to."""
    noise: NoiseCfg = field(default_factory=NoiseCfg)
    """Noise of the actor's observation."""
    randomization: RandomizationCfg = field(default_factory=RandomizationCfg)
    """Differences between robots."""
    push: PushCfg = field(default_factory=PushCfg)
    """Disturbances."""
    reset: ResetCfg = field(default_factory=ResetCfg)
    """Start of an episode."""

    def for_evaluation(self, fine: bool = True) -> "LeggedWalkCfg":
        """A copy without noise, pushes, latency and randomisation; fine physics unless told otherwise."""
        cfg = copy.deepcopy(self)
        cfg.noise.level = 0.0
        cfg.push.max_speed = 0.0
        cfg.control.latency_s = (0.0, 0.0)
        cfg.randomization = RandomizationCfg(None, None, None)
        cfg.physics = fine_physics(cfg.physics) if fine else cfg.physics
        return cfg


def scale_row(cfg: LeggedWalkCfg, columns: Mapping[str, int]) -> list[float]:
    """Factor of each column of an observation that is made of these."""
    scales = cfg.normalization.obs_scales
    missing = [name for name in SCALED.values() if name not in scales]
    if missing:
        raise ValueError(f"normalization.obs_scales lacks {', '.join(missing)}: give each a factor")
    factors = [float(scales[SCALED[name]]) if name in SCALED else 1.0 for name in columns]
    return [factor for factor, width in zip(factors, columns.values()) for _ in range(width)]


def random_ranges(cfg: LeggedWalkCfg, columns: Mapping[str, int], num_joints: int) -> dict[str, list[Range]]:
    """Ranges of the random numbers that one step of a robot needs, for an actor's observation made of these columns."""
    commands, reset, push = cfg.commands, cfg.reset, cfg.push.max_speed
    ranges: dict[str, list[Range]] = {
        "joints": [(-reset.joint_pos, reset.joint_pos)] * num_joints,
        "velocity": [(-reset.velocity, reset.velocity)] * 6,
        "half_yaw": [(-reset.yaw / 2, reset.yaw / 2)],
        "phase": [(0.0, 1.0)],
        "commands": [commands.forward, commands.sideways, commands.turning],
        "standing": [(0.0, 1.0)],
        "push": [(-push, push)] * 2,
        "push_due": [(0.0, 1.0)],
    }
    noise = {
        "base_lin_vel": cfg.noise.lin_vel,
        "base_ang_vel": cfg.noise.ang_vel,
        "projected_gravity": cfg.noise.gravity,
        "joint_pos": cfg.noise.joint_pos,
        "joint_vel": cfg.noise.joint_vel,
    }
    measured = [noise.get(name, 0.0) for name, width in columns.items() for _ in range(width)]
    amplitudes = [cfg.noise.level * value * scale for value, scale in zip(measured, scale_row(cfg, columns))]
    while amplitudes and amplitudes[-1] == 0:
        amplitudes.pop()
    if amplitudes:
        ranges["noise"] = [(-value, value) for value in amplitudes]
    return ranges
