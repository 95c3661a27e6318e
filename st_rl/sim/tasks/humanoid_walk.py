"""The task `humanoid-walk`: a humanoid follows velocity commands with quiet arms."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from st_rl.sim.backends import PhysicsCfg
from st_rl.sim.envs.cfg import ControlCfg
from st_rl.sim.envs.joint_control import Columns
from st_rl.sim.envs.legged_task_cfg import PushCfg, RandomizationCfg
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg, GaitCfg, LeggedWalkCfg, ResetCfg, WalkNoiseCfg
from st_rl.sim.envs.term_tables import RewardTerm, default_weights, reweight
from st_rl.sim.robots.name_patterns import compile_pattern
from st_rl.sim.tasks.quadruped_walk import QuadrupedWalk
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, ppo_config
from st_rl.utils.tensors.rotations import quat_rotate_inverse

# Squared error at which the reward for the yaw rate is 1/e, (rad/s)^2.
YAW_RATE_SCALE = 0.5
# Lateral distance of the feet below which they may collide, m.
NARROWEST_STEP = 0.14


def track_ang_vel_z(task: "HumanoidWalk") -> torch.Tensor:
    """`exp(-error^2 / scale)` of the yaw rate, with a wide scale because the pelvis swings with every step."""
    return torch.exp(-task.velocity_error[:, 2].square() / YAW_RATE_SCALE)


def posture(task: "HumanoidWalk") -> torch.Tensor:
    """Squared deviation of `posture_joints` from the default pose."""
    return task.posture_columns(task.joint_offset).square().sum(dim=1)


def narrow_step(task: "HumanoidWalk") -> torch.Tensor:
    """Squared amount by which the lateral foot distance, negative for crossed legs, is too small, m^2."""
    return (NARROWEST_STEP - task.step_width).clamp_(min=0.0).square()


@dataclass
class HumanoidWalkCfg(LeggedWalkCfg):
    """Settings of `humanoid-walk`."""

    robot: str = "humanoid"
    physics: PhysicsCfg = field(default_factory=lambda: PhysicsCfg(iterations=4, max_contacts=12))
    """Physics settings: with three solver iterations contacts differ between CPU and GPU.

    Eight contacts are for the feet, four more for knees and pelvis in a fall.
    """
    control: ControlCfg = field(default_factory=lambda: ControlCfg(action_scale=0.3))
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(HumanoidWalk.REWARDS))
    posture_joints: str = "hip_roll|hip_yaw|waist|shoulder|elbow|wrist"
    """Joints of the term `posture`: a regular expression to search in their names."""
    commands: CommandsCfg = field(
        default_factory=lambda: CommandsCfg(lin_vel_x=(-0.1, 1.0), lin_vel_y=(0.0, 0.0), ang_vel_yaw=(-0.6, 0.6))
    )
    gait: GaitCfg = field(default_factory=lambda: GaitCfg(period_s=0.8, offsets=(0.0, 0.5)))
    noise: WalkNoiseCfg = field(default_factory=lambda: WalkNoiseCfg(level=0.5))
    randomization: RandomizationCfg = field(default_factory=lambda: RandomizationCfg(base_mass=(0.9, 1.3)))
    push: PushCfg = field(default_factory=lambda: PushCfg(max_speed=0.6))
    reset: ResetCfg = field(default_factory=lambda: ResetCfg(joint_pos=0.05, velocity=0.1))


class HumanoidWalk(LeggedWalk):
    """Walking robots with two feet."""

    REWARDS: ClassVar[dict[str, RewardTerm]] = {
        **reweight(QuadrupedWalk.REWARDS, track_lin_vel_xy=2.5, gait=1.0, action_rate=-0.01, foot_clearance=-50.0),
        "track_ang_vel_z": RewardTerm(track_ang_vel_z, 1.5),
        "posture": RewardTerm(posture, -0.3),
        "narrow_step": RewardTerm(narrow_step, -50.0),
    }
    # About 45 degrees: two legs do not recover from more.
    MAX_TILT_COSINE: ClassVar[float] = 0.7

    cfg: HumanoidWalkCfg  # pyright: ignore[reportIncompatibleVariableOverride]
    step_width: torch.Tensor
    """`(N,)` lateral distance from the right to the left foot in the base frame, m, before any reset."""

    def _set_constants(self) -> None:
        super()._set_constants()
        self.posture_columns = Columns(self._posture_joints(), self.backend.device)
        left, right = self._left_and_right_foot()
        starts = [self.robot.feet[foot].position for foot in (left, right)]
        self._foot_position_columns = torch.tensor(
            [start + axis for start in starts for axis in range(3)], device=self.backend.device
        )

    def _check_settings(self) -> None:
        self._left_and_right_foot()
        super()._check_settings()

    def _posture_joints(self) -> tuple[int, ...]:
        """Indices of `posture_joints`; ValueError if there are none and the term has a weight."""
        pattern = compile_pattern(self.cfg.posture_joints, "posture_joints")
        found = tuple(place for place, name in enumerate(self.robot.joint_names) if pattern.search(name))
        if not found and self.cfg.rewards.get("posture"):
            raise ValueError(
                f"posture_joints '{self.cfg.posture_joints}' is found in no joint of {self.robot.path} "
                f"({', '.join(self.robot.joint_names)}): name others, or set rewards.posture to 0"
            )
        return found

    def _left_and_right_foot(self) -> tuple[int, int]:
        """Indices of the left and the right foot; ValueError for another number of feet."""
        robot = self.robot
        if len(robot.feet) != 2:
            raise ValueError(f"{robot.path} has {len(robot.feet)} feet; humanoid-walk needs two: use quadruped-walk")
        first, second = robot.foot_positions[:, 1]
        return (0, 1) if first > second else (1, 0)

    def _update_errors(self) -> None:
        """Compute the tracking errors and the distance of the feet."""
        super()._update_errors()
        feet = self.backend.sensordata.index_select(1, self._foot_position_columns).view(-1, 2, 3)
        self.step_width = quat_rotate_inverse(self.orientation, feet[:, :1] - feet[:, 1:])[:, 0, 1]


TASK = TaskEntry(
    HumanoidWalk,
    HumanoidWalkCfg,
    # Mirrored samples double what is learned from a rollout, so that fewer epochs suffice.
    ppo_config(
        "humanoid-walk", 650, (256, 128, 128), num_learning_epochs=3, symmetry_cfg={"use_data_augmentation": True}
    ),
    "follow velocity commands on two feet, with quiet arms",
    GpuTraining(650),
)
