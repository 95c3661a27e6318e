"""Parkour tracks: their geometry as tables, and as boxes in the MuJoCo world of a robot.

A track runs along x. It is divided into columns of constant height, so that heights, blocks and depth images follow
from the edges and heights of the columns. Tracks are placed side by side along y, out of sight of each other: `L` of
them, one per name and level, with at most `S` columns and `B` blocks.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from st_rl.sim.envs.cfg import Range
from st_rl.sim.require import MjSpec, mujoco
from st_rl.sim.robots.model_queries import ground_contact_bits
from st_rl.utils.config import unknown_name_message

BLOCKS = ("step_up", "step_down", "hurdle", "gap")
"""Kinds of blocks; the ground between them is flat."""
# Position that no robot reaches, m.
_NEVER = 1.0e3
_SPREAD = 0.2
_COLORS = ((0.66, 0.70, 0.75, 1.0), (0.42, 0.56, 0.72, 1.0))


@dataclass
class TracksCfg:
    """Geometry of the tracks; a range holds the values of the first and the last level."""

    sequences: dict[str, tuple[str, ...]]
    """Blocks of each track in order: step_up, step_down, hurdle, gap; none for a flat track."""
    num_levels: int = 5
    """Levels of difficulty of each track."""
    step_height: Range = (0.10, 0.30)
    """Height of a step up or down, m."""
    hurdle_height: Range = (0.08, 0.24)
    """Height of a hurdle, m."""
    hurdle_length: float = 0.08
    """Length of a hurdle along the track, m."""
    gap_length: Range = (0.18, 0.50)
    """Length of a gap along the track, m."""
    first_block: float = 1.4
    """Start of the first block, m; robots start around 0."""
    spacing: float = 1.4
    """Distance between the starts of two blocks, m, randomized by up to a fifth."""
    run_out: float = 20.0
    """Length of the flat end, m; long enough for an episode."""
    width: float = 2.0
    """Width of a track, m."""
    pit_depth: float = 0.6
    """Depth of gaps and of the floor beside a track, m."""
    seed: int = 0
    """Seed of the distances between blocks."""


class Block(NamedTuple):
    """One block of one track."""

    start: float
    end: float
    """End, m; equal to the start for a step."""
    kind: str
    height: float
    """Height of a step or a hurdle, m."""

    @property
    def direction(self) -> float:
        """1 up, -1 down, 0 neither."""
        return {"step_up": 1.0, "step_down": -1.0}.get(self.kind, 0.0)


class Tracks(NamedTuple):
    """Tables of all tracks; unused columns have zero length, unused blocks are never reached."""

    edges: np.ndarray
    """`(L, S + 1)` start of each column and end of the last one, m."""
    ground: np.ndarray
    """`(L, S)` height of the columns, m; that of the floor in gaps."""
    surface: np.ndarray
    """`(L, S)` the same with gaps bridged."""
    blocks: list[list[Block]]
    """Blocks of each track, in order."""
    centers: np.ndarray
    """`(L,)` center line of each track along y, m."""
    floor: float
    """Height of the floor around the tracks, m."""


def build_tracks(cfg: TracksCfg, far: float) -> Tracks:
    """Build the tracks, further apart than `far`; track `t` at level `l` is row `t * num_levels + l`."""
    _check(cfg)
    random = np.random.default_rng(cfg.seed)
    built = []
    for kinds in cfg.sequences.values():
        # The same distances at every level, so that only the difficulty differs.
        gaps = cfg.spacing * (1.0 + _SPREAD * random.uniform(-1.0, 1.0, size=len(kinds)))
        built += [_build_track(cfg, kinds, gaps, level) for level in range(cfg.num_levels)]
    count = max(len(ground) for _, ground, _, _ in built)
    edges = np.array([[*edges, *[edges[-1]] * (count + 1 - len(edges))] for edges, _, _, _ in built])
    ground = np.array([[*row, *[row[-1]] * (count - len(row))] for _, row, _, _ in built])
    surface = np.array([[*row, *[row[-1]] * (count - len(row))] for _, _, row, _ in built])
    centers = np.arange(len(built)) * (2.0 * far + 2.0 * cfg.width)
    return Tracks(edges, ground, surface, [blocks for *_, blocks in built], centers, -cfg.pit_depth)


def _build_track(
    cfg: TracksCfg, kinds: Sequence[str], distances: np.ndarray, level: int
) -> tuple[list[float], list[float], list[float], list[Block]]:
    """Edges, ground, surface and blocks of one track, with the lowest walkable column at height 0."""
    difficulty = level / max(1, cfg.num_levels - 1)
    step, hurdle, gap = (
        low + difficulty * (high - low) for low, high in (cfg.step_height, cfg.hurdle_height, cfg.gap_length)
    )
    place, height = cfg.first_block, 0.0
    edges, tops, is_gap = [-2.0], [0.0], [False]
    blocks = []
    for kind, distance in zip(kinds, distances):
        length = {"hurdle": cfg.hurdle_length, "gap": gap}.get(kind, 0.0)
        size = {"hurdle": hurdle, "gap": 0.0}.get(kind, step)
        blocks.append(Block(place, place + length, kind, size))
        if length > 0:
            edges.append(place)
            tops.append(height + size)
            is_gap.append(kind == "gap")
        height += size * blocks[-1].direction
        edges.append(place + length)
        tops.append(height)
        is_gap.append(False)
        place += float(distance)
    edges.append(edges[-1] + cfg.run_out)
    walkable = [top for top, hole in zip(tops, is_gap) if not hole]
    surface = [top - min(walkable) for top in tops]
    ground = [-cfg.pit_depth if hole else top for top, hole in zip(surface, is_gap)]
    return edges, ground, surface, blocks


def _check(cfg: TracksCfg) -> None:
    """ValueError for tracks that cannot be built."""
    if not cfg.sequences:
        raise ValueError('tracks.sequences is empty: name at least one track, such as {"walk": ()}')
    for name, kinds in cfg.sequences.items():
        for kind in kinds:
            if kind not in BLOCKS:
                raise ValueError(f"track '{name}': " + unknown_name_message("kind of block", kind, BLOCKS))
    if cfg.num_levels < 1:
        raise ValueError(f"tracks.num_levels must be at least 1, got {cfg.num_levels}")
    longest = max(cfg.hurdle_length, *cfg.gap_length)
    if longest >= cfg.spacing * (1.0 - _SPREAD):
        raise ValueError(f"blocks of up to {longest} m do not fit a tracks.spacing of {cfg.spacing} m: enlarge it")


def block_table(tracks: Tracks, ids: Mapping[str, int]) -> np.ndarray:
    """`(L, B + 1, 6)` start, end, obstacle id, height, length and direction of every block, and one never reached."""
    count = max(len(blocks) for blocks in tracks.blocks) + 1
    table = np.zeros((len(tracks.blocks), count, 6))
    table[:, :, :2] = _NEVER
    for row, blocks in zip(table, tracks.blocks):
        for place, block in zip(row, blocks):
            place[:] = *block[:2], ids[block.kind], block.height, block.end - block.start, block.direction
    return table


def add_boxes(spec: MjSpec, tracks: Tracks, width: float) -> None:
    """Add the columns of all tracks to the world of a `mujoco.MjSpec`, and lower its ground to the pits' floor."""
    planes = [geom for geom in spec.worldbody.geoms if geom.type == mujoco.mjtGeom.mjGEOM_PLANE]
    for plane in planes:
        plane.pos = [plane.pos[0], plane.pos[1], plane.pos[2] + tracks.floor]
    touch: dict[str, Any] = {"group": 0, **ground_contact_bits(spec)}
    if not any(plane.contype or plane.conaffinity for plane in planes):
        spec.worldbody.add_geom(
            name="st_rl/floor",
            type=mujoco.mjtGeom.mjGEOM_PLANE,
            size=[0, 0, 0.05],
            pos=[0, 0, tracks.floor],
            **touch,
        )
    for row, (edges, ground, center) in enumerate(zip(tracks.edges, tracks.ground, tracks.centers)):
        for column, ((start, end), top) in enumerate(zip(itertools.pairwise(edges), ground)):
            if end > start and top > tracks.floor:
                half_height = (top - tracks.floor) / 2
                spec.worldbody.add_geom(
                    name=f"track_{row}_{column}",
                    type=mujoco.mjtGeom.mjGEOM_BOX,
                    size=[(end - start) / 2, width / 2, half_height],
                    pos=[(start + end) / 2, center, tracks.floor + half_height],
                    rgba=_COLORS[column % 2],
                    **touch,
                )
