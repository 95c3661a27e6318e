"""The tables that a task is made of: observation terms and reward terms, and the observation built from them."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.terms.mirror import MirrorKind

if TYPE_CHECKING:
    from st_rl.sim.envs.task import Task

Term = Callable[[Any], torch.Tensor]
"""A function of the task; rewards and terminations return `(N,)`, observations `(N, width)`."""
Shape = int | tuple[int, ...]
FRAMES = {
    "base": "axes of the base body: x forward, y left, z up",
    "heading": "origin of the base body; z up, against gravity; x is the horizontal direction of the base's x axis",
    "world": "z up, against gravity; fixed to the ground",
    "joint": "one value per joint, about or along its axis, in the order of joint_names",
}
"""Frames of observation terms by name."""


@dataclass(frozen=True)
class ObsTerm:
    """One part of the observation: the columns that `function` computes, in SI units, and how they are delivered."""

    function: Term
    """`(N, width)` from the task, without scale and noise."""
    width: Shape | Callable[[Any], Shape]
    """Number of columns, or the shape of an image, or a function of the task that returns one of them."""
    scale: float | str = 1.0
    """Factor of the columns, or the name of one in `normalization.obs_scales`."""
    noise: float | str = 0.0
    """Amplitude of the uniform noise in the unit of the function, or the name of one in `noise`; actor only."""
    mirror: MirrorKind | Callable[[Any], MirrorKind] | None = None
    """Left-right mirror of the columns, for `symmetry_cfg`, as `mirror_columns` takes it; None if unknown."""
    privileged: bool = False
    """Whether only the critic observes it."""
    segment: str | None = None
    """Entry of `obs_segments` that it belongs to, together with its neighbors; one of its own name by default."""
    unit: str = ""
    """Unit of the columns, such as `rad/s`; empty for numbers without one."""
    frame: str = ""
    """Frame of the columns, a name in `FRAMES` or your own words; empty for numbers without one."""
    description: str | Callable[[Any], str] = ""
    """What the columns are, in their order, for a controller; a text, or a function of the task that returns one."""


class RewardTerm(NamedTuple):
    """One part of the reward."""

    function: Term
    """`(N,)` from the task."""
    weight: float
    """Default weight per second; `rewards.NAME` of the configuration overrides it."""


def default_weights(table: Mapping[str, RewardTerm]) -> dict[str, float]:
    """The weight of every term, as the field `rewards` of a configuration holds them."""
    return {name: term.weight for name, term in table.items()}


def reweight(table: Mapping[str, RewardTerm], **weights: float) -> dict[str, RewardTerm]:
    """A copy of a table with other default weights for some of its terms."""
    return {**table, **{name: table[name]._replace(weight=weight) for name, weight in weights.items()}}


class ObsColumn(NamedTuple):
    """Where an observation term lies in the observation, and its resolved settings."""

    name: str
    term: ObsTerm
    shape: Shape
    start: int
    width: int
    scale: float
    noise: float
    """Amplitude after scaling; 0 for terms without noise."""
    description: str

    @property
    def segment(self) -> str:
        """Entry of `obs_segments`."""
        return self.term.segment or self.name


class ObservationTable:
    """The observation of a task from its terms: the actor's columns first, then those that only the critic sees."""

    def __init__(self, task: "Task", terms: Mapping[str, ObsTerm]) -> None:
        """Resolve widths, scales and noise for a task; ValueError for terms that contradict each other."""
        cfg = task.cfg
        scales = _resolve_scales(cfg.normalization.obs_scales, terms)
        ordered = sorted(terms.items(), key=lambda item: item[1].privileged)
        self.columns: list[ObsColumn] = []
        """Terms in the order of the observation."""
        for name, term in ordered:
            shape = term.width(task) if callable(term.width) else term.width
            start = self.columns[-1].start + self.columns[-1].width if self.columns else 0
            width = shape if isinstance(shape, int) else math.prod(shape)
            is_noisy = not (term.privileged or cfg.privileged_actor)
            amplitude = vars(cfg.noise)[term.noise] if isinstance(term.noise, str) else term.noise
            noise = cfg.noise.level * amplitude * scales[name] if is_noisy else 0.0
            description = term.description(task) if callable(term.description) else term.description
            self.columns.append(ObsColumn(name, term, shape, start, width, scales[name], noise, description))
        # A privileged actor has the order of the critic: what it sees is what the critic of a student sees.
        actor = [column for column in self.columns if cfg.privileged_actor or not column.term.privileged]
        self.actor_segments = _segments(actor)
        """Shapes of the segments that the actor sees."""
        self.critic_segments = {**self.actor_segments, **_segments(self.columns[len(actor) :])}
        """Those and what only the critic sees."""
        self.num_actor, self.num_critic = sum(c.width for c in actor), sum(c.width for c in self.columns)
        row = [column.scale for column in self.columns for _ in range(column.width)]
        self._scale = torch.tensor(row, dtype=torch.float32, device=task.device)
        self._clip = cfg.normalization.clip_observations
        noisy = [column for column in actor if column.noise != 0]
        self.noise_ranges: list[Range] = [(-c.noise, c.noise) for c in noisy for _ in range(c.width)]
        """Range of each noisy column; the other columns need no random number."""
        self._noisy_blocks = _adjacent_blocks(noisy)

    def compute(self, task: "Task") -> torch.Tensor:
        """`(N, Oc)` scaled and clipped observation without noise, a new tensor."""
        obs = torch.cat([column.term.function(task) for column in self.columns], dim=1)
        return obs.mul_(self._scale).clamp_(-self._clip, self._clip)

    def add_noise(self, obs: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """A copy of `obs` `(N, O)` with `noise` `(N, len(noise_ranges))` on the noisy columns."""
        obs = obs.clone()
        first = 0
        for start, width in self._noisy_blocks:
            obs[:, start : start + width] += noise[:, first : first + width]
            first += width
        return obs

    def check_widths(self, task: "Task") -> None:
        """ValueError for a function that does not return the width of its term."""
        for column in self.columns:
            shape = tuple(column.term.function(task).shape)
            if shape != (task.num_envs, column.width):
                raise ValueError(
                    f"observation term '{column.name}' has width {column.width}, so its function must return "
                    f"({task.num_envs}, {column.width}); got {shape}"
                )

    def describe(self) -> list[dict[str, Any]]:
        """The terms that the actor sees, in order, for a controller: where they are, and how they are computed."""
        return [
            {
                "name": c.name,
                "segment": c.segment,
                "start": c.start,
                "width": c.width,
                "shape": c.shape,
                "unit": c.term.unit,
                "frame": c.term.frame,
                "description": c.description,
                "scale": c.scale,
                "clip": self._clip,
                "history_length": 1,
            }
            for c in self.columns
            if c.start < self.num_actor
        ]


def _resolve_scales(known: dict[str, float], terms: Mapping[str, ObsTerm]) -> dict[str, float]:
    """Scale of each term; numbers other than 1 are added to `known` so that checkpoints and exports have all scales."""
    names = {name: term.scale for name, term in terms.items() if isinstance(term.scale, str)}
    missing = [scale for scale in dict.fromkeys(names.values()) if scale not in known]
    if missing:
        raise ValueError(f"normalization.obs_scales lacks {', '.join(missing)}: give each a factor")
    for name, term in terms.items():
        if isinstance(term.scale, float | int) and term.scale != 1:
            known.setdefault(name, float(term.scale))
    return {name: float(known.get(names.get(name, name), 1.0)) for name in terms}


def _segments(columns: Sequence[ObsColumn]) -> dict[str, Shape]:
    """Shape of each segment of adjacent columns; ValueError if a segment is interrupted by another one."""
    segments: dict[str, Shape] = {}
    for name, group in itertools.groupby(columns, key=lambda column: column.segment):
        members = list(group)
        if name in segments:
            raise ValueError(f"the terms of the segment '{name}' must follow each other in the table of observations")
        segments[name] = members[0].shape if len(members) == 1 else sum(column.width for column in members)
    return segments


def _adjacent_blocks(columns: Sequence[ObsColumn]) -> list[tuple[int, int]]:
    """Start and width of each run of adjacent columns."""
    blocks: list[tuple[int, int]] = []
    for column in columns:
        if blocks and sum(blocks[-1]) == column.start:
            start, width = blocks.pop()
            blocks.append((start, width + column.width))
        else:
            blocks.append((column.start, column.width))
    return blocks
