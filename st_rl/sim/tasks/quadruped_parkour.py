"""The task `quadruped-parkour`: run along a track of steps, hurdles and gaps."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.task import Term
from st_rl.sim.robots.sensors import sensor_address
from st_rl.sim.tasks.quadruped_parkour_cfg import COMPONENTS, PARKOUR_REWARDS, QuadrupedParkourCfg
from st_rl.sim.terms import parkour_rewards
from st_rl.sim.terrain.depth_camera import cast_rays, pixel_rays
from st_rl.sim.terrain.parkour_tracks import BLOCKS, add_boxes, block_table, build_tracks
from st_rl.sim.terrain.uneven_ground import SWING_AHEAD, Course, hip_offsets, next_levels
from st_rl.utils.config import unknown_name_message
from st_rl.utils.rotations import quat_to_rotmat

NUM_OBSTACLES = 5
"""Columns of the obstacle one-hot: to walk, and four more."""
BLOCK_WIDTH = 1 + NUM_OBSTACLES + 3
"""Numbers of `engaging_block`: distance, one-hot, height, length, direction."""
# A robot tips over the end of its track before its base is there, m.
_END_REACH = 0.5


class QuadrupedParkour(LeggedWalk):
    """Robots that run along tracks of blocks, each on a track of its own kind and at a level of its own.

    Heights of the base and of the feet are above the track, gaps bridged. Tracks run along the world's x axis.
    """

    REWARDS: ClassVar[Mapping[str, Term]] = {name: term for name, (term, _) in PARKOUR_REWARDS.items()}
    TERMINATIONS: ClassVar[Mapping[str, Term]] = {
        **LeggedWalk.TERMINATIONS,
        "off_track": parkour_rewards.off_track,
        "in_pit": parkour_rewards.in_pit,
    }
    METRICS: ClassVar[Sequence[str]] = (*LeggedWalk.METRICS, "Parkour/level", "Parkour/blocks_cleared")

    cfg: QuadrupedParkourCfg  # pyright: ignore[reportIncompatibleVariableOverride]
    track_offset: torch.Tensor
    """`(N,)` distance of the base from the middle of its track, positive to the left, m."""
    track_velocity: torch.Tensor
    """`(N,)` speed along the track, m/s."""
    heading: torch.Tensor
    """`(N,)` angle between the robot's and the track's direction, positive to the left, rad."""
    num_cleared: torch.Tensor
    """`(N,)` blocks that lie behind the robot."""
    num_blocks: torch.Tensor
    """`(N,)` blocks of its track."""
    num_knee_contacts: torch.Tensor
    """`(N,)` knees that touch something."""

    def __init__(
        self, cfg: QuadrupedParkourCfg, num_envs: int, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        """Build the tracks and the robots and start the first episodes."""
        _check(cfg)
        self._tracks = build_tracks(cfg.tracks, cfg.camera.far)
        super().__init__(cfg, num_envs, device, seed)

    def start(
        self, segments: Mapping[str, Any], privileged: Mapping[str, Any], random: Mapping[str, Sequence[Range]]
    ) -> None:
        """Group the columns that the actor sees into its segments, then reset every robot."""
        shapes = {"engaging_block": BLOCK_WIDTH, "forward_depth": (1, self.cfg.camera.height, self.cfg.camera.width)}
        shapes["proprioception"] = sum(width for name, width in segments.items() if name not in shapes)
        grouped = {name: shapes[name] for name in self.cfg.observe}
        super().start(grouped, privileged, random)

    def _random_ranges(self, seen: Mapping[str, int]) -> dict[str, list[Range]]:
        """Those of walking, and where an episode starts and at which level."""
        return {**super()._random_ranges(seen), "place": list(self.cfg.start_area), "level": [(0.0, 1.0)]}

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)`; `infos["success"]` says whose step ended with all blocks of its track cleared."""
        outcome = super().step(actions)
        self.extras["success"] = self._has_cleared.clone()
        return outcome

    @property
    def track_names(self) -> tuple[str, ...]:
        """Name of each kind of track; robot `i` runs on number `i` modulo their count."""
        return tuple(self.cfg.tracks.sequences)

    def course(self) -> Course:
        """Who has all blocks of its track behind it, and who is about to leave the track at its end."""
        has_cleared = (self.num_cleared >= self.num_blocks).float()
        is_at_end = self._position[:, 0] >= self._edges[:, -1] - _END_REACH
        return Course(has_cleared.masked_fill_(self.num_blocks == 0, torch.nan), is_at_end)

    # ---- the world -----------------------------------------------------------------------------------------------

    def _build_world(self, spec: Any) -> None:
        """Add the boxes of all tracks."""
        add_boxes(spec, self._tracks, self.cfg.tracks.width)

    def _set_constants(self) -> None:
        """Put the tables of the tracks on the device, and spread the robots over tracks and levels."""
        super()._set_constants()
        tracks, cfg, device = self._tracks, self.cfg, self.device
        blocks = block_table(tracks, cfg.blocks.ids)
        counts = [[float(len(row))] for row in tracks.blocks]
        parts = (tracks.edges, tracks.ground, tracks.surface, tracks.centers[:, None], counts, blocks.reshape(-1))
        tables = [torch.as_tensor(part, dtype=torch.float32).reshape(len(tracks.centers), -1) for part in parts]
        # One row for each track, so that one look-up brings everything about it.
        self._table = torch.cat(tables, dim=1).to(device)
        self._table_widths = [table.shape[1] for table in tables]
        robots = torch.arange(self.num_envs, device=device)
        first, last = cfg.curriculum.start_levels
        self._track = robots % len(self.track_names)
        spread = first + torch.div(robots, len(self.track_names), rounding_mode="floor") % (last - first + 1)
        self._has_blocks = torch.tensor([len(kinds) > 0 for kinds in cfg.tracks.sequences.values()], device=device)
        self._has_blocks = self._has_blocks[self._track]
        self.level = self.keep("level", spread)
        """`(N,)` level of each robot, from 0."""
        self._has_cleared = self.keep("has_cleared", self._zeros(dtype=torch.bool))
        self._has_struggled = self.keep("has_struggled", self._zeros(dtype=torch.bool))
        self._position = self.backend.qpos[:, self._base.qpos : self._base.qpos + 3]
        # The base stands between its front and its hind legs, which may be on different columns.
        self._hip_offsets = torch.tensor(hip_offsets(self.robot), device=device)
        self._scan_offsets = torch.linspace(*cfg.scan[:2], cfg.scan[2], device=device)
        self._rays = pixel_rays(cfg.camera).to(device)
        self._lens = torch.tensor(cfg.camera.position, dtype=torch.float32, device=device)
        positions = [foot.position for foot in self.robot.feet]
        self._foot_place_columns = torch.tensor([*positions, *(p + 2 for p in positions)], device=device)
        trunk, model = self._base.body, self.robot.model
        geoms = (g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == trunk)
        is_trunk = {sensor_address(model, g, "contact") for g in geoms}
        weights = [float(address in is_trunk) for address in self.robot.fall_sensors]
        self._trunk_sensors = torch.tensor(weights, device=device)

    # ---- the state -----------------------------------------------------------------------------------------------

    def _read_state(self) -> None:
        """Compute what walking needs, above the track, and where on the track the robot is."""
        super()._read_state()
        row = self._table.index_select(0, self._track * self.cfg.tracks.num_levels + self.level)
        edges, ground, surface, center, count, blocks = row.split(self._table_widths, dim=1)
        self._edges, self._ground, self._surface = edges, ground, surface
        self._blocks = blocks.unflatten(1, (-1, 6))
        self.num_blocks = count.squeeze(1)
        self._rotation = quat_to_rotmat(self._orientation.roll(-1, dims=1))
        place, height = self._position[:, :1], self._position[:, 2:]
        self.track_offset = self._position[:, 1] - center.squeeze(1)
        self.track_velocity = self._world_lin_vel[:, 0]
        self.heading = torch.atan2(self._rotation[:, 1, 0], self._rotation[:, 0, 0])
        self.num_cleared = (place >= self._blocks[:, :-1, 1] + self.cfg.blocks.clear_m).sum(dim=1)

        readings = self.backend.sensordata.index_select(1, self._foot_place_columns)
        feet, foot_heights = readings.split(len(self.robot.feet), dim=1)
        points = torch.cat([place + self._hip_offsets, feet, feet + SWING_AHEAD], dim=1)
        widths = [len(self._hip_offsets), *[feet.shape[1]] * 2]
        under_hips, under_feet, ahead = self._height_at(points, surface).split(widths, dim=1)
        self.base_height = height - under_hips.mean(dim=1, keepdim=True)
        # Without readings yet, after a reset, the height is that of walking: zero less the radius.
        is_read = (foot_heights != 0).float()
        self.foot_height = (foot_heights - torch.maximum(under_feet, ahead)) * is_read - self._foot_radius
        self._steer()

    def _steer(self) -> None:
        """Command the turn that leads back to the middle of the track to who is told to go somewhere."""
        steering = self.cfg.steering
        wanted = (-steering.offset_gain * self.track_offset).clamp(-steering.max_heading, steering.max_heading)
        turn = (steering.heading_gain * (wanted - self.heading)).clamp(-steering.max_rate, steering.max_rate)
        self.commands[:, 1] = 0.0
        self.commands[:, 2] = turn * (self.commands[:, 0].abs() > self.cfg.commands.moving_threshold)

    def _height_at(self, points: torch.Tensor, heights: torch.Tensor) -> torch.Tensor:
        """Heights `(N, K)` of the columns, `heights` `(N, S)`, at places `(N, K)` along the track."""
        column = (points[:, :, None] >= self._edges[:, None, 1:-1]).sum(dim=2)
        return heights.gather(1, column)

    def _judge(self) -> None:
        """Compute what walking is judged by; only the trunk must not touch anything."""
        super()._judge()
        self.has_fallen = (self._fall_contacts * self._trunk_sensors).sum(dim=1) > 0
        self.num_knee_contacts = ((self._fall_contacts > 0) * (1.0 - self._trunk_sensors)).sum(dim=1)
        self._has_cleared.copy_(self.num_cleared >= self.num_blocks)
        self._has_struggled.copy_(self.num_cleared < self.num_blocks / 2)

    def _metrics(self) -> torch.Tensor:
        """Errors of tracking, level and share of blocks cleared, `(N, 5)`."""
        share = self.num_cleared / self.num_blocks.clamp(min=1.0)
        return torch.cat([super()._metrics(), self.level[:, None].float(), share[:, None]], dim=1)

    # ---- observations --------------------------------------------------------------------------------------------

    def _columns(self) -> tuple[dict[str, int], dict[str, int]]:
        """Names and widths of what the actor sees, and of what only the critic sees."""
        joints, feet = self.robot.num_joints, len(self.robot.feet)
        # The command stands where skill switching looks for it, at index 9, and the last action at the end.
        parts = {"base_ang_vel": 3, "projected_gravity": 3, "clock": 2, "heading": 1, "commands": 3}
        parts |= {"joint_pos": joints, "joint_vel": joints, "actions": joints}
        pixels = self.cfg.camera.height * self.cfg.camera.width
        components = {"proprioception": parts, "engaging_block": {"engaging_block": BLOCK_WIDTH}}
        components["forward_depth"] = {"forward_depth": pixels}
        seen = {part: width for name in self.cfg.observe for part, width in components[name].items()}
        hidden = {"base_lin_vel": 3, "base_height": 1, "foot_contact": feet, "foot_height": feet, "properties": 4}
        hidden["terrain_scan"] = self.cfg.scan[2]
        if "engaging_block" not in self.cfg.observe:
            hidden["engaging_block"] = BLOCK_WIDTH
        return seen, hidden

    def _parts(self) -> dict[str, torch.Tensor]:
        """What an observation can be made of, `(N, width)` each."""
        parts = super()._parts()
        parts |= {"heading": self.heading[:, None], "engaging_block": self._engaging_block()}
        ahead = self._position[:, :1] + self._scan_offsets * self.heading.cos()[:, None]
        parts["terrain_scan"] = self._height_at(ahead, self._ground) - self._position[:, 2:]
        if "forward_depth" in self.cfg.observe:
            parts["forward_depth"] = self._forward_depth()
        return parts

    def _engaging_block(self) -> torch.Tensor:
        """`(N, 9)` distance in m, one-hot, height and length in m, direction of the block that the robot is at.

        Without one near, the distance is `far_m`, the one-hot says to walk, and the rest is zero.
        """
        view = self.cfg.blocks
        index = self.num_cleared[:, None, None].expand(-1, 1, 6)
        start, _, kind, height, length, direction = self._blocks.gather(1, index).squeeze(1).split(1, dim=1)
        distance = start - self._position[:, :1]
        is_engaged = distance <= view.engage_m
        distance, engaged = torch.where(is_engaged, distance, view.far_m), is_engaged.float()
        onehot = (torch.arange(NUM_OBSTACLES, device=self.device) == kind * engaged).float()
        return torch.cat([distance, onehot, height * engaged, length * engaged, direction * engaged], dim=1)

    def _forward_depth(self) -> torch.Tensor:
        """`(N, H * W)` depth of each pixel as a share of the largest."""
        camera = self.cfg.camera
        if camera.covered:
            return torch.ones(self.num_envs, len(self._rays), device=self.device)
        origin = self._position + (self._rotation @ self._lens)
        origin = torch.stack([origin[:, 0], origin[:, 1] + self.track_offset - self._position[:, 1], origin[:, 2]], 1)
        rays = self._rays @ self._rotation.transpose(1, 2)
        half_width, floor = self.cfg.tracks.width / 2, self._tracks.floor
        return cast_rays(origin, rays, self._edges, self._ground, half_width, floor, camera.far) / camera.far

    # ---- episodes ------------------------------------------------------------------------------------------------

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Give the robots of `mask` their levels and put them at the beginning of their tracks."""
        if self.cfg.curriculum.moves:
            self._change_levels(mask)
        row = self._table.index_select(0, self._track * self.cfg.tracks.num_levels + self.level)
        _, _, surface, center, _, _ = row.split(self._table_widths, dim=1)
        first = self._base.qpos
        self._start_qpos[:, first : first + 2] = self.random["place"]
        self._start_qpos[:, first + 1] += center.squeeze(1)
        self._start_qpos[:, first + 2] = self.default_height + surface[:, 0]
        super()._reset_envs(mask)

    def _change_levels(self, mask: torch.Tensor) -> None:
        """Move the robots of `mask` whose episode had begun up or down by what they cleared."""
        had_begun = mask & (self._episode_length > 0)
        up, down = had_begun & self._has_cleared & self._has_blocks, had_begun & self._has_struggled
        uniform, num_levels = self.random["level"].squeeze(1), self.cfg.tracks.num_levels
        self.level.copy_(next_levels(self.level, up, down, uniform, num_levels))


def _check(cfg: QuadrupedParkourCfg) -> None:
    """ValueError for settings that contradict each other."""
    for name in cfg.observe:
        if name not in COMPONENTS:
            raise ValueError("observe: " + unknown_name_message("segment", name, COMPONENTS))
    if not cfg.observe or len(set(cfg.observe)) != len(cfg.observe):
        raise ValueError(f"observe must name different segments, at least one, got {cfg.observe}")
    counts = {"camera.height": cfg.camera.height, "camera.width": cfg.camera.width, "scan": cfg.scan[2]}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} has {count} points: give at least one")
    first, last = cfg.curriculum.start_levels
    if not 0 <= first <= last < cfg.tracks.num_levels:
        raise ValueError(
            f"curriculum.start_levels is {(first, last)}: give two of the levels 0 to {cfg.tracks.num_levels - 1}"
        )
    for kind, number in cfg.blocks.ids.items():
        if not 0 < number < NUM_OBSTACLES:
            raise ValueError(
                f"blocks.ids gives '{kind}' the column {number}: use 1 to {NUM_OBSTACLES - 1}; 0 is to walk"
            )
    # Kinds that do not exist are what the tracks complain about.
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
