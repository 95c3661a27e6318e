"""Motion tracking: a robot that does what reference clips do."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.joint_control import float_tensor
from st_rl.sim.envs.legged_task import ACTIONS, PROPERTIES, PROPRIOCEPTION, LeggedTask, num_joints
from st_rl.sim.envs.motion_tracking_cfg import MotionTrackingCfg
from st_rl.sim.envs.term_tables import ObsTerm, RewardTerm, Term
from st_rl.sim.motions.adaptive_sampling import AdaptiveSampler
from st_rl.sim.motions.kinematics import BodyStates, Kinematics
from st_rl.sim.motions.tracking_reference import ReferenceFrames, TrackingReference
from st_rl.sim.require import MjModel, mujoco
from st_rl.sim.robots.model_queries import body_chain
from st_rl.sim.robots.name_patterns import match_names
from st_rl.sim.terms import observations, rewards, terminations

# Signs in a mirror of the first two columns of a rotation matrix, row by row.
_ROTATION_SIGNS = (1, -1, -1, 1, 1, -1)


class MotionTracking(LeggedTask):
    """Robots that do what reference clips do.

    After a step a robot is compared with the frame `row` of its clip. What it observes of the reference is the frame
    after that, which the next step is compared with. Clips lie where their files place them; `placement` moves and
    turns them to a robot that has passed from one clip to the next. Of the attributes below, errors are those before
    any reset. `B` tracked bodies, `J` joints, `E` end effectors.
    """

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {
        "future_joint_pos": ObsTerm(
            observations.future_joint_pos,
            lambda task: len(task.cfg.future_steps) * task.robot.num_joints,
            scale="joint_pos",
            mirror="joints",
            unit="rad",
            frame="joint",
            description=lambda task: (
                "joint positions of the clip minus default_joint_pos, "
                f"{task.cfg.future_steps} frames after the next one"
            ),
        ),
        "future_anchor": ObsTerm(
            observations.future_anchor,
            lambda task: len(task.cfg.future_steps) * 9,
            mirror=[1, -1, 1, *_ROTATION_SIGNS],
            unit="m, 1",
            description=lambda task: (
                "position and first two columns of the rotation matrix of the anchor in these "
                f"{task.cfg.future_steps} frames of the clip, from the anchor in the next frame"
            ),
        ),
        "reference_joint_pos": ObsTerm(
            observations.reference_joint_pos,
            num_joints,
            scale="joint_pos",
            mirror="joints",
            unit="rad",
            frame="joint",
            description="joint positions of the next frame of the clip minus default_joint_pos",
        ),
        "reference_joint_vel": ObsTerm(
            observations.reference_joint_vel,
            num_joints,
            scale="joint_vel",
            mirror="joints",
            unit="rad/s",
            frame="joint",
            description="joint velocities of the next frame of the clip",
        ),
        "anchor_pos": ObsTerm(
            observations.anchor_pos,
            3,
            noise="anchor_pos",
            mirror="vector",
            unit="m",
            frame="anchor",
            description="position of the anchor in the next frame of the clip, from the anchor of the robot",
        ),
        "anchor_rot": ObsTerm(
            observations.anchor_rot,
            6,
            noise="anchor_rot",
            mirror=_ROTATION_SIGNS,
            frame="anchor",
            description="first two columns, row by row, of the rotation matrix of the anchor in the next frame",
        ),
        **PROPRIOCEPTION,
        "actions": ACTIONS,
        "body_pos": ObsTerm(
            observations.body_pos,
            lambda task: 3 * len(task.reference.body_names),
            privileged=True,
            unit="m",
            frame="anchor",
            description="positions of the tracked bodies, from the anchor",
        ),
        "body_rot": ObsTerm(
            observations.body_rot,
            lambda task: 6 * len(task.reference.body_names),
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
        "anchor_pos": RewardTerm(rewards.anchor_pos, 0.5),
        "anchor_rot": RewardTerm(rewards.anchor_rot, 0.5),
        "body_pos": RewardTerm(rewards.body_pos, 1.0),
        "body_rot": RewardTerm(rewards.body_rot, 1.0),
        "body_lin_vel": RewardTerm(rewards.body_lin_vel, 1.0),
        "body_ang_vel": RewardTerm(rewards.body_ang_vel, 1.0),
        "action_rate": RewardTerm(rewards.action_rate, -0.1),
        "joint_limits": RewardTerm(rewards.joint_limits, -10.0),
        "unwanted_contacts": RewardTerm(rewards.unwanted_contacts, -0.1),
    }
    TERMINATIONS: ClassVar[dict[str, Term]] = {
        "anchor_height": terminations.anchor_height,
        "anchor_tilt": terminations.anchor_tilt,
        "end_effectors": terminations.end_effectors,
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
    next_frame: ReferenceFrames
    """The frame after `row`, in the frame of the clip."""
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
        """The terms of the table, those of the future only with `future_steps`."""
        terms = super().observation_terms()
        return terms if self.cfg.future_steps else {n: t for n, t in terms.items() if not n.startswith("future_")}

    def _unmeasured_terms(self, terms: Mapping[str, ObsTerm]) -> Iterable[str]:
        """Names of the terms that need the position or velocity of the base."""
        return [name for name in ("base_lin_vel", "anchor_pos") if name in terms]

    @property
    def anchor_pos(self) -> torch.Tensor:
        """`(N, 3)` position of the anchor of the robots in the frame of the clip, m."""
        return self.bodies.pos[:, -1]

    @property
    def anchor_rot(self) -> torch.Tensor:
        """`(N, 3, 3)` rotation of the anchor of the robots in the frame of the clip."""
        return self.bodies.rot[:, -1]

    def future_frames(self) -> ReferenceFrames:
        """The frames `(N, K)` of `future_steps`, in the frame of the clip."""
        rows = self.row[:, None] + 1 + self._future
        return self.reference.frames(torch.minimum(rows, self.reference.last_row[self.clip][:, None]))

    @property
    def fall_contacts(self) -> torch.Tensor:
        """`(N, G)` number of contacts of the geoms of which a contact means a fall."""
        return self.backend.sensordata.index_select(1, self._fall_columns)

    def reference_qpos(self, row: torch.Tensor | None = None) -> torch.Tensor:
        """`(N, nq)` positions of the model in the frame `row` `(N,)` of the reference, in the world of each robot.

        By default it is the frame that the robot was last compared with.
        """
        qpos = self.reference.qpos.index_select(0, self.row if row is None else row)
        first = self._base.qpos
        yaw, x, y = self.placement.unbind(1)
        turned = _rotate(qpos[:, first], qpos[:, first + 1], yaw)
        qpos[:, first], qpos[:, first + 1] = turned[0] + x, turned[1] + y
        qpos[:, first + 3 : first + 7] = _turn_quaternion(qpos[:, first + 3 : first + 7], yaw)
        return qpos

    def hold_clips(self, clips: torch.Tensor, reset: bool = True) -> None:
        """Start this and all further episodes at the first frame of the clips `(N,)`; with `reset` False, the next."""
        count = len(self.reference.clips)
        if clips.shape != self.clip.shape or not bool(((clips >= 0) & (clips < count)).all()):
            raise ValueError(f"give each of the {self.num_envs} robots one of the clips 0 to {count - 1}")
        # In place: a captured step reads the rows where they were when it was captured.
        self._held_rows.copy_(self.reference.first_row[clips.to(self.device)])
        self._holds_clips = True
        if reset:
            self.reset()

    def describe_io(self) -> dict[str, Any]:
        """Add what the reference and the limits of the terminations refer to."""
        io = {**super().describe_io(), "anchor_body": self.reference.anchor}
        io["end_effector_bodies"] = self._end_effector_names
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
        carriers = {carrier for body in bodies for carrier in body_chain(robot.model, body)[1:]}
        outermost = [place for place, body in enumerate(bodies) if body not in carriers]
        self._end_effectors = torch.tensor(outermost, device=device)
        self._end_effector_names = [robot.model.body(bodies[place]).name for place in outermost]
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
        self._held_rows, self._holds_clips = self._zeros(dtype=torch.long), False
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
        self.row.copy_(self._next_row())

    def joint_targets(self, actions: torch.Tensor) -> torch.Tensor:
        """`(N, J)` joint position targets of actions `(N, J)`."""
        targets = super().joint_targets(actions)
        if self.cfg.action_center == "default_pose":
            return targets
        # Not `next_frame`: a captured step must not read what an earlier one computed outside of the buffers.
        return targets + self.reference.frames(self._next_row()).joint_pos - self.default_joint_pos

    def _next_row(self) -> torch.Tensor:
        """`(N,)` the row after `row`, at most the last row of the clip."""
        return torch.minimum(self.row + 1, self.reference.last_row[self.clip])

    def _read_state(self) -> None:
        """Compute base, joints, body poses in the frame of the clip, and the next frame of the reference."""
        super()._read_state()
        self.bodies = self._kinematics(*self._state_in_clip())
        self.next_frame = self.reference.frames(self._next_row())

    def _state_in_clip(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions `(N, nq)` and velocities `(N, nv)` of the robots in the frame of their clip."""
        if not self._can_pass:
            return self.backend.qpos, self.backend.qvel
        qpos, qvel, first, base = self.backend.qpos.clone(), self.backend.qvel.clone(), self._base.qpos, self._base.qvel
        yaw, x, y = self.placement.unbind(1)
        qpos[:, first], qpos[:, first + 1] = _rotate(qpos[:, first] - x, qpos[:, first + 1] - y, -yaw)
        qvel[:, base], qvel[:, base + 1] = _rotate(qvel[:, base], qvel[:, base + 1], -yaw)
        qpos[:, first + 3 : first + 7] = _turn_quaternion(qpos[:, first + 3 : first + 7], -yaw)
        return qpos, qvel

    def _update_errors(self) -> None:
        """Compare the robots with the frame `row` of their clips."""
        own, wanted = self.bodies, self.reference.bodies(self.row)
        anchor, wanted_anchor = self.anchor_rot, wanted.rot[:, -1]
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
        if self._holds_clips:
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
        start = self.reference.frames(row)
        # Yaw and place of the next clip in the frame of the one before, then in the world.
        heading = (self.anchor_rot[:, :2] * start.anchor_rot[:, :1]).sum(dim=2)
        turn = torch.atan2(heading[:, 1], heading[:, 0])
        x, y = _rotate(start.anchor_pos[:, 0], start.anchor_pos[:, 1], turn)
        yaw = self.placement[:, 0]
        x, y = _rotate(self.anchor_pos[:, 0] - x, self.anchor_pos[:, 1] - y, yaw)
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
