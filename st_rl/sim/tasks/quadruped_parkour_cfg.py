"""Settings of the task `quadruped-parkour`, and the table of its rewards."""

from dataclasses import dataclass, field
from typing import Any

from st_rl.sim.backends import PhysicsCfg
from st_rl.sim.envs.cfg import NormalizationCfg, Range
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg, LeggedWalkCfg
from st_rl.sim.envs.task import Term
from st_rl.sim.terms import parkour_rewards, rewards
from st_rl.sim.terrain.depth_camera import DepthCameraCfg
from st_rl.sim.terrain.parkour_tracks import BLOCKS, TracksCfg

# Every reward term with its function and its weight per second.
PARKOUR_REWARDS: dict[str, tuple[Term, float]] = {
    "progress": (parkour_rewards.progress, 2.0),
    "track_linear_velocity": (rewards.track_linear_velocity, 0.5),
    "track_turning": (rewards.track_turning, 0.5),
    "gait": (rewards.gait, 0.5),
    "alive": (rewards.alive, 0.3),
    "vertical_velocity": (rewards.vertical_velocity, -0.2),
    "roll_and_pitch_rate": (rewards.roll_and_pitch_rate, -0.02),
    "tilt": (rewards.tilt, -0.5),
    "base_height": (rewards.base_height, -15.0),
    "action_rate": (rewards.action_rate, -0.005),
    "pose": (rewards.pose, -0.05),
    "foot_slip": (rewards.foot_slip, -0.02),
    "foot_clearance": (rewards.foot_clearance, -30.0),
    "knee_contact": (parkour_rewards.knee_contact, -0.5),
    "energy": (rewards.energy, 0.0),
}

COMPONENTS = ("proprioception", "engaging_block", "forward_depth")
"""Segments that the actor may see."""


def default_tracks() -> TracksCfg:
    """One track of each kind of block, one to walk on, and one with all kinds."""
    tracks: dict[str, tuple[str, ...]] = {"walk": ()}
    tracks |= {kind: (kind,) * 3 for kind in BLOCKS}
    return TracksCfg({**tracks, "mixed": ("step_up", "hurdle", "step_down", "gap")})


@dataclass
class CurriculumCfg:
    """How the level of a robot changes from one episode to the next."""

    start_levels: tuple[int, int] = (0, 0)
    """First and last of the levels over which robots are spread at the beginning."""
    moves: bool = True
    """Whether a robot that clears its track goes on to the next level, and one that clears less than half goes back.

    A robot that clears the last level goes on at a level drawn anew.
    """


@dataclass
class SteeringCfg:
    """How the turning command keeps a robot on its track."""

    heading_gain: float = 1.5
    """Turning rate for each rad off the wanted heading, 1/s."""
    offset_gain: float = 1.0
    """Wanted heading for each metre off the middle of the track, rad/m."""
    max_heading: float = 0.5
    """Largest wanted heading, rad."""
    max_rate: float = 0.8
    """Largest turning command, rad/s."""


@dataclass
class BlockViewCfg:
    """What the segment `engaging_block` tells."""

    ids: dict[str, int] = field(default_factory=lambda: {"hurdle": 1, "gap": 2, "step_up": 3, "step_down": 3})
    """Column of each kind of block in the one-hot; 0 is to walk. Steps share a column, told apart by the last entry."""
    engage_m: float = 0.8
    """Distance of the base to the beginning of a block from which on it is engaged, m."""
    clear_m: float = 0.4
    """Distance of the base behind the end of a block from which on it is cleared, m."""
    far_m: float = 2.0
    """Distance that is told while no block is engaged, m."""


@dataclass
class QuadrupedParkourCfg(LeggedWalkCfg):
    """Settings of `quadruped-parkour`."""

    physics: PhysicsCfg = field(default_factory=lambda: PhysicsCfg(max_contacts=20))
    """How finely physics is computed; feet on an edge touch two boxes at once."""
    rewards: dict[str, float] = field(
        default_factory=lambda: {name: weight for name, (_, weight) in PARKOUR_REWARDS.items()}
    )
    """Weight of each reward term, per second; a term of weight 0 is not computed."""
    normalization: NormalizationCfg = field(
        default_factory=lambda: NormalizationCfg(
            {"lin_vel": 2.0, "ang_vel": 0.25, "commands": 2.0, "joint_pos": 1.0, "joint_vel": 0.05}
        )
    )
    """Scales of observations; commands and velocities share one, by which skill switching writes commands."""
    commands: CommandsCfg = field(
        default_factory=lambda: CommandsCfg(
            forward=(0.5, 1.0), sideways=(0.0, 0.0), turning=(0.0, 0.0), standing_share=0.0
        )
    )
    """Speeds to run the track with; turning follows from the steering."""
    tracks: TracksCfg = field(default_factory=default_tracks)
    """The tracks; robots are spread evenly over their names."""
    curriculum: CurriculumCfg = field(default_factory=CurriculumCfg)
    """Levels."""
    steering: SteeringCfg = field(default_factory=SteeringCfg)
    """Commands that lead along the track."""
    blocks: BlockViewCfg = field(default_factory=BlockViewCfg)
    """The block before the robot, as it is told."""
    camera: DepthCameraCfg = field(default_factory=DepthCameraCfg)
    """The camera at the robot's head."""
    observe: tuple[str, ...] = COMPONENTS
    """Segments that the actor sees, in this order."""
    start_area: tuple[Range, Range] = ((-0.3, 0.3), (-0.15, 0.15))
    """Where episodes start, along the track and across it, m."""
    lowest_base: float = 0.1
    """Height of the base above the track at which an episode ends, m."""
    scan: tuple[float, float, int] = (-0.4, 1.2, 17)
    """First and last point before the base, m, and number of points of the critic's scan of the terrain."""

    def for_evaluation(self, fine: bool = True) -> "QuadrupedParkourCfg":
        """A copy without disturbances; robots stay at their levels, spread over all unless they all start at one."""
        cfg: Any = super().for_evaluation(fine)
        if cfg.curriculum.moves:
            cfg.curriculum = CurriculumCfg((0, cfg.tracks.num_levels - 1), moves=False)
        return cfg
