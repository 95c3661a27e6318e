"""Left-right mirror of observation terms, as columns and signs."""

from collections.abc import Mapping, Sequence
from typing import Any

from st_rl.sim.robots.mirror import Mirror

MirrorKind = str | Sequence[int] | Mapping[str, Sequence[Any]]
"""How a block of columns changes under a left-right mirror; `mirror_columns` explains the kinds."""
# Signs of x forward, y left and z up; those of a command are of lin_vel_x, lin_vel_y and ang_vel_yaw.
_SIGNS = {"scalar": (1,), "vector": (1, -1, 1), "pseudovector": (-1, 1, -1), "command": (1, -1, -1)}
_KINDS = (*_SIGNS, "joints", "feet", "clock")


def mirror_columns(
    kind: MirrorKind, width: int, robot: Mirror, foot_phases: Sequence[float]
) -> tuple[list[int], list[int]]:
    """Columns and signs of the mirror image of a term: `mirrored[i] = signs[i] * x[columns[i]]`.

    `kind` is `scalar`, `vector`, `pseudovector` (angular velocity, torque), `command`, `joints`, `feet`, `clock`, a
    sequence of signs, or `{"columns": [...], "signs": [...]}`. A block is repeated to fill the width (a history).
    `foot_phases` are the gait offsets in the order of the robot's feet.
    """
    columns: Sequence[int] | None = None
    if isinstance(kind, Mapping):
        columns = kind["columns"]
        signs = kind.get("signs") or [1] * len(columns)
    elif kind == "joints":
        columns, signs = robot.joints, robot.signs
    elif kind == "feet":
        columns, signs = robot.feet, [1] * len(robot.feet)
    elif kind == "clock":
        signs = _clock_signs(foot_phases, robot.feet)
    elif isinstance(kind, str):
        if kind not in _SIGNS:
            raise ValueError(f"unknown mirror '{kind}'; use {', '.join(_KINDS)}, a list of signs, or columns and signs")
        signs = _SIGNS[kind]
    else:
        signs = kind
    block = range(len(signs)) if columns is None else columns
    if not block or width % len(block) != 0:
        raise ValueError(f"mirror {kind!r} has {len(block)} columns, the term {width}: give it a multiple of them")
    repeats = range(0, width, len(block))
    return [start + column for start in repeats for column in block], [sign for _ in repeats for sign in signs]


def mirror_rows(num_rows: int, width: int) -> dict[str, list[int]]:
    """The mirror of a grid `(num_rows, width)`, row by row, of which every row is reversed."""
    return {"columns": [row * width + column for row in range(num_rows) for column in reversed(range(width))]}


def side_names(partners: Sequence[int]) -> list[str]:
    """Names from which `symmetry_cfg` finds the partners again, whatever the names in the robot's file are."""
    sides = ("left", "middle", "right")
    return [f"{sides[(i > partner) - (i < partner) + 1]}_{min(i, partner)}" for i, partner in enumerate(partners)]


def _clock_signs(offsets: Sequence[float], partners: Sequence[int]) -> list[int]:
    """Signs of the clock's sine and cosine: a mirrored gait has the same phase or is half a stride away."""
    shifts = {round(2 * (offsets[partner] - offset) % 2, 6) % 2 for offset, partner in zip(offsets, partners)}
    if shifts not in ({0.0}, {1.0}):
        raise ValueError(
            f"gait.offsets {tuple(offsets)} is another gait in the mirror: left and right feet must all move together "
            "or all half a stride apart, or do without symmetry_cfg"
        )
    return [1, 1] if shifts == {0.0} else [-1, -1]
