"""The step loop of simulated tasks, their term tables, and the bases that tasks share."""

from st_rl.sim.envs.cfg import TaskCfg
from st_rl.sim.envs.legged_amp import LeggedAmp, LeggedAmpCfg
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.envs.motion_tracking import MotionTracking
from st_rl.sim.envs.motion_tracking_cfg import MotionTrackingCfg
from st_rl.sim.envs.task import Task
from st_rl.sim.envs.term_tables import ObsTerm, RewardTerm, default_weights
from st_rl.sim.envs.terrain_walk import TerrainWalk, TerrainWalkCfg

__all__ = [
    "LeggedAmp",
    "LeggedAmpCfg",
    "LeggedWalk",
    "LeggedWalkCfg",
    "MotionTracking",
    "MotionTrackingCfg",
    "ObsTerm",
    "RewardTerm",
    "Task",
    "TaskCfg",
    "TerrainWalk",
    "TerrainWalkCfg",
    "default_weights",
]
