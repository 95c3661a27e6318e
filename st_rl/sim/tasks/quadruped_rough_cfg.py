"""Settings of the task `quadruped-rough`, and the table of its rewards."""

import math
from dataclasses import dataclass, field
from typing import Any

from st_rl.sim.backends import PhysicsCfg
from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg, GaitCfg, LeggedWalkCfg, NoiseCfg, ResetCfg
from st_rl.sim.envs.task import Term
from st_rl.sim.terms import rewards
from st_rl.sim.terrain.patches import TerrainCfg

# Every reward term with its function and its weight per second.
ROUGH_REWARDS: dict[str, tuple[Term, float]] = {
    "track_linear_velocity": (rewards.track_linear_velocity, 2.0),
    "track_turning": (rewards.track_turning, 0.8),
    "gait": (rewards.gait, 0.5),
    "alive": (rewards.alive, 0.3),
    "vertical_velocity": (rewards.vertical_velocity, -0.2),
    "roll_and_pitch_rate": (rewards.roll_and_pitch_rate, -0.02),
    "tilt": (rewards.tilt, -1.0),
    "base_height": (rewards.base_height, -30.0),
    "action_rate": (rewards.action_rate, -0.005),
    "pose": (rewards.pose, -0.05),
    "foot_slip": (rewards.foot_slip, -0.02),
    "foot_clearance": (rewards.foot_clearance, -30.0),
    "energy": (rewards.energy, 0.0),
}


@dataclass
class LevelsCfg:
    """How the level of a robot changes from one episode to the next."""

    start_levels: tuple[int, int] = (0, 1)
    """First and last of the levels over which robots are spread at the beginning."""
    moves: bool = True
    """Whether a robot that crosses its patch goes on to the next level, and one that does not get half as far as it was
    told to, or as the patch is wide, goes back.

    A robot that crosses the last level goes on at a level drawn anew.
    """


@dataclass
class HeadingCfg:
    """How the turning command leads a robot across its patch; one that comes to the rim is led back to the middle."""

    gain: float = 1.0
    """Turning rate for each rad off the wanted heading, 1/s."""
    max_rate: float = 0.8
    """Largest turning command, rad/s."""
    spread: float = 0.5
    """Largest difference between the wanted heading and the first one, or the one to the middle, rad."""


@dataclass
class ScanCfg:
    """Points around the base at which heights are measured, in rows along its heading."""

    forward: tuple[float, float, int] = (-0.4, 0.8, 13)
    """First and last point and their number along the heading, m."""
    sideways: tuple[float, float, int] = (-0.3, 0.3, 5)
    """The same across it, to the left, m."""


@dataclass
class RoughNoiseCfg(NoiseCfg):
    """Largest deviation of each measured quantity, uniform, in its own unit; the critic sees none."""

    height_scan: float = 0.02
    """m"""


@dataclass
class QuadrupedRoughCfg(LeggedWalkCfg):
    """Settings of `quadruped-rough`."""

    physics: PhysicsCfg = field(default_factory=lambda: PhysicsCfg(timestep=0.005, substeps=4, max_contacts=16))
    """How finely physics is computed: a foot that gets under the ground within a longer substep stays there.

    On a GPU a foot can touch up to four triangles at once.
    """
    rewards: dict[str, float] = field(
        default_factory=lambda: {name: weight for name, (_, weight) in ROUGH_REWARDS.items()}
    )
    """Weight of each reward term, per second; a term of weight 0 is not computed."""
    commands: CommandsCfg = field(
        default_factory=lambda: CommandsCfg(
            forward=(0.2, 0.9), sideways=(0.0, 0.0), turning=(0.0, 0.0), standing_share=0.05
        )
    )
    """Speeds to cross the ground with; turning follows from the heading."""
    gait: GaitCfg = field(default_factory=lambda: GaitCfg(swing_height=0.08))
    """The clock to walk to."""
    noise: RoughNoiseCfg = field(default_factory=RoughNoiseCfg)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Noise of the actor's observation."""
    reset: ResetCfg = field(default_factory=lambda: ResetCfg(yaw=math.pi))
    """Start of an episode: in any direction."""
    terrain: TerrainCfg = field(default_factory=TerrainCfg)
    """The ground; robots are spread evenly over its kinds."""
    levels: LevelsCfg = field(default_factory=LevelsCfg)
    """Which patch of its kind a robot walks on."""
    heading: HeadingCfg = field(default_factory=HeadingCfg)
    """Commands that lead across a patch."""
    scan: ScanCfg = field(default_factory=ScanCfg)
    """What is seen of the ground."""
    observe_scan: bool = True
    """Whether the actor sees the heights of the ground around it; the critic always does."""
    start_area: Range = (-0.3, 0.3)
    """Where episodes start around the middle of a patch, along both axes, m."""
    lowest_base: float = 0.08
    """Height of the base above the ground at which an episode ends, m."""

    def for_evaluation(self, fine: bool = True) -> "QuadrupedRoughCfg":
        """A copy without disturbances; robots stay at their levels, spread over all unless these do not move."""
        cfg: Any = super().for_evaluation(fine)
        if cfg.levels.moves:
            cfg.levels = LevelsCfg((0, cfg.terrain.num_levels - 1), moves=False)
        return cfg
