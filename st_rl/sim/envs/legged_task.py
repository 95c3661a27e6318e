"""Robots with a floating base and feet: the base of walking and of motion tracking."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.joint_control import Columns, JointControl, float_tensor
from st_rl.sim.envs.legged_task_cfg import LeggedTaskCfg
from st_rl.sim.envs.task import Task
from st_rl.sim.envs.term_tables import ObsColumn, ObsTerm
from st_rl.sim.terms.mirror import mirror_columns, side_names
from st_rl.sim.terms.randomization import NUM_PROPERTIES, randomize
from st_rl.utils.tensors.rotations import quat_rotate_inverse


def num_joints(task: Task) -> int:
    """`J`, the width of a joint quantity."""
    return task.robot.num_joints


PROPRIOCEPTION: dict[str, ObsTerm] = {
    "base_lin_vel": ObsTerm(
        lambda task: task.base_lin_vel,
        width=3,
        scale="lin_vel",
        noise="lin_vel",
        mirror="vector",
        unit="m/s",
        frame="base",
        description="x, y, z of the linear velocity of the origin of the base body",
    ),
    "base_ang_vel": ObsTerm(
        lambda task: task.base_ang_vel,
        width=3,
        scale="ang_vel",
        noise="ang_vel",
        mirror="pseudovector",
        unit="rad/s",
        frame="base",
        description="x, y, z of the angular velocity of the base body, as a gyroscope measures it",
    ),
    "projected_gravity": ObsTerm(
        lambda task: task.projected_gravity,
        width=3,
        noise="gravity",
        mirror="vector",
        frame="base",
        description="x, y, z of the unit vector along gravity; (0, 0, -1) when the base is level",
    ),
    "joint_pos": ObsTerm(
        lambda task: task.joint_offset,
        width=num_joints,
        scale="joint_pos",
        noise="joint_pos",
        mirror="joints",
        unit="rad",
        frame="joint",
        description="joint positions minus default_joint_pos",
    ),
    "joint_vel": ObsTerm(
        lambda task: task.joint_vel,
        width=num_joints,
        scale="joint_vel",
        noise="joint_vel",
        mirror="joints",
        unit="rad/s",
        frame="joint",
        description="joint velocities",
    ),
}
"""What base and joints do."""
ACTIONS = ObsTerm(
    lambda task: task.actions,
    num_joints,
    mirror="joints",
    frame="joint",
    description="last output of the policy, clipped to +-clip_actions; zeros before the first",
)
PROPERTIES = ObsTerm(
    lambda task: task.properties,
    NUM_PROPERTIES + 1,
    mirror="scalar",
    privileged=True,
    unit="1, 1, 1, s",
    description="friction coefficient, factor of the base mass, factor of the motor torques, latency",
)


class LeggedTask(Task):
    """Robots with a floating base that are driven by joint targets, with randomization and pushes.

    The attributes below hold the state after the last step; for a robot that was reset, its new initial state.
    Velocities of the base are in its own frame, joints (`J`) in the order of the robot. The next step may overwrite
    them: clone what you keep.
    """

    ACTION_FORMULA: ClassVar[str] = (
        "joint_target = clip(default_joint_pos + action_scale * clip(actions, -clip_actions, clip_actions), lower and "
        "upper of joint_target_range), rad; torque = clip(stiffness * (joint_target - joint position) - damping * "
        "joint velocity, -effort_limit, effort_limit), Nm, computed at least every torque_period_s"
    )
    PURPOSE: ClassVar[str] = "a task of legged robots"
    """How an error about an unsuitable robot names the task."""

    cfg: LeggedTaskCfg
    base_lin_vel: torch.Tensor
    """`(N, 3)` m/s"""
    base_ang_vel: torch.Tensor
    """`(N, 3)` rad/s"""
    base_height: torch.Tensor
    """`(N, 1)` m"""
    orientation: torch.Tensor
    """`(N, 4)` quaternion w, x, y, z of the base in the world."""
    projected_gravity: torch.Tensor
    """`(N, 3)` direction of gravity in the frame of the base."""
    joint_pos: torch.Tensor
    """`(N, J)` rad"""
    joint_vel: torch.Tensor
    """`(N, J)` rad/s"""
    joint_offset: torch.Tensor
    """`(N, J)` joint positions relative to the default pose, rad."""

    def __init__(self, cfg: LeggedTaskCfg, num_envs: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        super().__init__(cfg, num_envs, device, seed)
        robot = self.robot
        self._base = robot.require_locomotion(self.PURPOSE)
        self._check_settings()
        uniform = torch.rand(num_envs, NUM_PROPERTIES + 1, generator=self.generator, device=self.device)
        self.joint_control = JointControl(robot, self.backend, cfg.control, uniform[:, -1], self.register_buffer)
        """Turns joint targets into actuator controls."""
        ranges = (cfg.randomization.friction, cfg.randomization.base_mass, cfg.randomization.motor_strength)
        sampled = randomize(self.backend, robot, ranges, uniform[:, :-1])
        properties = torch.cat([sampled, self.joint_control.latency_s[:, None]], dim=1)
        self.properties = self.register_buffer("properties", properties)
        """`(N, 4)` friction, factor of the base mass, factor of the motor torques, latency in s."""
        self._set_constants()
        self.start()

    def observation_terms(self) -> dict[str, ObsTerm]:
        """The terms of the table; what the actor must not see, or no robot measures, is privileged."""
        terms = super().observation_terms()
        if not self.cfg.observe_linear_velocity and "base_lin_vel" in terms:
            terms["base_lin_vel"] = replace(terms["base_lin_vel"], privileged=True)
        if self.cfg.deployable:
            for name in self._unmeasured_terms(terms):
                terms[name] = replace(terms[name], privileged=True)
        return terms

    @abstractmethod
    def _unmeasured_terms(self, terms: Mapping[str, ObsTerm]) -> Iterable[str]:
        """Names of the terms that need what no robot measures."""

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        """Ranges of pushes and observation noise."""
        push = self.cfg.push.max_speed
        return {"push": [(-push, push)] * 2, "push_due": [(0.0, 1.0)], **super()._random_ranges()}

    def push(self, velocity: torch.Tensor, mask: torch.Tensor) -> None:
        """Add `velocity` `(N, 3)`, m/s in the world frame, to the base velocity of the robots of `mask` `(N,)`."""
        self.backend.add_velocity(velocity, mask, self._base.qvel)
        self._read_state()
        self._deliver(self.compute_observation())

    def describe_io(self) -> dict[str, Any]:
        """Add the limits of joint targets, and the body that the observation refers to."""
        return {
            **super().describe_io(),
            "joint_target_range": self.joint_control.target_range,
            "torque_period_s": self.cfg.physics.timestep,
            "base_body": self.robot.model.body(self._base.body).name,
        }

    @property
    def fall_sensors(self) -> list[int]:
        """Addresses in `sensordata` of the contact counts of which a positive one is a fall in an evaluation."""
        return list(self.robot.fall_sensors)

    @property
    def mirror(self) -> dict[str, Any]:
        """The part of `symmetry_cfg` that the task knows: joints, and the mirror of every segment.

        ValueError for an asymmetric robot or gait, and for a term without a mirror.
        """
        joints, columns = self.robot.mirror(), self.observation_table.columns
        names = side_names(joints.joints)
        actor = [column for column in columns if column.start < self.num_obs]
        return {
            "joint_names": names,
            "joint_signs": {f"^{name}$": sign for name, sign in zip(names, joints.signs)},
            "obs": self._mirror_segments(actor),
            "critic_obs": self._mirror_segments(columns),
        }

    def _mirror_segments(self, columns: Sequence[ObsColumn]) -> dict[str, Any]:
        """The mirror of each segment of these columns, as `symmetry_cfg` takes it."""
        robot, phases = self.robot.mirror(), self._foot_phases()
        partners: dict[str, list[int]] = {}
        signs: dict[str, list[int]] = {}
        for column in columns:
            kind = column.term.mirror(self) if callable(column.term.mirror) else column.term.mirror
            if kind is None:
                raise ValueError(
                    f"observation term '{column.name}' has no mirror: give its ObsTerm one, or do without symmetry_cfg"
                )
            places, values = mirror_columns(kind, column.width, robot, phases)
            first = len(partners.setdefault(column.segment, []))
            partners[column.segment] += [first + place for place in places]
            signs.setdefault(column.segment, []).extend(values)
        return {name: {"names": side_names(partners[name]), "signs": signs[name]} for name in partners}

    def _foot_phases(self) -> Sequence[float]:
        """Phase of each foot in the gait, in the order of the robot; needed for the mirror of a gait clock."""
        return ()

    @property
    def torques(self) -> torch.Tensor:
        """`(N, J)` torque at the actuated joints, Nm."""
        return self._joint_vel_columns(self.backend.joint_force)

    def _apply_actions(self, actions: torch.Tensor) -> None:
        """Step physics for one control period with targets `default_pose + scale * action`."""
        self.joint_control.apply(self.joint_targets(actions))

    def joint_targets(self, actions: torch.Tensor) -> torch.Tensor:
        """`(N, J)` joint position targets of actions `(N, J)`."""
        scale = self.cfg.control.action_scale
        if isinstance(scale, float | int):
            return torch.add(self.default_joint_pos, actions, alpha=scale)
        return torch.addcmul(self.default_joint_pos, actions, self._joint_scale)

    def _read_state(self) -> None:
        """Compute base and joint quantities from the backend."""
        qpos, qvel = self.backend.qpos, self.backend.qvel
        self._world_vectors[:, 1] = self._world_lin_vel
        vectors = quat_rotate_inverse(self.orientation, self._world_vectors)
        self.projected_gravity, self.base_lin_vel = vectors[:, 0], vectors[:, 1]
        self.joint_pos, self.joint_vel = self._joint_pos_columns(qpos), self._joint_vel_columns(qvel)
        self.joint_offset = self.joint_pos - self.default_joint_pos

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Reset the robots of `mask`, then update what all robots shall do and apply pushes where due."""
        self._sample_initial_states()
        self.backend.reset(mask, self._start_qpos, self._start_qvel)
        self.joint_control.reset(mask)
        self.actions.masked_fill_(mask[:, None], 0.0)
        self._episode_length.masked_fill_(mask, 0)
        self._update_targets(mask)
        self._push_at_random(mask)
        self._read_state()

    @abstractmethod
    def _sample_initial_states(self) -> None:
        """Write a whole initial state for every robot to `_start_qpos` and `_start_qvel`."""

    def _update_targets(self, was_reset: torch.Tensor) -> None:
        """Change what the robots shall do: at the start of an episode, `was_reset` `(N,)`, and during it."""

    def _push_at_random(self, was_reset: torch.Tensor) -> None:
        """Push robots at random intervals, except those that were just reset."""
        if self.cfg.push.max_speed == 0:
            return
        is_due = self.random["push_due"].squeeze(1) < self.step_dt / self.cfg.push.interval_s
        self.backend.add_velocity(self.random["push"], is_due & ~was_reset, self._base.qvel)

    def _set_constants(self) -> None:
        robot, cfg, device = self.robot, self.cfg, self.backend.device
        self._default_qpos = float_tensor(robot.default_qpos, device)
        self.default_height = float(robot.default_qpos[self._base.qpos + 2])
        """Height of the base in the default pose, m."""
        self.default_joint_pos = float_tensor(robot.default_joint_pos, device)
        if robot.action_scale is not None:
            # Checkpoints and exported policies read it from the configuration.
            cfg.control.action_scale = tuple(robot.action_scale.tolist())
        scale = float_tensor(cfg.control.action_scale, device)
        if scale.dim() > 0 and len(scale) != robot.num_joints:
            raise ValueError(
                f"control.action_scale has {len(scale)} numbers for {robot.num_joints} joints: give one for all or one "
                f"for each in the order {', '.join(robot.joint_names)}"
            )
        self._joint_scale = scale.expand(robot.num_joints)
        self._joint_qpos = torch.tensor(robot.qpos_indices, device=device)
        self._joint_pos_columns = Columns(robot.qpos_indices, device)
        self._joint_vel_columns = Columns(robot.qvel_indices, device)
        # Views of the backend tensors, which keep their address; reading the backend property updates them.
        qpos, qvel = self.backend.qpos[:, self._base.qpos :], self.backend.qvel[:, self._base.qvel :]
        self.base_height, self.orientation = qpos[:, 2:3], qpos[:, 3:7]
        self._world_lin_vel, self.base_ang_vel = qvel[:, :3], qvel[:, 3:6]
        # World vectors to rotate into the base frame: gravity, and the velocity of each step.
        self._world_vectors = self._zeros(2, 3)
        self._world_vectors[:, 0, 2] = -1.0
        self._start_qpos = self._default_qpos.repeat(self.num_envs, 1)
        self._start_qvel = self._zeros(robot.model.nv)

    def _check_settings(self) -> None:
        """ValueError for settings with which no robot can be trained."""
        push = self.cfg.push
        self._check_ranges("randomization", self.cfg.randomization)
        if push.max_speed != 0 and push.interval_s <= 0:
            raise ValueError(f"push.interval_s is {push.interval_s}: give a positive time, or set push.max_speed to 0")

    @staticmethod
    def _check_ranges(part: str, settings: object) -> None:
        """ValueError for a range of a part of the settings that begins with its larger number."""
        for name, value in vars(settings).items():
            if isinstance(value, Sequence) and value[0] > value[1]:
                raise ValueError(f"{part}.{name} is {tuple(value)}: give the smallest number first")
