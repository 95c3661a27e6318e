"""Rough ground: patches of several kinds and levels, side by side in one height field.

A patch is a square with a flat center and a flat rim. Its heights depend on the distance from the center, so that it is
the same in all four directions. Every kind is a function of a `Grid`, a size that grows with the level, and a random
generator.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from st_rl.sim.envs.cfg import Range
from st_rl.sim.terrain.height_field import HeightField
from st_rl.utils.config import unknown_name_message


@dataclass
class TerrainCfg:
    """Geometry of the ground; a range holds the values of the first and the last level."""

    kinds: tuple[str, ...] = ("steps_up", "steps_down", "slope_up", "slope_down", "waves", "rubble")
    """Kinds of patches, as seen on the way out from the center; also `flat`."""
    num_levels: int = 8
    """Levels of difficulty of each kind."""
    patch_size: float = 7.0
    """Side of a patch, m."""
    spacing: float = 0.05
    """Distance between grid points, m; it limits the steepness of steps."""
    middle: float = 1.5
    """Side of the flat square at the center of a patch, m."""
    rim: float = 0.5
    """Width of the flat rim of a patch, m."""
    border: float = 2.0
    """Width of the flat ground around all patches, m."""
    slope: Range = (2.0, 20.0)
    """Angle of slopes, degrees."""
    step_height: Range = (0.02, 0.12)
    """Height of each step, m."""
    step_length: float = 0.4
    """Distance between two steps, m."""
    wave_height: Range = (0.03, 0.24)
    """Height of waves from valley to crest, m."""
    wave_length: float = 2.0
    """Distance between two crests, m."""
    rubble_height: Range = (0.01, 0.06)
    """Largest height of the stones, m."""
    rubble_size: float = 0.25
    """Side of a stone, m."""
    seed: int = 0
    """Seed of the stones."""


class Grid(NamedTuple):
    """The points of a patch."""

    x: np.ndarray
    """`(P, P)` from the center, m."""
    y: np.ndarray
    """`(P, P)` from the center, m."""
    spacing: float
    """Distance between points, m."""
    middle: float
    """Distance from the center at which the flat square ends, m."""
    rim: float
    """Distance from the center at which the flat rim begins, m."""

    @property
    def distance(self) -> np.ndarray:
        """`(P, P)` distance from the center along the farther axis, m."""
        return np.maximum(np.abs(self.x), np.abs(self.y))

    @property
    def is_rough(self) -> np.ndarray:
        """`(P, P)` bool: neither flat center nor rim."""
        # Grid points are not exact: a small tolerance.
        return (self.distance > self.middle + 1e-9) & (self.distance < self.rim - 1e-9)


def slope_up(grid: Grid, size: float, cfg: TerrainCfg, random: np.random.Generator) -> np.ndarray:
    """`(P, P)` a funnel: uphill on the way out, by `size` degrees, up to the rim at zero."""
    return -math.tan(math.radians(size)) * (grid.rim - grid.distance).clip(0.0, grid.rim - grid.middle)


def steps_up(grid: Grid, size: float, cfg: TerrainCfg, random: np.random.Generator) -> np.ndarray:
    """`(P, P)` stairs that go up by `size` each on the way out, the last one onto the rim at zero."""
    count = math.floor((grid.rim - grid.middle) / cfg.step_length + 1e-6)
    from_rim = np.ceil((grid.rim - grid.distance) / cfg.step_length - 1e-6)
    return -size * from_rim.clip(0, count)


def waves(grid: Grid, size: float, cfg: TerrainCfg, random: np.random.Generator) -> np.ndarray:
    """`(P, P)` crests and valleys along both axes, `size` apart in height."""
    turns = 2.0 * math.pi / cfg.wave_length
    # Fades in and out over a quarter of a wave, to start without a step.
    fade = np.minimum(grid.distance - grid.middle, grid.rim - grid.distance) / (cfg.wave_length / 4)
    return size / 4 * (np.sin(turns * grid.x) + np.sin(turns * grid.y)) * fade.clip(0.0, 1.0)


def rubble(grid: Grid, size: float, cfg: TerrainCfg, random: np.random.Generator) -> np.ndarray:
    """`(P, P)` flat stones side by side with random heights up to `size`."""
    width = max(1, round(cfg.rubble_size / grid.spacing))
    count = -(-len(grid.x) // width)
    stones = random.uniform(0.0, size, (count, count))
    return np.kron(stones, np.ones((width, width)))[: len(grid.x), : len(grid.x)] * grid.is_rough


Generator = Callable[[Grid, float, TerrainCfg, np.random.Generator], np.ndarray]
KINDS: dict[str, tuple[Generator, float, Callable[[TerrainCfg], Range]]] = {
    "flat": (slope_up, 0.0, lambda cfg: cfg.slope),
    "slope_up": (slope_up, 1.0, lambda cfg: cfg.slope),
    "slope_down": (slope_up, -1.0, lambda cfg: cfg.slope),
    "steps_up": (steps_up, 1.0, lambda cfg: cfg.step_height),
    "steps_down": (steps_up, -1.0, lambda cfg: cfg.step_height),
    "waves": (waves, 1.0, lambda cfg: cfg.wave_height),
    "rubble": (rubble, 1.0, lambda cfg: cfg.rubble_height),
}
"""Kinds of patches: generator, factor of its heights (-1 upside down), and the range of its size."""


def build_patch(kind: str, difficulty: float, cfg: TerrainCfg, random: np.random.Generator) -> np.ndarray:
    """`(P, P)` heights of a patch with its rim at zero; `difficulty` from 0, the first level, to 1, the last."""
    generator, factor, size_range = KINDS[kind]
    low, high = size_range(cfg)
    half = cfg.patch_size / 2
    axis = np.arange(_points(cfg) + 1) * cfg.spacing - half
    y, x = np.meshgrid(axis, axis, indexing="ij")
    grid = Grid(x, y, cfg.spacing, cfg.middle / 2, half - cfg.rim)
    return factor * generator(grid, low + difficulty * (high - low), cfg, random)


def build_terrain(cfg: TerrainCfg) -> HeightField:
    """Build all patches in one field: kinds along y and levels along x, with a flat border."""
    check_terrain(cfg)
    random = np.random.default_rng(cfg.seed)
    points, border = _points(cfg), round(cfg.border / cfg.spacing)
    shape = (points * len(cfg.kinds) + 2 * border + 1, points * cfg.num_levels + 2 * border + 1)
    heights = np.zeros(shape)
    for row, kind in enumerate(cfg.kinds):
        for level in range(cfg.num_levels):
            difficulty = level / max(1, cfg.num_levels - 1)
            top, left = border + row * points, border + level * points
            heights[top : top + points + 1, left : left + points + 1] = build_patch(kind, difficulty, cfg, random)
    edge = -cfg.patch_size / 2 - border * cfg.spacing
    return HeightField(heights, (edge, edge), cfg.spacing)


def patch_centers(cfg: TerrainCfg) -> np.ndarray:
    """`(K, L, 2)` world x and y of the center of each patch, by kind and level, m."""
    kind, level = np.meshgrid(np.arange(len(cfg.kinds)), np.arange(cfg.num_levels), indexing="ij")
    return np.stack([level, kind], axis=-1) * cfg.patch_size


def check_terrain(cfg: TerrainCfg) -> None:
    """ValueError for ground that cannot be built."""
    if not cfg.kinds:
        raise ValueError(f"terrain.kinds is empty: name at least one of {', '.join(KINDS)}")
    for kind in cfg.kinds:
        if kind not in KINDS:
            raise ValueError("terrain.kinds: " + unknown_name_message("kind", kind, KINDS))
    for name in ("patch_size", "spacing", "step_length", "wave_length", "rubble_size"):
        if vars(cfg)[name] <= 0:
            raise ValueError(f"terrain.{name} is {vars(cfg)[name]}: give a positive length, m")
    if cfg.num_levels < 1:
        raise ValueError(f"terrain.num_levels must be at least 1, got {cfg.num_levels}")
    if abs(_points(cfg) * cfg.spacing - cfg.patch_size) > 1e-6 * cfg.patch_size:
        raise ValueError(
            f"terrain.patch_size {cfg.patch_size} is not a multiple of terrain.spacing {cfg.spacing}: change one"
        )
    if cfg.middle / 2 + cfg.rim >= cfg.patch_size / 2:
        raise ValueError(
            f"terrain.middle {cfg.middle} and terrain.rim {cfg.rim} leave nothing of a terrain.patch_size of "
            f"{cfg.patch_size}: enlarge it"
        )


def _points(cfg: TerrainCfg) -> int:
    """Cells along the side of a patch."""
    return round(cfg.patch_size / cfg.spacing)
