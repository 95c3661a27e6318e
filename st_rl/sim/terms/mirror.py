"""How a walking task looks in a mirror at the robot's forward-up plane, in the words of `symmetry_cfg`."""

from collections.abc import Mapping, Sequence
from typing import Any

from st_rl.sim.robots import Robot
from st_rl.utils.config import unknown_name_message

# Segments that mirror in the same way for every robot, and those that follow its joints or feet.
_KINDS: dict[str, str] = {
    "base_lin_vel": "vector",
    "base_ang_vel": "pseudovector",
    "projected_gravity": "vector",
    "joint_pos": "joints",
    "joint_vel": "joints",
    "actions": "joints",
    "commands": "command",
    "base_height": "scalar",
    "properties": "scalar",
    "clock": "clock",
    "foot_contact": "feet",
    "foot_height": "feet",
}


def walk_mirror(
    robot: Robot, foot_phases: Sequence[float], *segments: Mapping[str, Any], others: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The kind of every segment, as `observation_mirror` takes it, for each of these layouts.

    `foot_phases` are in the order of the robot's feet, `others` the kinds of segments that not every walking task has.
    ValueError for a robot whose default pose has no left-right symmetry, for a gait that is another one in the mirror,
    and for a segment whose mirror image is not known.
    """
    partners = robot.mirror().feet
    names = side_names(partners)
    kinds: dict[str, Any] = {
        **_KINDS,
        "clock": _clock_signs(foot_phases, partners),
        "foot_contact": {"names": names},
        "foot_height": {"names": names},
        **(others or {}),
    }
    layouts = []
    for layout in segments:
        for name in layout:
            if name not in kinds:
                known = unknown_name_message("segment with a mirror image", name, kinds)
                raise ValueError(f"{known}; do without symmetry_cfg, or give it joint_names and obs of your own")
        layouts.append({name: kinds[name] for name in layout})
    return layouts


def side_names(partners: Sequence[int]) -> list[str]:
    """Names that say which is whose mirror image, whatever those of the robot's file say."""
    sides = ("left", "middle", "right")
    return [f"{sides[(i > partner) - (i < partner) + 1]}_{min(i, partner)}" for i, partner in enumerate(partners)]


def _clock_signs(offsets: Sequence[float], partners: Sequence[int]) -> list[int]:
    """Signs of the clock's sine and cosine: the mirror image of a gait is at the same beat or half a stride away."""
    shifts = {round(2 * (offsets[partner] - offset) % 2, 6) % 2 for offset, partner in zip(offsets, partners)}
    if shifts not in ({0.0}, {1.0}):
        raise ValueError(
            f"gait.offsets {tuple(offsets)} is another gait in the mirror: left and right feet must all move together "
            "or all half a stride apart, or do without symmetry_cfg"
        )
    return [1, 1] if shifts == {0.0} else [-1, -1]
