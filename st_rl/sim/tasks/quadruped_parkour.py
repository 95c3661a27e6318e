"""The task `quadruped-parkour`: run along a track of steps, hurdles and gaps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from st_rl.sim.backends import PhysicsCfg
from st_rl.sim.envs.cfg import NormalizationCfg, Range
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg, straight_ahead
from st_rl.sim.envs.term_tables import ObsTerm, RewardTerm, Term, default_weights, reweight
from st_rl.sim.envs.terrain_walk import SWING_AHEAD, Course, TerrainWalk, TerrainWalkCfg, hip_offsets
from st_rl.sim.require import MjSpec
from st_rl.sim.tasks.quadruped_walk import QuadrupedWalk
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, ppo_config
from st_rl.sim.terms import terminations
from st_rl.sim.terms.mirror import mirror_rows
from st_rl.sim.terrain.depth_camera import DepthCameraCfg, cast_rays, pixel_rays
from st_rl.sim.terrain.parkour_tracks import BLOCKS, TracksCfg, add_boxes, block_table, build_tracks
from st_rl.utils.config import unknown_name_message
from st_rl.utils.tensors.rotations import quat_to_rotmat

SEGMENTS = ("proprioception", "engaging_block", "forward_depth")
"""Segments that the actor may see."""
NUM_OBSTACLES = 5
"""Columns of the obstacle one-hot: walking, and four kinds."""
# A robot tips over the end of its track before its base is there, m.
_END_REACH = 0.5


def default_tracks() -> TracksCfg:
    """One track of each kind of block, one without blocks, and one with all kinds."""
    tracks: dict[str, tuple[str, ...]] = {"walk": ()}
    tracks |= {kind: (kind,) * 3 for kind in BLOCKS}
    return TracksCfg({**tracks, "mixed": ("step_up", "hurdle", "step_down", "gap")})


@dataclass
class SteeringCfg:
    """How the yaw rate command keeps a robot on its track."""

    heading_gain: float = 1.5
    """Yaw rate per rad of heading error, 1/s."""
    offset_gain: float = 1.0
    """Desired heading per meter off the center line of the track, rad/m."""
    max_heading: float = 0.5
    """Largest desired heading, rad."""
    max_rate: float = 0.8
    """Largest yaw rate command, rad/s."""


@dataclass
class BlockViewCfg:
    """What the segment `engaging_block` reports."""

    ids: dict[str, int] = field(default_factory=lambda: {"hurdle": 1, "gap": 2, "step_up": 3, "step_down": 3})
    """Column of each kind of block in the one-hot; 0 is walking. Steps share one and differ in the direction."""
    engage_m: float = 0.8
    """Distance of the base to the start of a block below which it is engaged, m."""
    clear_m: float = 0.4
    """Distance of the base behind the end of a block above which it is cleared, m."""
    far_m: float = 2.0
    """Distance that is reported while no block is engaged, m."""


@dataclass
class QuadrupedParkourCfg(TerrainWalkCfg):
    """Settings of `quadruped-parkour`."""

    physics: PhysicsCfg = field(default_factory=lambda: PhysicsCfg(max_contacts=20))
    """Physics settings; feet on an edge touch two boxes at once."""
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(QuadrupedParkour.REWARDS))
    normalization: NormalizationCfg = field(
        default_factory=lambda: NormalizationCfg(
            {"lin_vel": 2.0, "ang_vel": 0.25, "commands": 2.0, "joint_pos": 1.0, "joint_vel": 0.05}
        )
    )
    """Scales of observations; commands and velocities share one, by which skill switching writes commands."""
    commands: CommandsCfg = field(default_factory=lambda: straight_ahead((0.5, 1.0)))
    """Speeds to run the track with; the yaw rate follows from the steering."""
    tracks: TracksCfg = field(default_factory=default_tracks)
    """The tracks."""
    steering: SteeringCfg = field(default_factory=SteeringCfg)
    """Steering."""
    blocks: BlockViewCfg = field(default_factory=BlockViewCfg)
    """The segment `engaging_block`."""
    camera: DepthCameraCfg = field(default_factory=DepthCameraCfg)
    """The depth camera."""
    observe: tuple[str, ...] = SEGMENTS
    """Segments that the actor sees, in this order."""
    start_area: tuple[Range, Range] = ((-0.3, 0.3), (-0.15, 0.15))
    """Initial positions along and across the track, m."""
    scan: tuple[float, float, int] = (-0.4, 1.2, 17)
    """First and last point ahead of the base, m, and number of points of the critic's terrain scan."""
    knees_may_touch: bool = True

    @property
    def terrain_kinds(self) -> tuple[str, ...]:
        """Names of the tracks."""
        return tuple(self.tracks.sequences)

    @property
    def num_levels(self) -> int:
        """Levels of each track."""
        return self.tracks.num_levels


def engaging_block(task: "QuadrupedParkour") -> torch.Tensor:
    """`(N, 9)` distance in m, one-hot, height and length in m, and direction of the next block that is not cleared.

    While none is engaged, the distance is `far_m`, the one-hot says walking, and the rest is zero.
    """
    view = task.cfg.blocks
    index = task.num_cleared[:, None, None].expand(-1, 1, 6)
    start, _, kind, height, length, direction = task.blocks.gather(1, index).squeeze(1).split(1, dim=1)
    distance = start - task.base_position[:, :1]
    is_engaged = distance <= view.engage_m
    distance, engaged = torch.where(is_engaged, distance, view.far_m), is_engaged.float()
    onehot = (torch.arange(NUM_OBSTACLES, device=task.device) == kind * engaged).float()
    return torch.cat([distance, onehot, height * engaged, length * engaged, direction * engaged], dim=1)


def image_shape(task: "QuadrupedParkour") -> tuple[int, int, int]:
    """`(1, H, W)`."""
    return (1, task.cfg.camera.height, task.cfg.camera.width)


def mirror_image(task: "QuadrupedParkour") -> dict[str, list[int]]:
    """The columns of the image change sides."""
    return mirror_rows(task.cfg.camera.height, task.cfg.camera.width)


def describe_block(task: "QuadrupedParkour") -> str:
    """The columns of the block, with the settings that they depend on."""
    view = task.cfg.blocks
    ids = ", ".join(f"{column} {kind}" for kind, column in view.ids.items())
    return (
        f"distance of the base to the start of the next block, one-hot of its kind (0 walking, {ids}), height, length, "
        f"direction (1 up, -1 down, 0 neither); while it is farther than {view.engage_m} m: {view.far_m}, walking, "
        f"zeros. A block is passed {view.clear_m} m behind its end"
    )


def describe_camera(task: "QuadrupedParkour") -> str:
    """The pose and the image of the camera."""
    camera = task.cfg.camera
    return (
        f"depth along the optical axis as a fraction of {camera.far} m, at most 1, row by row from the upper left; "
        f"lens at {tuple(camera.position)} m, pitched down by {camera.pitch} rad; rows span {camera.vertical_view} "
        f"rad, columns {camera.horizontal_view} rad, at even angles; the robot itself is not seen"
    )


def terrain_scan(task: "QuadrupedParkour") -> torch.Tensor:
    """`(N, S)` heights of the ground ahead, relative to the base, m."""
    ahead = task.base_position[:, :1] + task.scan_offsets * task.heading.cos()[:, None]
    return task.height_at(ahead, task.ground) - task.base_position[:, 2:]


def progress(task: "QuadrupedParkour") -> torch.Tensor:
    """Speed along the track as a fraction of the commanded speed, at most one."""
    return torch.minimum(task.track_velocity / task.commands[:, 0].clamp(min=0.1), torch.ones_like(task.phase))


def off_track(task: "QuadrupedParkour") -> torch.Tensor:
    """Whether the base is beside its track."""
    return task.track_offset.abs() > task.cfg.tracks.width / 2


# Skill switching reads the command at index 9 and the last action at the end of proprioception.
_PROPRIOCEPTION = {
    name: replace(term, segment="proprioception")
    for name, term in {
        **{name: TerrainWalk.OBSERVATIONS[name] for name in ("base_ang_vel", "projected_gravity", "clock")},
        "heading": ObsTerm(
            lambda task: task.heading[:, None],
            1,
            mirror=(-1,),
            unit="rad",
            frame="world",
            description="yaw of the base's x axis from the direction of the track, positive to the left",
        ),
        **{name: TerrainWalk.OBSERVATIONS[name] for name in ("commands", "joint_pos", "joint_vel", "actions")},
    }.items()
}
_PRIVILEGED = {
    name: replace(TerrainWalk.OBSERVATIONS[name], privileged=True)
    for name in ("base_lin_vel", "base_height", "foot_contact", "foot_height", "properties")
}


class QuadrupedParkour(TerrainWalk):
    """Robots that run along tracks of blocks; tracks run along the world's x axis, and heights bridge gaps."""

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {
        **_PROPRIOCEPTION,
        "engaging_block": ObsTerm(
            engaging_block,
            1 + NUM_OBSTACLES + 3,
            mirror="scalar",
            unit="m, 5 x 1, m, m, 1",
            frame="heading",
            description=describe_block,
        ),
        "forward_depth": ObsTerm(
            lambda task: task.render_depth(),
            image_shape,
            mirror=mirror_image,
            frame="base",
            description=describe_camera,
        ),
        **_PRIVILEGED,
        "terrain_scan": ObsTerm(
            terrain_scan,
            lambda task: task.cfg.scan[2],
            mirror="scalar",
            privileged=True,
            unit="m",
            frame="heading",
            description=lambda task: (
                "height of the ground minus that of the base's origin, at x in "
                "linspace({}, {}, {}) along the track".format(*task.cfg.scan)
            ),
        ),
    }
    REWARDS: ClassVar[dict[str, RewardTerm]] = {
        "progress": RewardTerm(progress, 2.0),
        **reweight(
            QuadrupedWalk.REWARDS,
            track_lin_vel_xy=0.5,
            track_ang_vel_z=0.5,
            lin_vel_z=-0.2,
            tilt=-0.5,
            base_height=-15.0,
        ),
        "knee_contact": RewardTerm(lambda task: task.num_knee_contacts, -0.5),
    }
    TERMINATIONS: ClassVar[dict[str, Term]] = {
        **TerrainWalk.TERMINATIONS,
        "off_track": off_track,
        "in_pit": terminations.base_too_low,
    }
    METRICS: ClassVar[Sequence[str]] = (*LeggedWalk.METRICS, "Parkour/level", "Parkour/blocks_cleared")

    cfg: QuadrupedParkourCfg  # pyright: ignore[reportIncompatibleVariableOverride]
    track_offset: torch.Tensor
    """`(N,)` distance of the base from the center line of its track, positive to the left, m."""
    track_velocity: torch.Tensor
    """`(N,)` velocity along the track, m/s."""
    blocks: torch.Tensor
    """`(N, B + 1, 6)` blocks of the track, rows of `block_table`."""
    num_cleared: torch.Tensor
    """`(N,)` blocks behind the robot."""
    num_blocks: torch.Tensor
    """`(N,)` blocks of its track."""
    ground: torch.Tensor
    """`(N, S)` heights of the columns of the track, m."""

    def observation_terms(self) -> dict[str, ObsTerm]:
        """The segments of `cfg.observe` in their order, then all other terms; the critic always sees the block."""
        terms = super().observation_terms()
        segments = {name: term.segment or name for name, term in terms.items()}
        ordered = {name: terms[name] for part in self.cfg.observe for name in terms if segments[name] == part}
        ordered |= {name: term for name, term in terms.items() if segments[name] not in SEGMENTS}
        if "engaging_block" not in ordered:
            ordered["engaging_block"] = replace(terms["engaging_block"], privileged=True)
        return ordered

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)`; `infos["success"]` `(N,)` is True where all blocks of the track are cleared."""
        outcome = super().step(actions)
        self.extras["success"] = self._has_cleared.clone()
        return outcome

    def course(self) -> Course:
        """Which robots have cleared all blocks, and which are about to leave their track at its end."""
        has_cleared = (self.num_cleared >= self.num_blocks).float()
        is_at_end = self.base_position[:, 0] >= self._edges[:, -1] - _END_REACH
        return Course(has_cleared.masked_fill_(self.num_blocks == 0, torch.nan), is_at_end)

    def height_at(self, points: torch.Tensor, heights: torch.Tensor) -> torch.Tensor:
        """Heights `(N, K)` of the columns, `heights` `(N, S)`, at x positions `(N, K)`, m."""
        column = (points[:, :, None] >= self._edges[:, None, 1:-1]).sum(dim=2)
        return heights.gather(1, column)

    def render_depth(self) -> torch.Tensor:
        """`(N, H * W)` depth of each pixel as a fraction of the largest."""
        camera = self.cfg.camera
        if camera.covered:
            return torch.ones(self.num_envs, len(self._rays), device=self.device)
        rotation, position = quat_to_rotmat(self.orientation.roll(-1, dims=1)), self.base_position
        origin = position + (rotation @ self._lens)
        origin = torch.stack([origin[:, 0], origin[:, 1] + self.track_offset - position[:, 1], origin[:, 2]], 1)
        rays = self._rays @ rotation.transpose(1, 2)
        half_width, floor = self.cfg.tracks.width / 2, self._tracks.floor
        return cast_rays(origin, rays, self._edges, self.ground, half_width, floor, camera.far) / camera.far

    def _build_world(self, spec: MjSpec) -> None:
        _check(self.cfg)
        self._tracks = build_tracks(self.cfg.tracks, self.cfg.camera.far)
        add_boxes(spec, self._tracks, self.cfg.tracks.width)

    def _set_constants(self) -> None:
        """Put the tables of the tracks on the device."""
        super()._set_constants()
        tracks, cfg, device = self._tracks, self.cfg, self.device
        if self.num_envs == 1:
            # The last track has blocks of all kinds, so that a video shows them.
            self.kind.fill_(len(cfg.terrain_kinds) - 1)
        blocks = block_table(tracks, cfg.blocks.ids)
        counts = [[float(len(row))] for row in tracks.blocks]
        parts = (tracks.edges, tracks.ground, tracks.surface, tracks.centers[:, None], counts, blocks.reshape(-1))
        tables = [torch.as_tensor(part, dtype=torch.float32).reshape(len(tracks.centers), -1) for part in parts]
        # One row per track, so that one lookup returns everything about it.
        self._table = torch.cat(tables, dim=1).to(device)
        self._table_widths = [table.shape[1] for table in tables]
        has_blocks = torch.tensor([len(kinds) > 0 for kinds in cfg.tracks.sequences.values()], device=device)
        self._can_advance = has_blocks[self.kind]
        # The base is between its front and hind legs, which may stand on different columns.
        self._hip_offsets = torch.tensor(hip_offsets(self.robot), device=device)
        self.scan_offsets = torch.linspace(*cfg.scan[:2], cfg.scan[2], device=device)
        """`(S,)` points of the terrain scan ahead of the base, m."""
        self._rays = pixel_rays(cfg.camera).to(device)
        self._lens = torch.tensor(cfg.camera.position, dtype=torch.float32, device=device)

    def _track_rows(self) -> tuple[torch.Tensor, ...]:
        """Edges, ground, surface, center, number of blocks and blocks of each robot's track, `(N, ...)`."""
        row = self._table.index_select(0, self.kind * self.cfg.tracks.num_levels + self.level)
        return row.split(self._table_widths, dim=1)

    def _read_ground(self, feet: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Heights of the track under and ahead of hips and feet; also where on the track the robot is."""
        self._edges, self.ground, surface, center, count, blocks = self._track_rows()
        self.blocks = blocks.unflatten(1, (-1, 6))
        self.num_blocks = count.squeeze(1)
        place = self.base_position[:, :1]
        self.track_offset = self.base_position[:, 1] - center.squeeze(1)
        self.track_velocity = self._world_lin_vel[:, 0]
        self.num_cleared = (place >= self.blocks[:, :-1, 1] + self.cfg.blocks.clear_m).sum(dim=1)
        points = torch.cat([place + self._hip_offsets, feet[:, 0], feet[:, 0] + SWING_AHEAD], dim=1)
        under_hips, under_feet, ahead = self.height_at(points, surface).split([2, *[feet.shape[2]] * 2], dim=1)
        return under_hips, under_feet, ahead

    def _steer(self) -> torch.Tensor:
        """`(N,)` yaw rate that leads back to the center line of the track; sideways commands become zero."""
        steering = self.cfg.steering
        desired = (-steering.offset_gain * self.track_offset).clamp(-steering.max_heading, steering.max_heading)
        self.commands[:, 1] = 0.0
        return (steering.heading_gain * (desired - self.heading)).clamp(-steering.max_rate, steering.max_rate)

    def _update_errors(self) -> None:
        """Compute the tracking errors and the progress."""
        super()._update_errors()
        self._has_cleared.copy_(self.num_cleared >= self.num_blocks)
        self._has_struggled.copy_(self.num_cleared < self.num_blocks / 2)

    def _metrics(self) -> torch.Tensor:
        """`(N, 5)` tracking errors, level and fraction of blocks cleared."""
        fraction = self.num_cleared / self.num_blocks.clamp(min=1.0)
        return torch.cat([super()._metrics(), fraction[:, None]], dim=1)

    def _start_ranges(self) -> dict[str, Sequence[Range]]:
        return {"place": list(self.cfg.start_area)}

    def _initial_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Places at the beginning of each robot's track."""
        _, _, surface, center, _, _ = self._track_rows()
        place = self.random["place"].clone()
        place[:, 1] += center.squeeze(1)
        return place, surface[:, 0]


def _check(cfg: QuadrupedParkourCfg) -> None:
    """ValueError for settings that contradict each other."""
    for name in cfg.observe:
        if name not in SEGMENTS:
            raise ValueError("observe: " + unknown_name_message("segment", name, SEGMENTS))
    if not cfg.observe or len(set(cfg.observe)) != len(cfg.observe):
        raise ValueError(f"observe must name different segments, at least one, got {cfg.observe}")
    counts = {"camera.height": cfg.camera.height, "camera.width": cfg.camera.width, "scan": cfg.scan[2]}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} has {count} points: give at least one")
    for kind, number in cfg.blocks.ids.items():
        if not 0 < number < NUM_OBSTACLES:
            raise ValueError(
                f"blocks.ids gives '{kind}' the column {number}: use 1 to {NUM_OBSTACLES - 1}; 0 is walking"
            )
    # `build_tracks` reports unknown kinds.
    kinds = {kind for kinds in cfg.tracks.sequences.values() for kind in kinds if kind in BLOCKS}
    missing = kinds - set(cfg.blocks.ids)
    if missing:
        raise ValueError(f"blocks.ids lacks {', '.join(sorted(missing))}: give each kind of block a column")
    scales = cfg.normalization.obs_scales
    if scales.get("lin_vel") != scales.get("commands"):
        raise ValueError(
            "normalization.obs_scales needs one factor for lin_vel and commands, because skill switching scales the "
            f"commands it writes by that of lin_vel; got {scales.get('lin_vel')} and {scales.get('commands')}"
        )


TASK = TaskEntry(
    QuadrupedParkour,
    QuadrupedParkourCfg,
    ppo_config("quadruped-parkour", max_iterations=1500, hidden_dims=(256, 128)),
    "run along a track of steps, hurdles and gaps",
    GpuTraining(360),
)
TASK.training["policy"] |= {
    # A camera before a memory: what a hind foot steps on was seen half a second ago.
    "class_name": "EncoderActorCriticRecurrent",
    "rnn_type": "gru",
    "rnn_hidden_size": 128,
    "encoder_component_names": ["forward_depth"],
    "encoder_class_name": "Conv2dHeadModel",
    "encoder_kwargs": {"channels": [16, 32], "kernel_sizes": [4, 3], "strides": [2, 1], "hidden_sizes": [64]},
    "encoder_output_size": 32,
}
