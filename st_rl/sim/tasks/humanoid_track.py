"""The task `humanoid-track`: a humanoid does what reference clips do."""

from dataclasses import dataclass, field

from st_rl.sim.backends import PhysicsCfg
from st_rl.sim.envs.cfg import ControlCfg
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.envs.motion_tracking_cfg import MotionTrackingCfg
from st_rl.sim.envs.term_tables import default_weights
from st_rl.sim.tasks.humanoid_walk import HumanoidWalkCfg
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, ppo_config


@dataclass
class HumanoidTrackCfg(MotionTrackingCfg):
    """Settings of `humanoid-track`, with the robot of `humanoid-walk`."""

    robot: str = "humanoid"
    physics: PhysicsCfg = field(default_factory=lambda: HumanoidWalkCfg().physics)
    control: ControlCfg = field(default_factory=lambda: HumanoidWalkCfg().control)
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(HumanoidTrack.REWARDS))


class HumanoidTrack(MotionTracking):
    """Robots on two legs that do what reference clips do."""


TASK = TaskEntry(
    HumanoidTrack,
    HumanoidTrackCfg,
    ppo_config("humanoid-track", 500, (256, 128, 128)),
    "do what a reference clip does, on two feet",
    GpuTraining(700, hidden_dims=(512, 256, 128)),
)
