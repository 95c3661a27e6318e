"""Settings of motion tracking; the defaults are those of `humanoid-track`."""

from dataclasses import dataclass, field
from typing import Literal, cast

from st_rl.sim.envs.legged_task_cfg import LeggedTaskCfg, SensorNoiseCfg


@dataclass
class TrackingScalesCfg:
    """Error at which the reward of a term is 1/e of its maximum; for several bodies their root mean square."""

    anchor_pos: float = 0.3
    """m"""
    anchor_rot: float = 0.4
    """rad"""
    body_pos: float = 0.3
    """m"""
    body_rot: float = 0.4
    """rad"""
    body_lin_vel: float = 1.0
    """m/s"""
    body_ang_vel: float = 3.14
    """rad/s"""


@dataclass
class TrackingLimitsCfg:
    """Errors beyond which an episode ends."""

    anchor_height: float = 0.25
    """Height of the anchor, m."""
    anchor_tilt: float = 0.8
    """Difference of the cosines of the anchor's tilt."""
    end_effector_height: float = 0.25
    """Height of feet, hands and head, m."""


@dataclass
class SamplingCfg:
    """Which frames of the clips episodes start from."""

    adaptive: bool = True
    """Whether frames where robots fail often are sampled more often; otherwise all are equally likely."""
    uniform_fraction: float = 0.2
    """Fraction of the starts that is spread over all frames even so."""
    bin_s: float = 1.0
    """Seconds of a clip over which failures are counted together."""
    memory_s: float = 20.0
    """Seconds after which a failure counts 1/e."""


@dataclass
class TrackingNoiseCfg(SensorNoiseCfg):
    """Amplitude of the uniform noise on each measured quantity, in its unit; the critic sees none."""

    joint_vel: float = 0.5
    """rad/s"""
    anchor_pos: float = 0.05
    """m"""
    anchor_rot: float = 0.05
    """Of each number of the rotation matrix."""


@dataclass
class TrackingResetCfg:
    """Largest deviation of an initial state from the reference."""

    joint_pos: float = 0.05
    """rad"""
    rotation: float = 0.05
    """Of the base about each axis, rad."""
    velocity: float = 0.2
    """m/s and rad/s of the base."""


@dataclass
class MotionTrackingCfg(LeggedTaskCfg):
    """Settings of motion tracking; the defaults are those of `humanoid-track`."""

    motions: tuple[str, ...] = ("squat",)
    """Clips to track: files, folders, or built-in names (squat, wave, kick, turn, walk, ...)."""
    tracked_bodies: tuple[str, ...] = ()
    """Bodies that count: names or patterns; all that a joint moves, and the base, if empty."""
    anchor_body: str = ""
    """Body of which position and heading in the world count, others relative to it; the base if empty."""
    action_center: Literal["default_pose", "reference"] = "reference"
    """Joint targets of an action of zero: the next frame of the clip, or the default pose, which is learned slower."""
    start: Literal["random", "first"] = "random"
    """Whether episodes start at frames sampled by `sampling`, or at the first frame of a clip."""
    sampling: SamplingCfg = field(default_factory=SamplingCfg)
    """Frames at which episodes start."""
    continue_to_next_clip: bool = True
    """Whether an episode continues at the end of its clip with one that begins in nearly the same pose.

    The next clip is sampled by weight, and placed and turned to where the robot is. Without such a clip, or with False,
    the episode ends with its clip by time-out.
    """
    transition_distance: float = 0.15
    """Largest distance of a body between the last pose of a clip and the first of the next one, m."""
    future_steps: tuple[int, ...] = ()
    """Control steps ahead of which the actor sees the reference too, for example 4 8 16."""
    scales: TrackingScalesCfg = field(default_factory=TrackingScalesCfg)
    """Scales of the rewards."""
    limits: TrackingLimitsCfg = field(default_factory=TrackingLimitsCfg)
    """Limits of the terminations."""
    contact_sensors: bool = True
    """Whether sensors are simulated, which only the reward `unwanted_contacts` reads; False is faster on a GPU."""
    soft_joint_range: float = 0.9
    """Fraction of the range of each joint that is free of the penalty `joint_limits`."""
    noise: TrackingNoiseCfg = field(default_factory=TrackingNoiseCfg)  # pyright: ignore[reportIncompatibleVariableOverride]
    reset: TrackingResetCfg = field(default_factory=TrackingResetCfg)
    """Initial states."""

    def for_evaluation(self, fine: bool = True) -> "MotionTrackingCfg":
        """Return a copy without disturbances that starts near the first frame of a clip and ends with it."""
        cfg = cast("MotionTrackingCfg", super().for_evaluation(fine))
        cfg.start, cfg.continue_to_next_clip = "first", False
        # Longer than any clip.
        cfg.episode_length_s = 3600.0
        return cfg
