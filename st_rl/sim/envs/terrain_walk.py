"""Walking on uneven ground: heights above the ground, steering, and a curriculum of levels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, cast

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import LeggedWalkCfg
from st_rl.sim.robots import Robot
from st_rl.sim.robots.sensors import sensor_address
from st_rl.sim.terms.observations import yaw_angle

SWING_AHEAD = 0.12
"""Distance ahead of a foot up to which the ground limits the height of its swing, m."""


@dataclass
class CurriculumCfg:
    """How the terrain level of a robot changes between episodes."""

    start_levels: tuple[int, int] = (0, 0)
    """First and last of the levels over which robots are spread initially."""
    enabled: bool = True
    """Whether a robot that clears its terrain moves up a level, and one that does not get half as far moves down.

    A robot that clears the last level continues at a random level.
    """


@dataclass
class TerrainWalkCfg(LeggedWalkCfg, ABC):
    """Settings of walking on uneven ground."""

    curriculum: CurriculumCfg = field(default_factory=CurriculumCfg)
    """Levels of difficulty."""
    lowest_base: float = 0.1
    """Height of the base above the ground at which an episode ends, m."""
    knees_may_touch: bool = False
    """Whether only contacts of the base are falls, not those of knees; always so in evaluations.

    A knee that touches a step does not stop a robot; that an episode ends with it teaches to avoid it.
    """

    @property
    @abstractmethod
    def terrain_kinds(self) -> tuple[str, ...]:
        """Kinds of terrain, over which robots are spread evenly."""

    @property
    @abstractmethod
    def num_levels(self) -> int:
        """Levels of each kind."""

    def for_evaluation(self, fine: bool = True) -> "TerrainWalkCfg":
        """Return a copy without disturbances in which robots keep their levels, spread over all with a curriculum.

        Knees may touch the ground.
        """
        cfg = cast("TerrainWalkCfg", super().for_evaluation(fine))
        cfg.knees_may_touch = True
        if cfg.curriculum.enabled:
            cfg.curriculum = CurriculumCfg((0, cfg.num_levels - 1), enabled=False)
        return cfg


class Course(NamedTuple):
    """Progress of robots with a course to complete; an optional method `course` of a task returns it to evaluations."""

    success: torch.Tensor
    """`(N,)` 1 where all obstacles are behind the robot, 0 before, NaN where there are none."""
    is_at_end: torch.Tensor
    """`(N,)` bool: the ground ends here; a fall from here on does not count."""


class TerrainWalk(LeggedWalk):
    """Robots on uneven ground, each on its own kind of terrain and level.

    Heights of the base and of the feet are above the ground, and the yaw rate command follows from steering.
    """

    METRICS: ClassVar[Sequence[str]] = (*LeggedWalk.METRICS, "Terrain/level")

    cfg: TerrainWalkCfg  # pyright: ignore[reportIncompatibleVariableOverride]
    heading: torch.Tensor
    """`(N,)` yaw of the base, from the world's x axis to the left, rad."""
    num_knee_contacts: torch.Tensor
    """`(N,)` knees that touch something."""

    def _check_settings(self) -> None:
        super()._check_settings()
        first, last = self.cfg.curriculum.start_levels
        if not 0 <= first <= last < self.cfg.num_levels:
            raise ValueError(
                f"curriculum.start_levels is {(first, last)}: give two of the levels 0 to {self.cfg.num_levels - 1}"
            )

    def _set_constants(self) -> None:
        """Spread the robots over kinds and levels."""
        super()._set_constants()
        cfg, device = self.cfg, self.device
        robots = torch.arange(self.num_envs, device=device)
        num_kinds = len(cfg.terrain_kinds)
        self.kind = robots % num_kinds
        """`(N,)` index of each robot's terrain in `cfg.terrain_kinds`."""
        first, last = cfg.curriculum.start_levels
        # The hardest first, so that a video of one robot shows what it can do.
        spread = last - torch.div(robots, num_kinds, rounding_mode="floor") % (last - first + 1)
        self.level = self.register_buffer("level", spread)
        """`(N,)` level of each robot, from 0."""
        self._has_cleared = self.register_buffer("has_cleared", self._zeros(dtype=torch.bool))
        self._has_struggled = self.register_buffer("has_struggled", self._zeros(dtype=torch.bool))
        self._can_advance = torch.ones(self.num_envs, dtype=torch.bool, device=device)
        self.base_position = self.backend.qpos[:, self._base.qpos : self._base.qpos + 3]
        """`(N, 3)` in the world, m."""
        axes = [foot.position + axis for axis in range(3) for foot in self.robot.feet]
        self._foot_position_columns = torch.tensor(axes, device=device)
        is_base = [address in self.fall_sensors for address in self.robot.fall_sensors]
        self._base_contacts = torch.tensor(is_base, dtype=torch.float32, device=device)

    @property
    def fall_sensors(self) -> list[int]:
        """Those of the base; `knees_may_touch` says when knees count as well."""
        model, base = self.robot.model, self._base.body
        geoms = (geom for geom in range(model.ngeom) if int(model.geom_bodyid[geom]) == base)
        of_base = {sensor_address(model, geom, "contact") for geom in geoms}
        return [address for address in self.robot.fall_sensors if address in of_base]

    def _update_errors(self) -> None:
        """Compute the tracking errors, and tell contacts of the base from those of knees."""
        super()._update_errors()
        self.num_knee_contacts = ((self._fall_contacts > 0) * (1.0 - self._base_contacts)).sum(dim=1)
        if self.cfg.knees_may_touch:
            self.has_fallen = (self._fall_contacts * self._base_contacts).sum(dim=1) > 0

    def _read_state(self) -> None:
        """Compute what walking needs, with heights above the ground, and steer."""
        super()._read_state()
        self.heading = yaw_angle(self.orientation)
        feet = self.backend.sensordata.index_select(1, self._foot_position_columns).unflatten(1, (3, -1))
        under_hips, under_feet, ahead = self._read_ground(feet)
        self.base_height = self.base_position[:, 2:] - under_hips.mean(dim=1, keepdim=True)
        soles = feet[:, 2]
        # Sensors read zero until the first step after a reset; the foot then counts as on the ground.
        is_read = (soles != 0).float()
        self.foot_height = (soles - torch.maximum(under_feet, ahead)) * is_read - self._foot_radius
        yaw_rate = self._steer()
        self.commands[:, 2] = yaw_rate * (self.commands[:, :2].norm(dim=1) > self.cfg.commands.moving_threshold)

    @abstractmethod
    def _read_ground(self, feet: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ground heights under the hips `(N, 2)`, under the feet `(N, F)` and `SWING_AHEAD` of them `(N, F)`, m.

        `feet` `(N, 3, F)` are positions in the world.
        """

    @abstractmethod
    def _steer(self) -> torch.Tensor:
        """`(N,)` yaw rate command that follows the course, rad/s."""

    @abstractmethod
    def _initial_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """World x and y `(N, 2)` of the next start of every robot, and the height of the ground there `(N,)`, m."""

    @abstractmethod
    def _start_ranges(self) -> dict[str, Sequence[Range]]:
        """Ranges of the random numbers of `_initial_places`, `place` among them."""

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        """Add the ranges of the start, and a level for robots that cleared the last one."""
        return {**super()._random_ranges(), **self._start_ranges(), "level": [(0.0, 1.0)]}

    def _metrics(self) -> torch.Tensor:
        """`(N, 4)` tracking errors and level."""
        return torch.cat([super()._metrics(), self.level[:, None].float()], dim=1)

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Update the levels of the robots of `mask`, then reset them."""
        if self.cfg.curriculum.enabled:
            has_begun = mask & (self._episode_length > 0)
            up, down = has_begun & self._has_cleared & self._can_advance, has_begun & self._has_struggled
            self.level.copy_(next_levels(self.level, up, down, self.random["level"].squeeze(1), self.cfg.num_levels))
        super()._reset_envs(mask)

    def _sample_initial_states(self) -> None:
        """Sample an initial state for every robot at the start of its terrain."""
        super()._sample_initial_states()
        place, ground = self._initial_places()
        first = self._base.qpos
        self._start_qpos[:, first : first + 2] = place
        self._start_qpos[:, first + 2] = self.default_height + ground


def hip_offsets(robot: Robot) -> tuple[float, float]:
    """Distance along x from the base to its rearmost and foremost hips, m, rounded to 1 cm."""
    ahead = robot.hip_positions[:, 0]
    return round(float(ahead.min()), 2), round(float(ahead.max()), 2)


def next_levels(
    level: torch.Tensor, up: torch.Tensor, down: torch.Tensor, uniform: torch.Tensor, num_levels: int
) -> torch.Tensor:
    """Levels `(N,)` after moving `up` `(N,)` or `down` `(N,)` by one, at least 0.

    Above the last level a robot gets a random one, from `uniform` `(N,)` in [0, 1).
    """
    moved = (level + up.long() - down.long()).clamp(min=0)
    sampled = (uniform * num_levels).long().clamp(max=num_levels - 1)
    return torch.where(moved < num_levels, moved, sampled)
