"""`st-rl motion inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tyro

from st_rl.cli.commands.motion.clips import ClipOptions, load_robot, read_clips, robot_of
from st_rl.cli.support.command_line import parse_options

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip


@dataclass
class InspectOptions(ClipOptions):
    """Options of `st-rl motion inspect`."""

    motions: tyro.conf.Positional[tuple[str, ...]] = ()
    """Files, folders, or names of built-in clips; by default the quadruped gaits."""


def inspect(arguments: Sequence[str]) -> int:
    """Show the contents of motion files and whether a robot can follow them: st-rl motion inspect FILE..."""
    options = parse_options(InspectOptions, arguments, "motion inspect", inspect.__doc__)
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from st_rl.datasets.gaits import QUADRUPED_GAITS

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=True)
    for column in ("clip", "frames", "fps", "s", "joints", "feet", "bodies", "m/s", "height", "rad/s"):
        table.add_column(column, justify="left" if column == "clip" else "right", no_wrap=True)
    clips = read_clips(options.motions or tuple(QUADRUPED_GAITS), options)
    for clip in clips:
        table.add_row(*_row(clip))
    console = Console()
    console.print(table)
    console.print("m/s: mean speed; height: of the root, mean, m; rad/s: fastest joint velocity", highlight=False)
    for joints in sorted({clip.joint_names for clip in clips}):
        console.print(f"joints: {', '.join(joints)}", highlight=False)
    robots = {clip.name: robot_of(options.robot, clip) for clip in clips}
    problems = {clip.name: find_problems(clip, robots[clip.name]) for clip in clips}
    for name, found in problems.items():
        for problem in found:
            console.print(f"{name}: {problem}", highlight=False)
    if not any(problems.values()):
        console.print(
            f"{', '.join(dict.fromkeys(robots.values()))}: can follow all clips (joint names, ranges, velocities)",
            highlight=False,
        )
    return 0


def _row(clip: MotionClip) -> list[str]:
    """Return the table row of a clip."""
    import numpy as np

    displacement = clip.root_pos[-1, :2] - clip.root_pos[0, :2]
    return [
        clip.name,
        str(clip.num_frames),
        f"{clip.fps:g}",
        f"{clip.duration:.2f}",
        str(len(clip.joint_names)),
        str(len(clip.feet.names)) if clip.feet is not None else "-",
        str(len(clip.bodies.names)) if clip.bodies is not None else "-",
        f"{np.linalg.norm(displacement) / clip.duration:.2f}",
        f"{clip.root_pos[:, 2].mean():.2f}",
        f"{np.abs(clip.joint_vel).max():.1f}",
    ]


def find_problems(clip: MotionClip, robot_name: str) -> list[str]:
    """Return what could keep a robot from following the clip."""
    import numpy as np

    from st_rl.datasets.clip import linear_velocity
    from st_rl.datasets.processing import reorder_joints

    found = []
    if clip.estimated:
        found.append(f"estimated: {', '.join(clip.estimated)}")
    robot = load_robot(robot_name)
    missing = [name for name in robot.joint_names if name not in clip.joint_names]
    if missing:
        return [*found, f"missing joints of the robot: {', '.join(missing)}"]
    clip = reorder_joints(clip, robot.joint_names)
    low, high = robot.joint_range.T
    outside = np.maximum(low - clip.joint_pos, clip.joint_pos - high).max(axis=0)
    for joint in np.flatnonzero(outside > 1e-3):
        found.append(f"{robot.joint_names[joint]} exceeds its range by {outside[joint]:.2f} rad")
    measured, given = linear_velocity(clip.joint_pos, 1.0 / clip.fps), clip.joint_vel
    # Coarse sampling changes the ratio a little, a wrong frame rate by a factor.
    ratio = float((measured * given).sum() / max((given * given).sum(), 1e-9))
    if given.any() and not 0.75 < ratio < 1.33:
        found.append(f"positions move {ratio:.2f} times as fast as the joint velocities: wrong fps?")
    if clip.feet is not None and clip.feet.pos[..., 2].min() < -0.02:
        found.append(f"a foot is {-clip.feet.pos[..., 2].min():.2f} m below the ground")
    return found
