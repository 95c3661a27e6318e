"""The task `quadruped-walk`: follow velocity commands on flat ground."""

from dataclasses import dataclass, field
from typing import ClassVar

from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.envs.term_tables import RewardTerm, default_weights
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, ppo_config
from st_rl.sim.terms import rewards


@dataclass
class QuadrupedWalkCfg(LeggedWalkCfg):
    """Settings of `quadruped-walk`."""

    rewards: dict[str, float] = field(default_factory=lambda: default_weights(QuadrupedWalk.REWARDS))


class QuadrupedWalk(LeggedWalk):
    """Robots that walk on flat ground; `LeggedWalk` lists their observations."""

    REWARDS: ClassVar[dict[str, RewardTerm]] = {
        "track_lin_vel_xy": RewardTerm(rewards.track_lin_vel_xy, 2.0),
        "track_ang_vel_z": RewardTerm(rewards.track_ang_vel_z, 0.8),
        "gait": RewardTerm(rewards.gait, 0.5),
        "alive": RewardTerm(rewards.alive, 0.3),
        "lin_vel_z": RewardTerm(rewards.lin_vel_z, -1.0),
        "ang_vel_xy": RewardTerm(rewards.ang_vel_xy, -0.02),
        "tilt": RewardTerm(rewards.tilt, -2.0),
        "base_height": RewardTerm(rewards.base_height, -30.0),
        "action_rate": RewardTerm(rewards.action_rate, -0.005),
        "pose": RewardTerm(rewards.pose, -0.05),
        "foot_slip": RewardTerm(rewards.foot_slip, -0.02),
        "foot_clearance": RewardTerm(rewards.foot_clearance, -30.0),
        "energy": RewardTerm(rewards.energy, 0.0),
    }


TASK = TaskEntry(
    QuadrupedWalk,
    QuadrupedWalkCfg,
    ppo_config("quadruped-walk", max_iterations=300, hidden_dims=(128, 128)),
    "follow velocity commands on flat ground",
    GpuTraining(160, hidden_dims=(256, 128, 128)),
)
