"""The task `quadruped-amp`: walk as commanded, in the style of a trot, pace or bound."""

from dataclasses import dataclass, field
from typing import ClassVar

from st_rl.sim.envs.legged_amp import LeggedAmp, LeggedAmpCfg
from st_rl.sim.envs.term_tables import RewardTerm, default_weights
from st_rl.sim.tasks.quadruped_walk import QuadrupedWalk
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, amp_config

# Rewards for the command only; the style reward covers gait, pose, height and feet.
_WEIGHTS = {"track_lin_vel_xy": 2.0, "track_ang_vel_z": 0.8, "alive": 0.3, "action_rate": -0.005}


@dataclass
class QuadrupedAmpCfg(LeggedAmpCfg):
    """Settings of `quadruped-amp`; another robot with clips of its own is another `robot` and other `motions`."""

    rewards: dict[str, float] = field(default_factory=lambda: default_weights(QuadrupedAmp.REWARDS))


class QuadrupedAmp(LeggedAmp):
    """Robots that walk on flat ground in the style of reference motions."""

    REWARDS: ClassVar[dict[str, RewardTerm]] = {
        name: term._replace(weight=_WEIGHTS.get(name, 0.0)) for name, term in QuadrupedWalk.REWARDS.items()
    }


TASK = TaskEntry(
    QuadrupedAmp,
    QuadrupedAmpCfg,
    amp_config("quadruped-amp", max_iterations=1000, hidden_dims=(128, 128)),
    "follow velocity commands in the style of a trot, pace or bound",
    GpuTraining(400, num_envs=1024),
)
