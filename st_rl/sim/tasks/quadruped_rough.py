"""The task `quadruped-rough`: cross slopes, steps, waves and rubble at a commanded speed."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.task import Term
from st_rl.sim.tasks.quadruped_rough_cfg import ROUGH_REWARDS, QuadrupedRoughCfg
from st_rl.sim.terms import parkour_rewards
from st_rl.sim.terms.mirror import side_names
from st_rl.sim.terrain.height_field import Ground, add_height_field
from st_rl.sim.terrain.patches import build_terrain, patch_centers
from st_rl.sim.terrain.uneven_ground import SWING_AHEAD, hip_offsets, next_levels

# A robot is led back to the middle from here on: this share of the rim is behind it.
_TURN_BACK = 0.5


class QuadrupedRough(LeggedWalk):
    """Robots that cross patches of rough ground, each of its own kind and at a level of its own.

    Heights of the base and of the feet are above the ground. All robots share one height field; a robot starts in the
    middle of its patch, walks out to the rim, and from there across the middle to another side.
    """

    REWARDS: ClassVar[Mapping[str, Term]] = {name: term for name, (term, _) in ROUGH_REWARDS.items()}
    TERMINATIONS: ClassVar[Mapping[str, Term]] = {**LeggedWalk.TERMINATIONS, "too_low": parkour_rewards.in_pit}
    METRICS: ClassVar[Sequence[str]] = (*LeggedWalk.METRICS, "Terrain/level")

    cfg: QuadrupedRoughCfg  # pyright: ignore[reportIncompatibleVariableOverride]
    patch_place: torch.Tensor
    """`(N, 2)` world x and y of the base from the middle of its patch, m."""
    heading: torch.Tensor
    """`(N,)` direction in which the robot looks, from the world's x axis to the left, rad."""
    height_scan: torch.Tensor
    """`(N, S)` heights of the ground around the base, zero where a robot in its default pose would stand, m."""

    def __init__(
        self, cfg: QuadrupedRoughCfg, num_envs: int, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        """Build the ground and the robots and start the first episodes."""
        for name, (low, high, count) in (("forward", cfg.scan.forward), ("sideways", cfg.scan.sideways)):
            if count < 1 or (count == 1 and low != high):
                raise ValueError(
                    f"scan.{name} has {count} points from {low} to {high} m: give two or more, or one from 0 to 0"
                )
        low, high, _ = cfg.scan.sideways
        if abs(low + high) > 1e-6:
            raise ValueError(f"scan.sideways is from {low} to {high} m: let it reach as far left as right")
        first, last = cfg.levels.start_levels
        if not 0 <= first <= last < cfg.terrain.num_levels:
            raise ValueError(
                f"levels.start_levels is {(first, last)}: give two of the levels 0 to {cfg.terrain.num_levels - 1}"
            )
        self._field = build_terrain(cfg.terrain)
        super().__init__(cfg, num_envs, device, seed)

    def _build_world(self, spec: Any) -> None:
        """Put the height field in place of the floor."""
        add_height_field(spec, self._field)

    def _set_constants(self) -> None:
        """Put the ground on the device, and spread the robots over kinds and levels."""
        super()._set_constants()
        cfg, device = self.cfg, self.device
        self.ground = Ground(self._field, device)
        """The ground, to be asked for heights."""
        terrain, num_kinds = cfg.terrain, len(cfg.terrain.kinds)
        self._centers = torch.as_tensor(patch_centers(terrain).reshape(-1, 2), dtype=torch.float32).to(device)
        robots = torch.arange(self.num_envs, device=device)
        first, last = cfg.levels.start_levels
        self.kind = robots % num_kinds
        """`(N,)` number of the kind of ground of each robot in `terrain.kinds`."""
        # The hardest first, so that a film of one robot shows what it can do.
        spread = last - torch.div(robots, num_kinds, rounding_mode="floor") % (last - first + 1)
        self.level = self.keep("level", spread)
        """`(N,)` level of each robot, from 0."""
        self.wanted_heading = self.keep("wanted_heading", self._zeros())
        """`(N,)` where the robot is led, rad."""
        self.farthest = self.keep("farthest", self._zeros())
        """`(N,)` how far from the middle of its patch a robot has been in this episode, along the farther axis, m."""
        self._has_crossed = self.keep("has_crossed", self._zeros(dtype=torch.bool))
        self._has_struggled = self.keep("has_struggled", self._zeros(dtype=torch.bool))
        self.rim = terrain.patch_size / 2 - terrain.rim
        """Distance from the middle at which everything rough is behind a robot, m."""
        self.patch_place = self._zeros(2)
        self._position = self.backend.qpos[:, self._base.qpos : self._base.qpos + 3]
        rows = (torch.linspace(*line[:2], line[2]) for line in (cfg.scan.forward, cfg.scan.sideways))
        hips = torch.tensor([[ahead, 0.0] for ahead in hip_offsets(self.robot)])
        # Places in the frame of the robot: under the hips, then those of the scan.
        self._offsets = torch.cat([hips, torch.cartesian_prod(*rows)]).to(device)
        self._foot_places = torch.tensor([f.position + axis for f in self.robot.feet for axis in (0, 1)], device=device)
        self._foot_heights = torch.tensor([f.position + 2 for f in self.robot.feet], device=device)

    # ---- the state -----------------------------------------------------------------------------------------------

    def _read_state(self) -> None:
        """Compute what walking needs, above the ground, and where on its patch the robot is."""
        super()._read_state()
        w, x, y, z = self._orientation.unbind(1)
        ahead = torch.stack([1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)], dim=1)
        self.heading = torch.atan2(ahead[:, 1], ahead[:, 0])
        # Of length one even where the robot points to the sky.
        forward = torch.stack([self.heading.cos(), self.heading.sin()], dim=1)
        left = torch.stack([-forward[:, 1], forward[:, 0]], dim=1)
        self.patch_place = self._position[:, :2] - self._patch_centers()

        places = self._offsets[:, :1] * forward[:, None] + self._offsets[:, 1:] * left[:, None]
        readings, num_feet = self.backend.sensordata, len(self.robot.feet)
        feet = readings.index_select(1, self._foot_places).unflatten(1, (num_feet, 2))
        points = [places + self._position[:, None, :2], feet, feet + SWING_AHEAD * forward[:, None]]
        heights = self.ground.height_at(torch.cat(points, dim=1))
        under_hips, scanned, under_feet, ahead = heights.split([2, len(self._offsets) - 2, num_feet, num_feet], dim=1)
        base = self._position[:, 2:]
        self.base_height = base - under_hips.mean(dim=1, keepdim=True)
        self.height_scan = scanned - (base - self.default_height)
        soles = readings.index_select(1, self._foot_heights)
        # Without readings yet, after a reset, the height is that of walking: zero less the radius.
        is_read = (soles != 0).float()
        self.foot_height = (soles - torch.maximum(under_feet, ahead)) * is_read - self._foot_radius
        self._steer()

    def _patch_centers(self) -> torch.Tensor:
        """`(N, 2)` the middle of each robot's patch."""
        return self._centers.index_select(0, self.kind * self.cfg.terrain.num_levels + self.level)

    def _steer(self) -> None:
        """Command the turn to the wanted heading to who is told to go somewhere."""
        steering = self.cfg.heading
        off = self.wanted_heading - self.heading
        # The shorter way round.
        off = torch.atan2(off.sin(), off.cos())
        goes = self.commands[:, :2].norm(dim=1) > self.cfg.commands.moving_threshold
        self.commands[:, 2] = (steering.gain * off).clamp(-steering.max_rate, steering.max_rate) * goes

    def _judge(self) -> None:
        """Compute what walking is judged by, and how far a robot has come."""
        super()._judge()
        self.farthest.copy_(torch.maximum(self.farthest, self.patch_place.abs().amax(dim=1)))
        told = self.commands[:, :2].norm(dim=1) * (self.max_episode_length * self.step_dt)
        self._has_crossed.copy_(self.farthest >= self.rim)
        self._has_struggled.copy_(self.farthest < told.clamp(max=self.rim) / 2)

    def _metrics(self) -> torch.Tensor:
        """Errors of tracking and level, `(N, 4)`."""
        return torch.cat([super()._metrics(), self.level[:, None].float()], dim=1)

    # ---- observations --------------------------------------------------------------------------------------------

    def _columns(self) -> tuple[dict[str, int], dict[str, int]]:
        """Names and widths of what the actor sees, and of what only the critic sees."""
        seen, hidden = super()._columns()
        scan = {"height_scan": self.cfg.scan.forward[2] * self.cfg.scan.sideways[2]}
        return ({**seen, **scan}, hidden) if self.cfg.observe_scan else (seen, {**scan, **hidden})

    def _parts(self) -> dict[str, torch.Tensor]:
        """What an observation can be made of, `(N, width)` each."""
        return {**super()._parts(), "height_scan": self.height_scan}

    def _random_ranges(self, seen: Mapping[str, int]) -> dict[str, list[Range]]:
        """Those of walking, of the scan, and of where an episode starts, leads to and at which level."""
        ranges = super()._random_ranges(seen)
        amplitude = self.cfg.noise.level * self.cfg.noise.height_scan
        if self.cfg.observe_scan and amplitude > 0:
            noise, width = ranges.pop("noise", []), sum(seen.values())
            noise += [(0.0, 0.0)] * (width - seen["height_scan"] - len(noise))
            ranges["noise"] = noise + [(-amplitude, amplitude)] * seen["height_scan"]
        spread = self.cfg.heading.spread
        return {**ranges, "place": [self.cfg.start_area] * 2, "heading": [(-spread, spread)], "level": [(0.0, 1.0)]}

    def _mirror_kinds(self) -> dict[str, Any]:
        """The rows of the scan change sides."""
        rows, width = self.cfg.scan.forward[2], self.cfg.scan.sideways[2]
        partners = [row * width + width - 1 - column for row in range(rows) for column in range(width)]
        return {"height_scan": {"names": side_names(partners)}}

    # ---- episodes ------------------------------------------------------------------------------------------------

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Lead robots at the rim back; put those of `mask` in the middle of the patches of their new levels."""
        self._turn_back()
        if self.cfg.levels.moves:
            self._change_levels(mask)
        self.farthest.masked_fill_(mask, 0.0)
        first = self._base.qpos
        place = self._patch_centers() + self.random["place"]
        self._start_qpos[:, first : first + 2] = place
        self._start_qpos[:, first + 2] = self.default_height + self.ground.height_at(place)
        started = 2.0 * self.random["half_yaw"].squeeze(1) + self.random["heading"].squeeze(1)
        self.wanted_heading.copy_(torch.where(mask, started, self.wanted_heading))
        super()._reset_envs(mask)

    def _turn_back(self) -> None:
        """Lead robots that have come to the rim, and are led further out, to the middle or past it."""
        limit = self.rim + _TURN_BACK * self.cfg.terrain.rim
        away = self.patch_place[:, 0] * self.wanted_heading.cos() + self.patch_place[:, 1] * self.wanted_heading.sin()
        turns = (self.patch_place.abs().amax(dim=1) > limit) & (away > 0)
        inwards = torch.atan2(-self.patch_place[:, 1], -self.patch_place[:, 0]) + self.random["heading"].squeeze(1)
        self.wanted_heading.copy_(torch.where(turns, inwards, self.wanted_heading))

    def _change_levels(self, mask: torch.Tensor) -> None:
        """Move the robots of `mask` whose episode had begun up or down by how far they came."""
        had_begun = mask & (self._episode_length > 0)
        up, down = had_begun & self._has_crossed, had_begun & self._has_struggled
        uniform, num_levels = self.random["level"].squeeze(1), self.cfg.terrain.num_levels
        self.level.copy_(next_levels(self.level, up, down, uniform, num_levels))
