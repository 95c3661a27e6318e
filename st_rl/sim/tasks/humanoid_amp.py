"""The task `humanoid-amp`: a humanoid follows velocity commands in the style of a reference walk."""

from dataclasses import dataclass, field
from typing import ClassVar

from st_rl.sim.backends import PhysicsCfg
from st_rl.sim.envs.cfg import ControlCfg
from st_rl.sim.envs.legged_amp import LeggedAmp, LeggedAmpCfg
from st_rl.sim.envs.legged_task_cfg import RandomizationCfg
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg, GaitCfg, ResetCfg, WalkNoiseCfg, straight_ahead
from st_rl.sim.envs.term_tables import RewardTerm, default_weights
from st_rl.sim.tasks.humanoid_walk import HumanoidWalkCfg
from st_rl.sim.tasks.quadruped_amp import QuadrupedAmp
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, amp_config


@dataclass
class HumanoidAmpCfg(LeggedAmpCfg):
    """Settings of `humanoid-amp`, with the robot of `humanoid-walk`."""

    robot: str = "humanoid"
    motions: tuple[str, ...] = ("walk",)
    """Reference clips: files, folders, or built-in names (walk, walk_0.4, ...)."""
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(HumanoidAmp.REWARDS))
    physics: PhysicsCfg = field(default_factory=lambda: HumanoidWalkCfg().physics)
    control: ControlCfg = field(default_factory=lambda: HumanoidWalkCfg().control)
    commands: CommandsCfg = field(default_factory=lambda: straight_ahead((0.2, 0.8)))
    """Commands; the built-in clips walk straight ahead."""
    gait: GaitCfg = field(default_factory=lambda: GaitCfg(period_s=0.8, offsets=(0.5, 0.0), stance_fraction=0.6))
    """The observed gait clock, that of the built-in clips: the right foot follows the left one."""
    noise: WalkNoiseCfg = field(default_factory=lambda: HumanoidWalkCfg().noise)
    randomization: RandomizationCfg = field(default_factory=lambda: HumanoidWalkCfg().randomization)
    reset: ResetCfg = field(default_factory=lambda: HumanoidWalkCfg().reset)
    """Initial states that are not from the reference."""


class HumanoidAmp(LeggedAmp):
    """Robots on two legs that walk in the style of reference motions."""

    REWARDS: ClassVar[dict[str, RewardTerm]] = QuadrupedAmp.REWARDS


TASK = TaskEntry(
    HumanoidAmp,
    HumanoidAmpCfg,
    # A robot that falls easily would stand in style instead of walking: the task has a larger part of the reward.
    amp_config("humanoid-amp", max_iterations=1000, hidden_dims=(256, 128, 128), task_reward_lerp=0.7),
    "follow velocity commands in the style of a reference walk",
    GpuTraining(550, num_envs=2048),
)
