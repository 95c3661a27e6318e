"""The task `quadruped-rough`: cross slopes, steps, waves and rubble at a commanded speed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from st_rl.sim.backends import PhysicsCfg
from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg, GaitCfg, ResetCfg, straight_ahead
from st_rl.sim.envs.term_tables import ObsTerm, RewardTerm, Term, default_weights, reweight
from st_rl.sim.envs.terrain_walk import SWING_AHEAD, CurriculumCfg, TerrainWalk, TerrainWalkCfg, hip_offsets
from st_rl.sim.require import MjSpec
from st_rl.sim.tasks.quadruped_walk import QuadrupedWalk
from st_rl.sim.tasks.training import GpuTraining, TaskEntry, ppo_config
from st_rl.sim.terms import terminations
from st_rl.sim.terms.mirror import mirror_rows
from st_rl.sim.terrain.height_field import Ground, add_height_field
from st_rl.sim.terrain.patches import TerrainCfg, build_terrain, patch_centers

# A robot is steered back to the center once this fraction of the rim is behind it.
_TURN_BACK = 0.5


@dataclass
class HeadingCfg:
    """How the yaw rate command steers a robot across its patch; at the rim it is steered back to the center."""

    gain: float = 1.0
    """Yaw rate per rad of heading error, 1/s."""
    max_rate: float = 0.8
    """Largest yaw rate command, rad/s."""
    spread: float = 0.5
    """Largest random deviation of the desired heading from the initial one, or from the one to the center, rad."""


@dataclass
class ScanCfg:
    """Grid of points around the base at which ground heights are measured, in the frame of its heading."""

    forward: tuple[float, float, int] = (-0.4, 0.8, 13)
    """First and last point and their number along the heading, m."""
    sideways: tuple[float, float, int] = (-0.3, 0.3, 5)
    """The same across the heading, to the left, m."""


@dataclass
class QuadrupedRoughCfg(TerrainWalkCfg):
    """Settings of `quadruped-rough`."""

    physics: PhysicsCfg = field(default_factory=lambda: PhysicsCfg(timestep=0.005, substeps=4, max_contacts=16))
    """Physics settings: a foot that gets below the ground within a longer substep stays there.

    On a GPU a foot can touch up to four triangles at once.
    """
    rewards: dict[str, float] = field(default_factory=lambda: default_weights(QuadrupedRough.REWARDS))
    commands: CommandsCfg = field(default_factory=lambda: straight_ahead((0.2, 0.9), standing_fraction=0.05))
    """Speeds to cross the ground with; the yaw rate follows from the heading."""
    gait: GaitCfg = field(default_factory=lambda: GaitCfg(swing_height=0.08))
    reset: ResetCfg = field(default_factory=lambda: ResetCfg(yaw=math.pi))
    """Initial states: any heading."""
    terrain: TerrainCfg = field(default_factory=TerrainCfg)
    """The ground."""
    curriculum: CurriculumCfg = field(default_factory=lambda: CurriculumCfg((0, 1)))
    """Levels of difficulty: which patch of its kind a robot walks on."""
    heading: HeadingCfg = field(default_factory=HeadingCfg)
    """Steering."""
    scan: ScanCfg = field(default_factory=ScanCfg)
    """The height scan."""
    observe_scan: bool = True
    """Whether the actor sees the height scan; the critic always does."""
    start_area: Range = (-0.3, 0.3)
    """Initial positions around the center of a patch, along both axes, m."""
    lowest_base: float = 0.08

    @property
    def terrain_kinds(self) -> tuple[str, ...]:
        """Kinds of patches."""
        return self.terrain.kinds

    @property
    def num_levels(self) -> int:
        """Levels of each kind."""
        return self.terrain.num_levels


def num_scan_points(task: "QuadrupedRough") -> int:
    """`S`."""
    return task.cfg.scan.forward[2] * task.cfg.scan.sideways[2]


def mirror_scan(task: "QuadrupedRough") -> dict[str, list[int]]:
    """The rows of the scan change sides."""
    return mirror_rows(task.cfg.scan.forward[2], task.cfg.scan.sideways[2])


def describe_scan(task: "QuadrupedRough") -> str:
    """The points of the scan and where its zero is."""
    scan = task.cfg.scan
    return (
        "height of the ground minus that of the base's origin, plus {:.6g}, at the points (x, y) for x in "
        "linspace({}, {}, {}) for y in linspace({}, {}, {})"
    ).format(task.default_height, *scan.forward, *scan.sideways)


class QuadrupedRough(TerrainWalk):
    """Robots that cross patches of rough ground.

    All robots share one height field. A robot starts at the center of its patch, walks out to the rim, and from there
    across the center to another side.
    """

    OBSERVATIONS: ClassVar[dict[str, ObsTerm]] = {
        **TerrainWalk.OBSERVATIONS,
        "height_scan": ObsTerm(
            lambda task: task.height_scan,
            num_scan_points,
            noise="height_scan",
            mirror=mirror_scan,
            unit="m",
            frame="heading",
            description=describe_scan,
        ),
    }
    REWARDS: ClassVar[dict[str, RewardTerm]] = reweight(QuadrupedWalk.REWARDS, lin_vel_z=-0.2, tilt=-1.0)
    TERMINATIONS: ClassVar[dict[str, Term]] = {**TerrainWalk.TERMINATIONS, "too_low": terminations.base_too_low}

    cfg: QuadrupedRoughCfg  # pyright: ignore[reportIncompatibleVariableOverride]
    patch_place: torch.Tensor
    """`(N, 2)` world x and y of the base from the center of its patch, m."""
    height_scan: torch.Tensor
    """`(N, S)` heights of the ground around the base, zero where a robot in its default pose would stand, m."""

    def _build_world(self, spec: MjSpec) -> None:
        """Replace the floor by the height field; ValueError for a terrain or scan that cannot be built."""
        cfg = self.cfg
        for name, (low, high, count) in vars(cfg.scan).items():
            if count < 1 or (count == 1 and low != high):
                raise ValueError(
                    f"scan.{name} has {count} points from {low} to {high} m: give two or more, or one from 0 to 0"
                )
        low, high, _ = cfg.scan.sideways
        if abs(low + high) > 1e-6:
            raise ValueError(f"scan.sideways is from {low} to {high} m: let it reach as far left as right")
        self._field = build_terrain(cfg.terrain)
        add_height_field(spec, self._field)

    def observation_terms(self) -> dict[str, ObsTerm]:
        """The terms of the table; the height scan is privileged if the actor must not see it."""
        terms = super().observation_terms()
        if not self.cfg.observe_scan and "height_scan" in terms:
            terms = {"height_scan": replace(terms.pop("height_scan"), privileged=True), **terms}
        return terms

    def _set_constants(self) -> None:
        super()._set_constants()
        cfg, device = self.cfg, self.device
        self.ground = Ground(self._field, device)
        """The ground, for height queries."""
        self._centers = torch.as_tensor(patch_centers(cfg.terrain).reshape(-1, 2), dtype=torch.float32).to(device)
        self.desired_heading = self.register_buffer("desired_heading", self._zeros())
        """`(N,)` rad"""
        self.farthest = self.register_buffer("farthest", self._zeros())
        """`(N,)` largest distance from the center of the patch in this episode, along the farther axis, m."""
        self.rim = cfg.terrain.patch_size / 2 - cfg.terrain.rim
        """Distance from the center at which all rough ground is behind a robot, m."""
        rows = (torch.linspace(*line[:2], line[2]) for line in (cfg.scan.forward, cfg.scan.sideways))
        hips = torch.tensor([[ahead, 0.0] for ahead in hip_offsets(self.robot)])
        # Points in the frame of the heading: under the hips, then those of the scan.
        self._offsets = torch.cat([hips, torch.cartesian_prod(*rows)]).to(device)

    def _read_ground(self, feet: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ground heights under and ahead of hips and feet; also the scan, from the same query."""
        forward = torch.stack([self.heading.cos(), self.heading.sin()], dim=1)
        left = torch.stack([-forward[:, 1], forward[:, 0]], dim=1)
        self.patch_place = self.base_position[:, :2] - self._patch_centers()
        places = self._offsets[:, :1] * forward[:, None] + self._offsets[:, 1:] * left[:, None]
        feet, num_feet = feet[:, :2].transpose(1, 2), feet.shape[2]
        points = [places + self.base_position[:, None, :2], feet, feet + SWING_AHEAD * forward[:, None]]
        heights = self.ground.height_at(torch.cat(points, dim=1))
        under_hips, scanned, under_feet, ahead = heights.split([2, len(self._offsets) - 2, num_feet, num_feet], dim=1)
        self.height_scan = scanned - (self.base_position[:, 2:] - self.default_height)
        return under_hips, under_feet, ahead

    def describe_steering(self) -> dict[str, float]:
        """Yaw rate per rad of heading error, its limit, and the distance from the start at which robots turn back."""
        heading = self.cfg.heading
        return {"gain": heading.gain, "max_rate": heading.max_rate, "turn_back_m": self._turn_back_distance()}

    def _turn_back_distance(self) -> float:
        """Distance from the center of a patch at which robots are steered back, along the farther axis, m."""
        return self.rim + _TURN_BACK * self.cfg.terrain.rim

    def _patch_centers(self) -> torch.Tensor:
        """`(N, 2)` center of each robot's patch."""
        return self._centers.index_select(0, self.kind * self.cfg.terrain.num_levels + self.level)

    def _steer(self) -> torch.Tensor:
        """`(N,)` yaw rate towards the desired heading, the shorter way round."""
        error = self.desired_heading - self.heading
        error = torch.atan2(error.sin(), error.cos())
        return (self.cfg.heading.gain * error).clamp(-self.cfg.heading.max_rate, self.cfg.heading.max_rate)

    def _update_errors(self) -> None:
        """Compute the tracking errors, and how far each robot has come."""
        super()._update_errors()
        self.farthest.copy_(torch.maximum(self.farthest, self.patch_place.abs().amax(dim=1)))
        commanded = self.commands[:, :2].norm(dim=1) * (self.max_episode_length * self.step_dt)
        self._has_cleared.copy_(self.farthest >= self.rim)
        self._has_struggled.copy_(self.farthest < commanded.clamp(max=self.rim) / 2)

    def _start_ranges(self) -> dict[str, Sequence[Range]]:
        spread = self.cfg.heading.spread
        return {"place": [self.cfg.start_area] * 2, "heading": [(-spread, spread)]}

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Steer robots at the rim back; reset those of `mask` with a new level and heading."""
        self._turn_back()
        self.farthest.masked_fill_(mask, 0.0)
        initial = 2.0 * self.random["half_yaw"].squeeze(1) + self.random["heading"].squeeze(1)
        self.desired_heading.copy_(torch.where(mask, initial, self.desired_heading))
        super()._reset_envs(mask)

    def _initial_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Places around the center of each robot's patch."""
        place = self._patch_centers() + self.random["place"]
        return place, self.ground.height_at(place)

    def _turn_back(self) -> None:
        """Steer robots that walk outwards on the rim towards the center."""
        away = self.patch_place[:, 0] * self.desired_heading.cos() + self.patch_place[:, 1] * self.desired_heading.sin()
        turns = (self.patch_place.abs().amax(dim=1) > self._turn_back_distance()) & (away > 0)
        inwards = torch.atan2(-self.patch_place[:, 1], -self.patch_place[:, 0]) + self.random["heading"].squeeze(1)
        self.desired_heading.copy_(torch.where(turns, inwards, self.desired_heading))


TASK = TaskEntry(
    QuadrupedRough,
    QuadrupedRoughCfg,
    ppo_config("quadruped-rough", max_iterations=1000, hidden_dims=(256, 128, 128)),
    "cross slopes, steps, waves and rubble at a commanded speed",
    GpuTraining(360),
)
