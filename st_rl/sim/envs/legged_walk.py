"""Walking: follow velocity commands to a gait clock; the base of all tasks with legged robots."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.joint_control import Columns, JointControl, float_tensor
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.envs.measured_state import find_sensors
from st_rl.sim.envs.task import Task
from st_rl.sim.envs.term_tables import ObsColumn, ObsTerm, Term
from st_rl.sim.terms import terminations
from st_rl.sim.terms.mirror import mirror_columns, side_names
from st_rl.sim.terms.observations import gait_clock, zero_small_commands
from st_rl.sim.terms.randomization import NUM_PROPERTIES, randomize
from st_rl.utils.metrics import cost_of_transport, lin_vel_rmsd
from st_rl.utils.tensors.rotations import quat_rotate_inverse


def num_joints(task: Task) -> int:
    """`J`, the width of a joint quantity."""
    return task.robot.num_joints


def num_feet(task: Task) -> int:
    """`F`, the width of a foot quantity."""
    return len(task.robot.feet)


class LeggedWalk(Task):
    """Robots with feet that walk to a gait clock as commanded.

    The attributes below hold the state after the last step; for a robot that was reset, its new initial state. Those
    from `velocity_error` on are what rewards read, before any reset. Velocities of the base are in its own frame, feet
    (`F`) and joints (`J`) in the order of the robot. The next step may overwrite them: clone what you keep.
    """

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {
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
        "commands": ObsTerm(
            lambda task: task.commands,
            width=3,
            scale="commands",
            mirror="command",
            unit="m/s, m/s, rad/s",
            frame="base",
            description=lambda task: (
                "forward velocity, leftward velocity, yaw rate; all zero, to stand, unless their "
                f"norm exceeds {task.cfg.commands.moving_threshold}"
            ),
        ),
        "actions": ObsTerm(
            lambda task: task.actions,
            num_joints,
            mirror="joints",
            frame="joint",
            description="last output of the policy, clipped to +-clip_actions; zeros before the first",
        ),
        "clock": ObsTerm(
            lambda task: task.clock(),
            2,
            mirror="clock",
            description=lambda task: (
                f"sine and cosine of 2 pi t / {task.cfg.gait.period_s} s from any start; zeros "
                "while the command is zero"
            ),
        ),
        "base_height": ObsTerm(
            lambda task: task.base_height,
            1,
            mirror="scalar",
            privileged=True,
            unit="m",
            frame="world",
            description="height of the origin of the base body above the ground",
        ),
        "foot_contact": ObsTerm(
            lambda task: task.foot_contact.float(),
            num_feet,
            mirror="feet",
            privileged=True,
            description="1 for each foot that touches something, else 0, in the order of foot_names",
        ),
        "foot_height": ObsTerm(
            lambda task: task.foot_height,
            num_feet,
            mirror="feet",
            privileged=True,
            unit="m",
            frame="world",
            description="height of each sole above the ground, in the order of foot_names",
        ),
        "properties": ObsTerm(
            lambda task: task.properties,
            NUM_PROPERTIES + 1,
            mirror="scalar",
            privileged=True,
            unit="1, 1, 1, s",
            description="friction coefficient, factor of the base mass, factor of the motor torques, latency",
        ),
    }
    TERMINATIONS: ClassVar[dict[str, Term]] = {"fall": terminations.touches_ground, "tilt": terminations.tilted_over}
    METRICS: ClassVar[Sequence[str]] = (
        "Tracking/lin_vel_x_error",
        "Tracking/lin_vel_y_error",
        "Tracking/ang_vel_yaw_error",
    )
    ACTION_FORMULA: ClassVar[str] = (
        "joint_target = clip(default_joint_pos + action_scale * clip(actions, -clip_actions, clip_actions), lower and "
        "upper of joint_target_range), rad; torque = clip(stiffness * (joint_target - joint position) - damping * "
        "joint velocity, -effort_limit, effort_limit), Nm, computed at least every torque_period_s"
    )

    cfg: LeggedWalkCfg
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
    moving: torch.Tensor
    """`(N,)` bool: the command is not to stand."""
    foot_contact: torch.Tensor
    """`(N, F)` bool: the foot touches something."""
    foot_height: torch.Tensor
    """`(N, F)` height of the sole above the ground, m."""
    foot_velocity: torch.Tensor
    """`(N, F, 2)` horizontal velocity of the foot in the world, m/s."""
    velocity_error: torch.Tensor
    """`(N, 3)` command minus measured lin_vel_x, lin_vel_y and ang_vel_yaw."""
    has_fallen: torch.Tensor
    """`(N,)` bool: the base or a knee touches something."""
    foot_stance: torch.Tensor
    """`(N, F)` bool: the foot is in stance by the gait clock."""
    swing_height: torch.Tensor
    """`(N, F)` desired height of the sole by the gait clock, m."""

    def __init__(self, cfg: LeggedWalkCfg, num_envs: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        super().__init__(cfg, num_envs, device, seed)
        robot = self.robot
        self._base = robot.require_locomotion("walking")
        self._check_settings()
        uniform = torch.rand(num_envs, NUM_PROPERTIES + 1, generator=self.generator, device=self.device)
        self.joint_control = JointControl(robot, self.backend, cfg.control, uniform[:, -1], self.register_buffer)
        """Turns joint targets into actuator controls."""
        ranges = (cfg.randomization.friction, cfg.randomization.base_mass, cfg.randomization.motor_strength)
        sampled = randomize(self.backend, robot, ranges, uniform[:, :-1])
        properties = torch.cat([sampled, self.joint_control.latency_s[:, None]], dim=1)
        self.properties = self.register_buffer("properties", properties)
        """`(N, 4)` friction, factor of the base mass, factor of the motor torques, latency in s."""
        self.commands = self.register_buffer("commands", self._zeros(3))
        """`(N, 3)` forward and leftward velocity, m/s, and yaw rate, rad/s."""
        self.phase = self.register_buffer("phase", self._zeros())
        """`(N,)` gait clock, from 0 to 1 over a stride."""
        self._tracked_velocity = self.register_buffer("tracked_velocity", self._zeros(3))
        self._tracked_commands = self.register_buffer("tracked_commands", self._zeros(3))
        self._commands_are_held = False
        self._set_constants()
        self.start()

    def observation_terms(self) -> dict[str, ObsTerm]:
        """The terms of the table; what the actor must not see, or no robot measures, is privileged."""
        terms = super().observation_terms()
        if not self.cfg.observe_linear_velocity and "base_lin_vel" in terms:
            terms["base_lin_vel"] = replace(terms["base_lin_vel"], privileged=True)
        if self.cfg.deployable:
            for name in find_sensors(terms, self.robot, self.cfg).unmeasured:
                terms[name] = replace(terms[name], privileged=True)
        return terms

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        """Ranges of initial states, commands, pushes and observation noise."""
        commands, reset, push = self.cfg.commands, self.cfg.reset, self.cfg.push.max_speed
        return {
            "joints": [(-reset.joint_pos, reset.joint_pos)] * self.robot.num_joints,
            "velocity": [(-reset.velocity, reset.velocity)] * 6,
            "half_yaw": [(-reset.yaw / 2, reset.yaw / 2)],
            "phase": [(0.0, 1.0)],
            "commands": [commands.lin_vel_x, commands.lin_vel_y, commands.ang_vel_yaw],
            "standing": [(0.0, 1.0)],
            "push": [(-push, push)] * 2,
            "push_due": [(0.0, 1.0)],
            **super()._random_ranges(),
        }

    def reset(self, *args: object, **kwargs: object) -> tuple[torch.Tensor, dict[str, Any]]:
        """Reset every robot and return `get_observations()`; arguments are ignored."""
        outcome = super().reset()
        self._tracked_commands.copy_(self.commands)
        return outcome

    def hold_commands(self, commands: torch.Tensor) -> None:
        """Set the commands `(N, 3)` and keep them over all further episodes, for an evaluation."""
        if commands.shape != self.commands.shape:
            raise ValueError(
                f"a command is lin_vel_x, lin_vel_y and ang_vel_yaw of each robot, {tuple(self.commands.shape)}; got "
                f"{tuple(commands.shape)}"
            )
        self.commands.copy_(self._zero_small(commands))
        self._commands_are_held = True
        self._read_state()
        self._deliver(self.compute_observation())

    def push(self, velocity: torch.Tensor, mask: torch.Tensor) -> None:
        """Add `velocity` `(N, 3)`, m/s in the world frame, to the base velocity of the robots of `mask` `(N,)`."""
        self.backend.add_velocity(velocity, mask, self._base.qvel)
        self._read_state()
        self._deliver(self.compute_observation())

    def describe_steering(self) -> dict[str, float] | None:
        """How the task steers a robot across its terrain: `gain`, `max_rate` and `turn_back_m`; None if it does not."""
        return None

    def describe_io(self) -> dict[str, Any]:
        """Add the limits of joint targets, and what names and the gait clock of the observation refer to."""
        cfg = self.cfg
        return {
            **super().describe_io(),
            "joint_target_range": self.joint_control.target_range,
            "torque_period_s": cfg.physics.timestep,
            "base_body": self.robot.model.body(self._base.body).name,
            "foot_names": [foot.name for foot in self.robot.feet],
            # No sensor measures it: the controller has to compute it.
            "clock": {
                "period_s": cfg.gait.period_s,
                "values": "sin and cos of 2 pi t / period_s; zeros unless the norm of the command exceeds "
                "moving_threshold",
                "moving_threshold": cfg.commands.moving_threshold,
            },
        }

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
        robot, phases = self.robot.mirror(), self._foot_offsets.tolist()
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

    @property
    def torques(self) -> torch.Tensor:
        """`(N, J)` torque at the actuated joints, Nm."""
        return self._joint_vel_columns(self.backend.joint_force)

    @property
    def lin_vel_rmsd(self) -> torch.Tensor:
        """`(N,)` absolute error of the forward velocity in the last step, m/s."""
        return lin_vel_rmsd(self._tracked_velocity, self._tracked_commands, reduce=False)

    @property
    def tracking_error(self) -> torch.Tensor:
        """Root mean square error of the forward velocity in the last step over all robots, m/s, 0-d."""
        return lin_vel_rmsd(self._tracked_velocity, self._tracked_commands)

    @property
    def CoT(self) -> torch.Tensor:
        """Mean cost of transport of the robots that are commanded to move, 0-d; NaN if none is."""
        cost = cost_of_transport(self.torques, self.joint_vel, self.robot.mass, self._tracked_velocity)
        return torch.where(self.moving, cost, torch.nan).nanmean()

    def _apply_actions(self, actions: torch.Tensor) -> None:
        """Step physics for one control period with targets `default_pose + scale * action`."""
        # Here and not in `_update_errors`: compiled code would copy them after new commands were sampled.
        self._tracked_commands.copy_(self.commands)
        self.joint_control.apply(self.joint_targets(actions))
        self.phase.add_(self.step_dt / self.cfg.gait.period_s).frac_()

    def joint_targets(self, actions: torch.Tensor) -> torch.Tensor:
        """`(N, J)` joint position targets of actions `(N, J)`."""
        scale = self.cfg.control.action_scale
        if isinstance(scale, float | int):
            return torch.add(self._default_joint_pos, actions, alpha=scale)
        return torch.addcmul(self._default_joint_pos, actions, self._joint_scale)

    def _read_state(self) -> None:
        """Compute base, joint and foot quantities from the backend."""
        qpos, qvel = self.backend.qpos, self.backend.qvel
        self._world_vectors[:, 1] = self._world_lin_vel
        vectors = quat_rotate_inverse(self.orientation, self._world_vectors)
        self.projected_gravity, self.base_lin_vel = vectors[:, 0], vectors[:, 1]
        self.joint_pos, self.joint_vel = self._joint_pos_columns(qpos), self._joint_vel_columns(qvel)
        self.joint_offset = self.joint_pos - self._default_joint_pos
        self.moving = self.commands.norm(dim=1) > self.cfg.commands.moving_threshold
        readings, feet = self.backend.sensordata.index_select(1, self._sensor_columns), len(self.robot.feet)
        self.foot_contact = readings[:, :feet] > 0
        self.foot_height = readings[:, feet : 2 * feet] - self._foot_radius
        self.foot_velocity = readings[:, 2 * feet : 4 * feet].unflatten(1, (feet, 2))
        self._fall_contacts = readings[:, 4 * feet :]

    def _update_errors(self) -> None:
        """Compute the tracking errors, and contacts and heights of the feet that the gait clock asks for."""
        self.velocity_error = self.commands - torch.cat([self.base_lin_vel[:, :2], self.base_ang_vel[:, 2:]], dim=1)
        self._tracked_velocity.copy_(self.base_lin_vel)
        self.has_fallen = self._fall_contacts.sum(dim=1) > 0
        gait = self.cfg.gait
        swing = (self.phase[:, None] + self._foot_offsets).frac_().sub_(gait.stance_fraction)
        self.foot_stance = (swing < 0) | ~self.moving[:, None]
        half_wave = swing.clamp_(min=0.0).mul_(math.pi / (1.0 - gait.stance_fraction)).sin_()
        self.swing_height = half_wave.mul_(gait.swing_height)

    def clock(self) -> torch.Tensor:
        """`(N, 2)` sine and cosine of the gait clock; zeros for a robot that stands."""
        return gait_clock(self.phase, self.moving, self._quarter_turn, self._full_turn)

    def _metrics(self) -> torch.Tensor:
        """`(N, 3)` absolute tracking errors."""
        return self.velocity_error.abs()

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Reset the robots of `mask`, then resample commands and apply pushes where due."""
        self._sample_initial_states()
        self.backend.reset(mask, self._start_qpos, self._start_qvel)
        self.joint_control.reset(mask)
        self.actions.masked_fill_(mask[:, None], 0.0)
        self._episode_length.masked_fill_(mask, 0)
        self.phase.copy_(torch.where(mask, self.random["phase"].squeeze(1), self.phase))
        self._resample_commands()
        self._push_at_random(mask)
        self._read_state()

    def _sample_initial_states(self) -> None:
        """Write a whole initial state near the default pose for every robot, nothing of an earlier one left."""
        random, base = self.random, self._base
        self._start_qpos.copy_(self._default_qpos)
        self._start_qvel.zero_()
        self._start_qpos.index_copy_(1, self._joint_qpos, self._default_joint_pos + random["joints"])
        # Sine and cosine of half the yaw rotate the default orientation about the vertical.
        sine, cosine = torch.add(self._quarter_turn, random["half_yaw"]).sin_().split(1, dim=1)
        orientation = torch.addcmul(sine * self._turned_orientation, cosine, self._default_orientation)
        self._start_qpos[:, base.qpos + 3 : base.qpos + 7] = orientation
        self._start_qvel[:, base.qvel : base.qvel + 6] = random["velocity"]

    def _resample_commands(self) -> None:
        """Resample commands at the start of an episode and every `commands.resample_s` seconds."""
        if self._commands_are_held:
            return
        commands = self.random["commands"] * (self.random["standing"] >= self.cfg.commands.standing_fraction)
        is_due = (self._episode_length % self._resample_steps == 0)[:, None]
        self.commands.copy_(torch.where(is_due, self._zero_small(commands), self.commands))

    def _zero_small(self, commands: torch.Tensor) -> torch.Tensor:
        """The commands `(N, 3)`, zero where too small to walk: a robot that stands and leans to move may fall."""
        return zero_small_commands(commands, self.cfg.commands.moving_threshold)

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
        self._default_joint_pos = float_tensor(robot.default_joint_pos, device)
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
        contacts, heights = [f.contact for f in robot.feet], [f.position + 2 for f in robot.feet]
        velocities = [f.velocity + axis for f in robot.feet for axis in (0, 1)]
        self._sensor_columns = torch.tensor([*contacts, *heights, *velocities, *robot.fall_sensors], device=device)
        self._foot_radius = float_tensor([foot.radius for foot in robot.feet], device)
        phase_of_foot = dict(zip(robot.feet_by_place, cfg.gait.offsets))
        self._foot_offsets = float_tensor([phase_of_foot[foot] for foot in range(len(robot.feet))], device)
        self._resample_steps = max(1, round(cfg.commands.resample_s / self.step_dt))
        # Views of the backend tensors, which keep their address; reading the backend property updates them.
        qpos, qvel = self.backend.qpos[:, self._base.qpos :], self.backend.qvel[:, self._base.qvel :]
        self.base_height, self.orientation = qpos[:, 2:3], qpos[:, 3:7]
        self._world_lin_vel, self.base_ang_vel = qvel[:, :3], qvel[:, 3:6]
        # World vectors to rotate into the base frame: gravity, and the velocity of each step.
        self._world_vectors = self._zeros(2, 3)
        self._world_vectors[:, 0, 2] = -1.0
        self._start_qpos = self._default_qpos.repeat(self.num_envs, 1)
        self._start_qvel = self._zeros(robot.model.nv)
        # With these, sin(angle + quarter_turn) is (sin, cos) of an angle.
        self._quarter_turn = float_tensor([0.0, math.pi / 2], device)
        self._full_turn = float_tensor(2 * math.pi, device)
        self._default_orientation = self._default_qpos[self._base.qpos + 3 : self._base.qpos + 7]
        w, x, y, z = self._default_orientation.tolist()
        # The default orientation after a rotation of pi about the vertical.
        self._turned_orientation = float_tensor([-z, -y, x, w], device)

    def _check_settings(self) -> None:
        """ValueError for invalid settings, such as a foot without a phase."""
        gait, push = self.cfg.gait, self.cfg.push
        for part, settings in (("commands", self.cfg.commands), ("randomization", self.cfg.randomization)):
            for name, value in vars(settings).items():
                if isinstance(value, Sequence) and value[0] > value[1]:
                    raise ValueError(f"{part}.{name} is {tuple(value)}: give the smallest number first")
        if gait.period_s <= 0 or not 0 <= gait.stance_fraction < 1:
            raise ValueError(
                f"gait.period_s is {gait.period_s} and gait.stance_fraction {gait.stance_fraction}: give a "
                "positive time and a fraction from 0 to less than 1"
            )
        if push.max_speed != 0 and push.interval_s <= 0:
            raise ValueError(f"push.interval_s is {push.interval_s}: give a positive time, or set push.max_speed to 0")
        offsets, feet = gait.offsets, self.robot.feet
        if len(offsets) != len(feet):
            names = ", ".join(foot.name for foot in feet)
            trot = " ".join(("0", "0.5")[(foot // 2 + foot) % 2] for foot in range(len(feet)))
            raise ValueError(
                f"gait.offsets has {len(offsets)} phases, but {self.robot.path} has {len(feet)} feet ({names}): "
                "give one phase for each, from front to rear and in each row the right one first, such as "
                f"--env.gait.offsets {trot}"
            )
