"""The task `quadruped-track`: a quadruped does what reference clips do."""

from dataclasses import dataclass, field

from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.envs.motion_tracking_cfg import MotionTrackingCfg, TrackingLimitsCfg, TrackingScalesCfg
from st_rl.sim.envs.term_tables import default_weights
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, ppo_config


@dataclass
class QuadrupedTrackCfg(MotionTrackingCfg):
    """Settings of `quadruped-track`; a quadruped is a third as high as a humanoid, so lengths are shorter."""

    motions: tuple[str, ...] = ("trot",)
    """Clips to track: files, folders, or built-in names (trot, pace, bound, trot_0.5, ...)."""
    scales: TrackingScalesCfg = field(default_factory=lambda: TrackingScalesCfg(anchor_pos=0.2, body_pos=0.1))
    limits: TrackingLimitsCfg = field(
        default_factory=lambda: TrackingLimitsCfg(anchor_height=0.12, end_effector_height=0.12)
    )
    transition_distance: float = 0.05
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(QuadrupedTrack.REWARDS))


class QuadrupedTrack(MotionTracking):
    """Robots on four legs that do what reference clips do."""


TASK = TaskEntry(
    QuadrupedTrack,
    QuadrupedTrackCfg,
    ppo_config("quadruped-track", 300, (128, 128)),
    "do what a reference clip does, on four feet",
    GpuTraining(200, hidden_dims=(256, 128, 128)),
)
