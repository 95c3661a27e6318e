"""Motion tracking: a robot that does what reference clips do."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.joint_control import float_tensor
from st_rl.sim.envs.legged_task import ACTIONS, PROPERTIES, PROPRIOCEPTION, LeggedTask, num_joints
from st_rl.sim.envs.legged_task_cfg import LeggedTaskCfg, SensorNoiseCfg
from st_rl.sim.envs.term_tables import ObsTerm, RewardTerm, Term, default_weights
from st_rl.sim.motions.adaptive_sampling import AdaptiveSampler
from st_rl.sim.motions.kinematics import BodyStates, Kinematics
from st_rl.sim.motions.tracking_reference import TrackingReference
from st_rl.sim.require import MjModel, mujoco
from st_rl.sim.robots.name_patterns import match_names
from st_rl.sim.terms import rewards, tracking

# Of the anchor's rotation an observation has the first two columns, row by row; these are their signs in a mirror.
_ROTATION_SIGNS = (1, -1, -1, 1, 1, -1)


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
    action_center: Literal["default_pose", "reference"] = "default_pose"
    """Joint targets of an action of zero: the default pose, or the next frame of the clip, which is learned faster."""
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
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(MotionTracking.REWARDS))

    def for_evaluation(self, fine: bool = True) -> "MotionTrackingCfg":
        """Return a copy without disturbances that starts near the first frame of a clip and ends with it."""
        cfg = cast("MotionTrackingCfg", super().for_evaluation(fine))
        cfg.start, cfg.continue_to_next_clip = "first", False
        # Longer than any clip.
        cfg.episode_length_s = 3600.0
        return cfg


def num_body_coordinates(task: "MotionTracking") -> int:
    """Width of one vector for each tracked body."""
    return 3 * task.num_tracked


def num_body_rotations(task: "MotionTracking") -> int:
    """Width of two columns of a rotation matrix for each tracked body."""
    return 6 * task.num_tracked


class MotionTracking(LeggedTask):
    """Robots that do what reference clips do.

    After a step a robot is compared with the frame `row` of its clip. What it observes of the reference is the frame
    after that, which the next step is compared with. Clips lie where their files place them; `placement` moves and
    turns them to a robot that has passed from one clip to the next. Of the attributes below, errors are those before
    any reset. `B` tracked bodies, `J` joints, `E` end effectors.
    """

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {
        "reference_joint_pos": ObsTerm(
            lambda task: task.target_joint_offset,
            num_joints,
            scale="joint_pos",
            mirror="joints",
            unit="rad",
            frame="joint",
            description="joint positions of the next frame of the clip minus default_joint_pos",
        ),
        "reference_joint_vel": ObsTerm(
            lambda task: task.target_joint_vel,
            num_joints,
            scale="joint_vel",
            mirror="joints",
            unit="rad/s",
            frame="joint",
            description="joint velocities of the next frame of the clip",
        ),
        "anchor_pos": ObsTerm(
            lambda task: task.target_anchor_pos,
            3,
            noise="anchor_pos",
            mirror="vector",
            unit="m",
            frame="anchor",
            description="position of the anchor in the next frame of the clip, from the anchor of the robot",
        ),
        "anchor_rot": ObsTerm(
            lambda task: task.target_anchor_rot[:, :, :2].flatten(1),
            6,
            noise="anchor_rot",
            mirror=_ROTATION_SIGNS,
            frame="anchor",
            description="first two columns, row by row, of the rotation matrix of the anchor in the next frame",
        ),
        **PROPRIOCEPTION,
        "actions": ACTIONS,
        "body_pos": ObsTerm(
            lambda task: task.local_body_pos.flatten(1),
            num_body_coordinates,
            privileged=True,
            unit="m",
            frame="anchor",
            description="positions of the tracked bodies, from the anchor",
        ),
        "body_rot": ObsTerm(
            lambda task: task.local_body_rot[..., :2].flatten(1),
            num_body_rotations,
            privileged=True,
            frame="anchor",
            description="first two columns, row by row, of the rotation matrices of the tracked bodies",
        ),
        "base_height": ObsTerm(
            lambda task: task.base_height,
            1,
            mirror="scalar",
            privileged=True,
            unit="m",
            frame="world",
            description="height of the base above the ground",
        ),
        "properties": PROPERTIES,
    }
    REWARDS: ClassVar[dict[str, RewardTerm]] = {
        "anchor_pos": RewardTerm(tracking.anchor_pos, 0.5),
        "anchor_rot": RewardTerm(tracking.anchor_rot, 0.5),
        "body_pos": RewardTerm(tracking.body_pos, 1.0),
        "body_rot": RewardTerm(tracking.body_rot, 1.0),
        "body_lin_vel": RewardTerm(tracking.body_lin_vel, 1.0),
        "body_ang_vel": RewardTerm(tracking.body_ang_vel, 1.0),
        "action_rate": RewardTerm(rewards.action_rate, -0.1),
        "joint_limits": RewardTerm(tracking.joint_limits, -10.0),
        "unwanted_contacts": RewardTerm(tracking.unwanted_contacts, -0.1),
    }
    TERMINATIONS: ClassVar[dict[str, Term]] = {
        "anchor_height": tracking.anchor_height,
        "anchor_tilt": tracking.anchor_tilt,
        "end_effectors": tracking.end_effectors,
    }
    METRICS: ClassVar[Sequence[str]] = (
        "Tracking/body_pos_error",
        "Tracking/joint_pos_error",
        "Tracking/anchor_pos_error",
        "Tracking/anchor_rot_error",
    )
    PURPOSE: ClassVar[str] = "motion tracking"

    cfg: MotionTrackingCfg  # pyright: ignore[reportIncompatibleVariableOverride]
    bodies: BodyStates
    """The tracked bodies of the robots, then the anchor, in the frame of the clip."""
    target_joint_offset: torch.Tensor
    """`(N, J)` joint positions of the frame after `row`, relative to the default pose, rad."""
    target_joint_vel: torch.Tensor
    """`(N, J)` joint velocities of that frame, rad/s."""
    target_anchor_pos: torch.Tensor
    """`(N, 3)` position of the anchor in that frame, in the frame of the robot's anchor, m."""
    target_anchor_rot: torch.Tensor
    """`(N, 3, 3)` rotation of it, in the frame of the robot's anchor."""
    body_pos_distance: torch.Tensor
    """`(N, B)` distance of each body from where it should be relative to the anchor, m."""
    body_rot_angle: torch.Tensor
    """`(N, B)` angle of each body from how it should be turned relative to the heading of the anchor, rad."""
    body_lin_vel_distance: torch.Tensor
    """`(N, B)` m/s"""
    body_ang_vel_distance: torch.Tensor
    """`(N, B)` rad/s"""
    body_pos_error: torch.Tensor
    """`(N,)` mean of `body_pos_distance`: the reference is moved horizontally and turned about the vertical, so that
    its anchor has the place and heading of the robot's; heights are those of the reference, m."""
    joint_pos_error: torch.Tensor
    """`(N,)` mean absolute difference of the joint positions, rad."""
    anchor_pos_error: torch.Tensor
    """`(N,)` distance of the anchor from that of the reference, m."""
    anchor_rot_error: torch.Tensor
    """`(N,)` angle between the anchor and that of the reference, rad."""
    anchor_height_error: torch.Tensor
    """`(N,)` m"""
    anchor_tilt_error: torch.Tensor
    """`(N,)` difference of the cosines of the tilt."""
    end_effector_height_error: torch.Tensor
    """`(N, E)` m"""

    def observation_terms(self) -> dict[str, ObsTerm]:
        """Add the future of the reference, if any."""
        terms = super().observation_terms()
        steps = self.cfg.future_steps
        if not steps:
            return terms
        joints = self.robot.num_joints
        future = {
            "future_joint_pos": ObsTerm(
                lambda task: task.future_joint_offset(),
                len(steps) * joints,
                scale="joint_pos",
                mirror="joints",
                unit="rad",
                frame="joint",
                description=f"joint positions of the clip minus default_joint_pos, {steps} frames after the next one",
            ),
            "future_anchor": ObsTerm(
                lambda task: task.future_anchor_pose(),
                len(steps) * 9,
                mirror=[1, -1, 1, *_ROTATION_SIGNS],
                unit="m, 1",
                description=f"position and first two columns of the rotation matrix of the anchor in these {steps} "
                "frames of the clip, from the anchor in the next frame",
            ),
        }
        return {**future, **terms}

    def _unmeasured_terms(self, terms: Mapping[str, ObsTerm]) -> Iterable[str]:
        """Names of the terms that need the position or velocity of the base."""
        return [name for name in ("base_lin_vel", "anchor_pos") if name in terms]

    @property
    def num_tracked(self) -> int:
        """`B`, the number of tracked bodies."""
        return len(self.reference.body_names)

    @property
    def fall_contacts(self) -> torch.Tensor:
        """`(N, G)` number of contacts of the geoms of which a contact means a fall."""
        return self.backend.sensordata.index_select(1, self._fall_columns)

    @property
    def local_body_pos(self) -> torch.Tensor:
        """`(N, B, 3)` positions of the tracked bodies in the frame of the anchor, m."""
        return in_frame(self.bodies.rot[:, -1:], self.bodies.pos[:, :-1] - self.bodies.pos[:, -1:])

    @property
    def local_body_rot(self) -> torch.Tensor:
        """`(N, B, 3, 3)` rotations of the tracked bodies in the frame of the anchor."""
        return in_frame(self.bodies.rot[:, -1:, None], self.bodies.rot[:, :-1].mT).mT

    def reference_qpos(self, row: torch.Tensor | None = None) -> torch.Tensor:
        """`(N, nq)` positions of the model in the frame `row` `(N,)` of the reference, in the world of each robot.

        By default it is the frame that the robot was last compared with.
        """
        qpos = self.reference.qpos.index_select(0, self.row if row is None else row)
        first = self._base.qpos
        yaw, x, y = self.placement.unbind(1)
        cosine, sine = yaw.cos(), yaw.sin()
        px, py = qpos[:, first].clone(), qpos[:, first + 1].clone()
        qpos[:, first], qpos[:, first + 1] = cosine * px - sine * py + x, sine * px + cosine * py + y
        qpos[:, first + 3 : first + 7] = _turn_quaternion(qpos[:, first + 3 : first + 7], yaw)
        return qpos

    def hold_clips(self, clips: torch.Tensor, reset: bool = True) -> None:
        """Start this and all further episodes at the first frame of the clips `(N,)`; with `reset` False, the next."""
        count = len(self.reference.clips)
        if clips.shape != self.clip.shape or not bool(((clips >= 0) & (clips < count)).all()):
            raise ValueError(f"give each of the {self.num_envs} robots one of the clips 0 to {count - 1}")
        self._held_rows = self.reference.first_row[clips.to(self.device)]
        if reset:
            self.reset()

    def describe_io(self) -> dict[str, Any]:
        """Add what the reference refers to."""
        io = {**super().describe_io(), "anchor_body": self.reference.anchor}
        if self.cfg.action_center == "reference":
            center = "joint positions of the next frame of the clip"
            io["action_formula"] = io["action_formula"].replace("default_joint_pos", center, 1)
        return io

    def _choose_model(self) -> MjModel:
        """The model of the robot, without sensors where none is read."""
        model = super()._choose_model()
        if not self.cfg.contact_sensors:
            model = copy.copy(model)
            model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
        return model

    def _set_constants(self) -> None:
        """Load the reference onto the device too."""
        super()._set_constants()
        cfg, robot, device = self.cfg, self.robot, self.backend.device
        bodies, anchor = self._choose_bodies()
        self.reference = reference = TrackingReference(robot, cfg.motions, self.step_dt, bodies, anchor, device)
        """The clips as rows of one table."""
        self._kinematics = Kinematics(robot.model, self._base, [*bodies, anchor], device)
        parents = [int(parent) for parent in robot.model.body_parentid]
        self._end_effectors = torch.tensor(
            [place for place, body in enumerate(bodies) if not _has_descendant(body, bodies, parents)], device=device
        )
        self._fall_columns = torch.tensor(robot.fall_sensors, dtype=torch.long, device=device)
        low, high = torch.from_numpy(robot.joint_range).unbind(1)
        margin = 0.5 * (1.0 - cfg.soft_joint_range) * torch.where((high - low).isfinite(), high - low, 0.0)
        self.soft_joint_limits = float_tensor(low + margin, device), float_tensor(high - margin, device)
        """`(J,)` lower and upper joint positions beyond which the penalty `joint_limits` begins, rad."""
        self.sampler = AdaptiveSampler(
            reference.num_frames,
            reference.weights,
            self.step_dt,
            self.register_buffer,
            device,
            cfg.sampling.bin_s,
            cfg.sampling.uniform_fraction if cfg.sampling.adaptive else 1.0,
            cfg.sampling.memory_s,
        )
        """Samples the frames at which episodes start."""
        followers = reference.followers(cfg.transition_distance) * float(cfg.continue_to_next_clip)
        self._has_follower = followers.sum(dim=1) > 0
        self._can_pass = bool(self._has_follower.any())
        self._followers = followers.cumsum(dim=1).to(torch.float32)
        weights = torch.tensor(reference.weights, dtype=torch.float64, device=device)
        self._clip_weights = (weights / weights.sum()).cumsum(0).to(torch.float32)
        self._future = torch.tensor(cfg.future_steps, dtype=torch.long, device=device)
        self._held_rows: torch.Tensor | None = None
        self.row = self.register_buffer("row", self._zeros(dtype=torch.long))
        """`(N,)` row of the reference that the robots were last compared with, or started from."""
        self.clip = self.register_buffer("clip", self._zeros(dtype=torch.long))
        """`(N,)` clip of each robot."""
        self.placement = self.register_buffer("placement", self._zeros(3))
        """`(N, 3)` yaw, rad, x and y, m, of the clip's frame in the world of each robot."""
        self.clip_ended = self.register_buffer("clip_ended", self._zeros(dtype=torch.bool))
        """`(N,)` bool: the robot reached the end of its clip in the last step."""

    def _choose_bodies(self) -> tuple[list[int], int]:
        """Ids of the tracked bodies in the order of the model, and of the anchor."""
        model, base = self.robot.model, self._base.body
        own = [body for body in range(base, model.nbody) if model.body_rootid[body] == model.body_rootid[base]]
        names = [model.body(body).name for body in own]

        def find(pattern: str, where: str) -> list[int]:
            return [own[place] for place in match_names(pattern, names, "body of the robot", where)]

        bodies = {body for pattern in self.cfg.tracked_bodies for body in find(pattern, "tracked_bodies")}
        if not bodies:
            bodies = {body for body in own if model.body_jntnum[body] > 0}
        anchor = find(self.cfg.anchor_body, "anchor_body")[0] if self.cfg.anchor_body else base
        return sorted(bodies), anchor

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        """Add those of the start and of the next clip."""
        reset = self.cfg.reset
        return {
            "joints": [(-reset.joint_pos, reset.joint_pos)] * self.robot.num_joints,
            "rotation": [(-reset.rotation, reset.rotation)] * 3,
            "velocity": [(-reset.velocity, reset.velocity)] * 6,
            "clip": [(0.0, 1.0)] * 2,
            **super()._random_ranges(),
        }

    def _apply_actions(self, actions: torch.Tensor) -> None:
        """Step physics for one control period, and the reference by one frame."""
        super()._apply_actions(actions)
        self.row.copy_(self._later_row(1))

    def joint_targets(self, actions: torch.Tensor) -> torch.Tensor:
        """`(N, J)` joint position targets of actions `(N, J)`."""
        targets = super().joint_targets(actions)
        if self.cfg.action_center == "default_pose":
            return targets
        # Not `target_joint_offset`: a captured step must not read what an earlier one computed outside of the buffers.
        return targets + self.reference.targets(self._later_row(1))[0] - self._default_joint_pos

    def _later_row(self, steps: int | torch.Tensor) -> torch.Tensor:
        """Rows `steps` frames after `row`, at most the last row of the clip."""
        return torch.minimum(self.row + steps, self.reference.last_row[self.clip])

    def _read_state(self) -> None:
        """Compute base, joints, body poses in the frame of the clip, and the next frame of the reference."""
        super()._read_state()
        self.bodies = self._kinematics(*self._state_in_clip())
        joint_pos, self.target_joint_vel, pos, rot = self.reference.targets(self._later_row(1))
        self.target_joint_offset = joint_pos - self._default_joint_pos
        anchor = self.bodies.rot[:, -1]
        self.target_anchor_pos = in_frame(anchor, pos - self.bodies.pos[:, -1])
        self.target_anchor_rot = in_frame(anchor[:, None], rot.mT).mT

    def _state_in_clip(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions `(N, nq)` and velocities `(N, nv)` of the robots in the frame of their clip."""
        if not self._can_pass:
            return self.backend.qpos, self.backend.qvel
        qpos, qvel, first, base = self.backend.qpos.clone(), self.backend.qvel.clone(), self._base.qpos, self._base.qvel
        yaw, x, y = self.placement.unbind(1)
        cosine, sine = yaw.cos(), yaw.sin()
        dx, dy = qpos[:, first] - x, qpos[:, first + 1] - y
        vx, vy = qvel[:, base].clone(), qvel[:, base + 1].clone()
        qpos[:, first], qpos[:, first + 1] = cosine * dx + sine * dy, cosine * dy - sine * dx
        qvel[:, base], qvel[:, base + 1] = cosine * vx + sine * vy, cosine * vy - sine * vx
        qpos[:, first + 3 : first + 7] = _turn_quaternion(qpos[:, first + 3 : first + 7], -yaw)
        return qpos, qvel

    def future_joint_offset(self) -> torch.Tensor:
        """`(N, K J)` joint positions of the `future_steps`, relative to the default pose, rad."""
        joint_pos = self.reference.targets(self._future_rows())[0]
        return (joint_pos - self._default_joint_pos).view(self.num_envs, -1)

    def future_anchor_pose(self) -> torch.Tensor:
        """`(N, 9 K)` position and rotation of the anchor in the `future_steps`, from that of the next frame."""
        _, _, pos, rot = self.reference.targets(self._future_rows())
        _, _, next_pos, next_rot = self.reference.targets(self._later_row(1))
        local = in_frame(next_rot[:, None], pos.view(self.num_envs, -1, 3) - next_pos[:, None])
        turned = in_frame(next_rot[:, None, None], rot.view(self.num_envs, -1, 3, 3).mT).mT
        return torch.cat([local, turned[..., :2].flatten(2)], dim=2).flatten(1)

    def _future_rows(self) -> torch.Tensor:
        """`(N K,)` rows of the `future_steps`."""
        rows = self.row[:, None] + 1 + self._future
        return torch.minimum(rows, self.reference.last_row[self.clip][:, None]).flatten()

    def _update_errors(self) -> None:
        """Compare the robots with the frame `row` of their clips."""
        own, wanted = self.bodies, self.reference.bodies(self.row)
        anchor, wanted_anchor = own.rot[:, -1], wanted.rot[:, -1]
        self.clip_ended.copy_(self.row == self.reference.last_row[self.clip])
        # First column of the rotation from the wanted anchor to the robot's: cosine and sine of its yaw.
        heading = (anchor[:, :2] * wanted_anchor[:, :1]).sum(dim=2)
        cosine, sine = torch.nn.functional.normalize(heading, dim=1).unbind(1)
        cosine, sine = cosine[:, None], sine[:, None]
        dx, dy, _ = (wanted.pos[:, :-1] - wanted.pos[:, -1:]).unbind(2)
        x = own.pos[:, -1:, 0] + cosine * dx - sine * dy - own.pos[:, :-1, 0]
        y = own.pos[:, -1:, 1] + sine * dx + cosine * dy - own.pos[:, :-1, 1]
        z = wanted.pos[:, :-1, 2] - own.pos[:, :-1, 2]
        self.body_pos_distance = (x * x + y * y + z * z).sqrt()
        self.body_pos_error = self.body_pos_distance.mean(dim=1)
        first, second, third = wanted.rot[:, :-1].unbind(2)
        cosine, sine = cosine[..., None], sine[..., None]
        turned = torch.stack([cosine * first - sine * second, sine * first + cosine * second, third], dim=2)
        self.body_rot_angle = rotation_angle(turned, own.rot[:, :-1])
        self.body_lin_vel_distance = (own.lin_vel - wanted.lin_vel)[:, :-1].norm(dim=2)
        self.body_ang_vel_distance = (own.ang_vel - wanted.ang_vel)[:, :-1].norm(dim=2)
        offset = wanted.pos[:, -1] - own.pos[:, -1]
        self.anchor_pos_error, self.anchor_height_error = offset.norm(dim=1), offset[:, 2].abs()
        self.anchor_rot_error = rotation_angle(wanted_anchor, anchor)
        self.anchor_tilt_error = (wanted_anchor[:, 2, 2] - anchor[:, 2, 2]).abs()
        self.end_effector_height_error = z.abs().index_select(1, self._end_effectors)
        joint_pos = self._joint_pos_columns(self.reference.qpos.index_select(0, self.row))
        self.joint_pos_error = (joint_pos - self.joint_pos).abs().mean(dim=1)

    def _metrics(self) -> torch.Tensor:
        """`(N, 4)` errors of bodies, joints and anchor."""
        return torch.stack(
            [self.body_pos_error, self.joint_pos_error, self.anchor_pos_error, self.anchor_rot_error], dim=1
        )

    def _is_time_up(self) -> torch.Tensor:
        """`(N,)` bool: the time is over, or the clip is and no other follows."""
        return super()._is_time_up() | (self.clip_ended & ~self._has_follower[self.clip])

    def _record_terminations(self, terminated: torch.Tensor) -> None:
        """Count where robots fail; one that fails in the last frame of its clip has not reached its end."""
        self.sampler.update(self.row, terminated)
        self.clip_ended.logical_and_(~terminated)

    def _sample_initial_states(self) -> None:
        """Sample a frame of the reference for every robot, and an initial state near it."""
        random, base, reference = self.random, self._base, self.reference
        if self._held_rows is not None:
            self._start_row = self._held_rows
        elif self.cfg.start == "first":
            clip = torch.searchsorted(self._clip_weights, random["clip"][:, 0].contiguous(), right=True)
            self._start_row = reference.first_row[clip.clamp_(max=len(reference.clips) - 1)]
        else:
            self._start_row = self.sampler.sample(random["clip"])
        qpos, qvel = reference.start(self._start_row)
        self._start_qpos.copy_(qpos)
        self._start_qvel.copy_(qvel)
        self._start_qpos.index_add_(1, self._joint_qpos, random["joints"])
        self._start_qvel[:, base.qvel : base.qvel + 6] += random["velocity"]
        # A small rotation of the base in its own frame.
        w, axis = qpos[:, base.qpos + 3, None], qpos[:, base.qpos + 4 : base.qpos + 7]
        half = 0.5 * random["rotation"]
        turned = torch.cat(
            [w - (axis * half).sum(dim=1, keepdim=True), axis + w * half + torch.linalg.cross(axis, half)], dim=1
        )
        self._start_qpos[:, base.qpos + 3 : base.qpos + 7] = torch.nn.functional.normalize(turned, dim=1)

    def _update_targets(self, was_reset: torch.Tensor) -> None:
        """Set the rows of robots that were reset, and pass those at the end of their clip to the next one."""
        row = torch.where(was_reset, self._start_row, self.row)
        if self._can_pass:
            row = self._pass_to_next_clip(row, was_reset)
        self.row.copy_(row)
        self.clip.copy_(self.reference.clip_of_row[row])

    def _pass_to_next_clip(self, row: torch.Tensor, was_reset: torch.Tensor) -> torch.Tensor:
        """`row` `(N,)` with the first row of the next clip, which is placed where the robot is, where one has ended."""
        passes = self.clip_ended & ~was_reset & self._has_follower[self.clip]
        # The cumulative probabilities of the followers of each robot's clip.
        following = (self._followers[self.clip] <= self.random["clip"][:, 1:]).sum(dim=1)
        following = following.clamp_(max=len(self.reference.clips) - 1)
        row = torch.where(passes, self.reference.first_row[following], row)
        _, _, pos, rot = self.reference.targets(row)
        own, anchor = self.bodies.pos[:, -1], self.bodies.rot[:, -1]
        # Yaw and place of the next clip in the frame of the one before, then in the world.
        heading = (anchor[:, :2] * rot[:, :1]).sum(dim=2)
        turn = torch.atan2(heading[:, 1], heading[:, 0])
        x, y = _rotate(pos[:, 0], pos[:, 1], turn)
        yaw = self.placement[:, 0]
        x, y = _rotate(own[:, 0] - x, own[:, 1] - y, yaw)
        placement = torch.stack([yaw + turn, self.placement[:, 1] + x, self.placement[:, 2] + y], dim=1)
        placement = torch.where(passes[:, None], placement, self.placement)
        self.placement.copy_(placement.masked_fill_(was_reset[:, None], 0.0))
        return row

    def _check_settings(self) -> None:
        """ValueError for settings without meaning."""
        super()._check_settings()
        for part in (self.cfg.scales, self.cfg.limits):
            for name, value in vars(part).items():
                if not value > 0:
                    raise ValueError(f"{name} of {type(part).__name__} is {value}: give a number above 0")
        if self.cfg.rewards.get("unwanted_contacts") and not self.cfg.contact_sensors:
            raise ValueError("the reward unwanted_contacts needs contact_sensors: turn them on, or set its weight to 0")
        if any(step < 1 for step in self.cfg.future_steps):
            raise ValueError(f"future_steps is {self.cfg.future_steps}: give numbers of control steps from 1")


def in_frame(frame: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """World vectors `(..., 3)` in a frame `(..., 3, 3)`; a sum of products, because a GPU may round matrix products."""
    return (frame * vectors[..., None]).sum(dim=-2)


def rotation_angle(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Angles `(...)` between rotation matrices `(..., 3, 3)`, rad, exact for small ones."""
    # The Frobenius norm of the difference is 2 sqrt(2) sin(angle / 2).
    chord = (first - second).square().sum(dim=(-2, -1)).sqrt() / 8.0**0.5
    return 2.0 * torch.asin(chord.clamp(max=1.0))


def _rotate(x: torch.Tensor, y: torch.Tensor, angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of the plane, `(N,)` each, turned by angles `(N,)`."""
    cosine, sine = angle.cos(), angle.sin()
    return cosine * x - sine * y, sine * x + cosine * y


def _turn_quaternion(q: torch.Tensor, yaw: torch.Tensor) -> torch.Tensor:
    """Quaternions `(N, 4)` (w, x, y, z) turned about the vertical by angles `(N,)`."""
    w, x, y, z = q.unbind(1)
    cosine, sine = (0.5 * yaw).cos(), (0.5 * yaw).sin()
    return torch.stack([cosine * w - sine * z, cosine * x - sine * y, cosine * y + sine * x, cosine * z + sine * w], 1)


def _has_descendant(body: int, bodies: Sequence[int], parents: Sequence[int]) -> bool:
    """Whether another of the bodies is further out on the same limb."""
    for other in bodies:
        while other > body:
            other = parents[other]
            if other == body:
                return True
    return False
