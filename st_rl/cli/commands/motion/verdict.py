"""Lines about the defects of a clip, and whether it is usable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from st_rl.cli.support.command_line import quote
from st_rl.datasets.checks import MIN_UPRIGHTNESS, root_uprightness
from st_rl.datasets.formats.quaternion_order import swap_order

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip
    from st_rl.sim.motions.inspection import ClipDefects, LimitViolation

USABLE = "usable"
"""The verdict on a clip without defects."""
_MIN_DURATION_S = 1.0
_MAX_SLIDE = 0.5
# Depth below and height above the ground that need an edit, m, and excess over a joint limit, rad.
_MAX_PENETRATION, _MAX_CLEARANCE, _MAX_EXCESS = 0.02, 0.03, 0.05


def describe_defects(found: ClipDefects) -> list[str]:
    """Return a line for sliding feet, and one for each other defect."""
    lines = [
        f"feet slide at {found.slide:.3f} m/s on the ground, at most {found.max_slide:.2f} m/s "
        f"({found.max_slide_foot}, {found.max_slide_s:.2f} s)"
    ]
    if found.penetration > 1e-3:
        lines.append(
            f"{found.penetration_geom} is {found.penetration:.3f} m below the ground at {found.penetration_s:.2f} s"
        )
    if found.lowest_foot > _MAX_CLEARANCE:
        lines.append(f"the feet stay {found.lowest_foot:.3f} m above the ground")
    lines += describe_limits(found.limits)
    lines += [f"{name} jumps by {size:.2f} at frame {frame}" for frame, name, size in found.jumps]
    return lines


def describe_limits(limits: Sequence[LimitViolation]) -> list[str]:
    """Return a line for each joint out of its range."""
    return [
        f"{joint} leaves its range by {excess:.3f} rad, from {first:.2f} to {last:.2f} s"
        for joint, excess, first, last in limits
    ]


def find_verdict(clip: MotionClip, found: ClipDefects, robot: str | None) -> str:
    """Return `usable`, `usable after:` a command, or `not usable:` a reason."""
    start, end = found.longest_part_s if found.jumps else (0.0, found.duration_s)
    if found.uprightness < MIN_UPRIGHTNESS:
        swapped = swap_order(clip) if clip.quat_order else None
        remedy = "turn it upright in the program that made it"
        if swapped is not None and root_uprightness(swapped) >= MIN_UPRIGHTNESS:
            remedy = f"use --quat-order {swapped.quat_order}"
        where = "upside down" if found.uprightness < -MIN_UPRIGHTNESS else "not upright"
        return f"not usable: the root is {where} (cosine of its tilt {found.uprightness:.2f}); {remedy}"
    if end - start < _MIN_DURATION_S and not (found.is_cyclic and not found.jumps):
        return (
            f"not usable: {end - start:.2f} s without a jump, needs {_MIN_DURATION_S:g} s; record a longer clip, or "
            "append one: st-rl motion edit CLIP OUT --blend OTHER"
        )
    if found.slide > _MAX_SLIDE:
        return f"not usable: feet slide at {found.slide:.2f} m/s; check --fps, --quat-order and --robot"
    options = [f"--start {start:.4g} --end {end:.4g}"] if found.jumps else []
    if any(violation.excess > _MAX_EXCESS for violation in found.limits):
        options.append("--joint-limits")
    if found.penetration > _MAX_PENETRATION or found.lowest_foot > _MAX_CLEARANCE:
        options.append(f"--ground {'smooth' if found.foot_height_range > _MAX_CLEARANCE else 'constant'}")
    if not options:
        return USABLE
    output = Path(clip.source or clip.name).stem + "_edited.npz"
    of_robot = [] if robot is None else [f"--robot {quote(robot)}"]
    words = ["st-rl motion edit", quote(clip.source or clip.name), quote(output), *options, *of_robot]
    return f"usable after: {' '.join(words)}"
