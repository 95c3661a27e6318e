"""Walking: follow velocity commands to a gait clock; the base of all tasks with legged robots."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from st_rl.sim.deploy.measured_state import find_sensors
from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.joint_control import float_tensor
from st_rl.sim.envs.legged_task import ACTIONS, PROPERTIES, PROPRIOCEPTION, LeggedTask
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.envs.task import Task
from st_rl.sim.envs.term_tables import ObsTerm, Term
from st_rl.sim.terms import terminations
from st_rl.sim.terms.observations import gait_clock, zero_small_commands
from st_rl.utils.metrics import cost_of_transport, lin_vel_rmsd


def num_feet(task: Task) -> int:
    """`F`, the width of a foot quantity."""
    return len(task.robot.feet)


class LeggedWalk(LeggedTask):
    """Robots with feet that walk to a gait clock as commanded.

    Of the attributes below those from `velocity_error` on are what rewards read, before any reset. Feet (`F`) are in
    the order of the robot.
    """

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {
        **PROPRIOCEPTION,
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
        "actions": ACTIONS,
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
        "properties": PROPERTIES,
    }
    TERMINATIONS: ClassVar[dict[str, Term]] = {"fall": terminations.touches_ground, "tilt": terminations.tilted_over}
    MAX_TILT_COSINE: ClassVar[float] = 0.5
    """Cosine of the tilt of the base beyond which a robot has fallen: 60 degrees."""
    METRICS: ClassVar[Sequence[str]] = (
        "Tracking/lin_vel_x_error",
        "Tracking/lin_vel_y_error",
        "Tracking/ang_vel_yaw_error",
    )
    PURPOSE: ClassVar[str] = "walking"

    cfg: LeggedWalkCfg  # pyright: ignore[reportIncompatibleVariableOverride]
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
    """`(N,)` bool: the base touches something, or a knee, unless the task allows it."""
    foot_stance: torch.Tensor
    """`(N, F)` bool: the foot is in stance by the gait clock."""
    swing_height: torch.Tensor
    """`(N, F)` desired height of the sole by the gait clock, m."""

    def _unmeasured_terms(self, terms: Mapping[str, ObsTerm]) -> Iterable[str]:
        """Names of the terms of which the functions read what no walking robot measures."""
        return find_sensors(terms, self.robot, self.cfg).unmeasured

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        """Add the ranges of initial states and commands."""
        commands, reset = self.cfg.commands, self.cfg.reset
        return {
            "joints": [(-reset.joint_pos, reset.joint_pos)] * self.robot.num_joints,
            "velocity": [(-reset.velocity, reset.velocity)] * 6,
            "half_yaw": [(-reset.yaw / 2, reset.yaw / 2)],
            "phase": [(0.0, 1.0)],
            "commands": [commands.lin_vel_x, commands.lin_vel_y, commands.ang_vel_yaw],
            "standing": [(0.0, 1.0)],
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

    def describe_steering(self) -> dict[str, float] | None:
        """How the task steers a robot across its terrain: `gain`, `max_rate` and `turn_back_m`; None if it does not."""
        return None

    def describe_io(self) -> dict[str, Any]:
        """Add what names and the gait clock of the observation refer to."""
        cfg = self.cfg
        return {
            **super().describe_io(),
            "foot_names": [foot.name for foot in self.robot.feet],
            # No sensor measures it: the controller has to compute it.
            "clock": {
                "period_s": cfg.gait.period_s,
                "values": "sin and cos of 2 pi t / period_s; zeros unless the norm of the command exceeds "
                "moving_threshold",
                "moving_threshold": cfg.commands.moving_threshold,
            },
        }

    def _foot_phases(self) -> Sequence[float]:
        """Phase of each foot in the gait, in the order of the robot."""
        return self._foot_offsets.tolist()

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
        super()._apply_actions(actions)
        self.phase.add_(self.step_dt / self.cfg.gait.period_s).frac_()

    def _read_state(self) -> None:
        """Compute base, joint and foot quantities from the backend."""
        super()._read_state()
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

    def _update_targets(self, was_reset: torch.Tensor) -> None:
        """Start the gait clock at a random phase, and resample commands where due."""
        self.phase.copy_(torch.where(was_reset, self.random["phase"].squeeze(1), self.phase))
        self._resample_commands()

    def _sample_initial_states(self) -> None:
        """Write a whole initial state near the default pose for every robot, nothing of an earlier one left."""
        random, base = self.random, self._base
        self._start_qpos.copy_(self._default_qpos)
        self._start_qvel.zero_()
        self._start_qpos.index_copy_(1, self._joint_qpos, self.default_joint_pos + random["joints"])
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

    def _set_constants(self) -> None:
        super()._set_constants()
        robot, cfg, device = self.robot, self.cfg, self.backend.device
        self.commands = self.register_buffer("commands", self._zeros(3))
        """`(N, 3)` forward and leftward velocity, m/s, and yaw rate, rad/s."""
        self.phase = self.register_buffer("phase", self._zeros())
        """`(N,)` gait clock, from 0 to 1 over a stride."""
        self._tracked_velocity = self.register_buffer("tracked_velocity", self._zeros(3))
        self._tracked_commands = self.register_buffer("tracked_commands", self._zeros(3))
        self._commands_are_held = False
        contacts, heights = [f.contact for f in robot.feet], [f.position + 2 for f in robot.feet]
        velocities = [f.velocity + axis for f in robot.feet for axis in (0, 1)]
        self._sensor_columns = torch.tensor([*contacts, *heights, *velocities, *robot.fall_sensors], device=device)
        self._foot_radius = float_tensor([foot.radius for foot in robot.feet], device)
        phase_of_foot = dict(zip(robot.feet_by_place, cfg.gait.offsets))
        self._foot_offsets = float_tensor([phase_of_foot[foot] for foot in range(len(robot.feet))], device)
        self._resample_steps = max(1, round(cfg.commands.resample_s / self.step_dt))
        # With these, sin(angle + quarter_turn) is (sin, cos) of an angle.
        self._quarter_turn = float_tensor([0.0, math.pi / 2], device)
        self._full_turn = float_tensor(2 * math.pi, device)
        self._default_orientation = self._default_qpos[self._base.qpos + 3 : self._base.qpos + 7]
        w, x, y, z = self._default_orientation.tolist()
        # The default orientation after a rotation of pi about the vertical.
        self._turned_orientation = float_tensor([-z, -y, x, w], device)

    def _check_settings(self) -> None:
        """ValueError for invalid settings, such as a foot without a phase."""
        super()._check_settings()
        gait = self.cfg.gait
        self._check_ranges("commands", self.cfg.commands)
        if gait.period_s <= 0 or not 0 <= gait.stance_fraction < 1:
            raise ValueError(
                f"gait.period_s is {gait.period_s} and gait.stance_fraction {gait.stance_fraction}: give a "
                "positive time and a fraction from 0 to less than 1"
            )
        offsets, feet = gait.offsets, self.robot.feet
        if len(offsets) != len(feet):
            names = ", ".join(foot.name for foot in feet)
            trot = " ".join(("0", "0.5")[(foot // 2 + foot) % 2] for foot in range(len(feet)))
            raise ValueError(
                f"gait.offsets has {len(offsets)} phases, but {self.robot.path} has {len(feet)} feet ({names}): "
                "give one phase for each, from front to rear and in each row the right one first, such as "
                f"--env.gait.offsets {trot}"
            )
