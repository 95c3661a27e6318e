"""`st-rl motion inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from st_rl.cli.commands.motion.clips import ClipOptions, load_robot, read_clips, robot_of
from st_rl.cli.commands.motion.verdict import USABLE
from st_rl.cli.support.command_line import conf, parse_options

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip
    from st_rl.sim.robots import Robot

# Slower sliding of the feet, m/s, says nothing about the order of quaternions.
_MIN_SLIP = 0.1


@dataclass
class InspectOptions(ClipOptions):
    """Options of `st-rl motion inspect`."""

    motions: Annotated[tuple[str, ...], conf("Positional"), conf("arg", metavar="[CLIP ...]")] = ()
    """Files, folders, or names of built-in clips; by default the quadruped gaits."""


def inspect(arguments: Sequence[str]) -> int:
    """Show the contents of motion files and whether a robot can follow them: st-rl motion inspect FILE..."""
    options = parse_options(InspectOptions, arguments, "motion inspect", inspect.__doc__)
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from st_rl.datasets.gaits import QUADRUPED_GAITS

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, collapse_padding=True)
    for column in ("clip", "frames", "fps", "s", "joints", "feet", "bodies", "quat", "m/s", "height", "rad/s"):
        table.add_column(column, justify="left" if column == "clip" else "right", no_wrap=True)
    clips = read_clips(options.motions or tuple(QUADRUPED_GAITS), options)
    for clip in clips:
        table.add_row(*_row(clip))
    console = Console()
    console.print(table)
    legend = "quat: quaternion order of the file; m/s: mean speed; height: of the root, mean, m; rad/s: fastest joint"
    console.print(legend, highlight=False)
    for joints in sorted({clip.joint_names for clip in clips}):
        console.print(f"joints: {', '.join(joints)}", highlight=False)
    robots = {clip.name: robot_of(options.robot, clip) for clip in clips}
    problems = {clip.name: find_problems(clip, robots[clip.name]) for clip in clips}
    for name, found in problems.items():
        for problem in found:
            console.print(f"{name}: {problem}", highlight=False, soft_wrap=True)
    verdicts = [_find_verdict(clip, robots[clip.name], options.robot) for clip in clips]
    for clip, lines in zip(clips, verdicts):
        for line in lines:
            console.print(f"{clip.name}: {line}", highlight=False, soft_wrap=True)
    if not any(problems.values()) and all(not lines or lines[-1] == USABLE for lines in verdicts):
        console.print(
            f"{', '.join(dict.fromkeys(robots.values()))}: can follow all clips (joint names, ranges, velocities)",
            highlight=False,
        )
    return 0


def _find_verdict(clip: MotionClip, robot_name: str, option: str | None) -> list[str]:
    """Return the defects of a clip on its robot and the verdict; without all joints only those out of range."""
    from st_rl.cli.commands.motion.verdict import describe_defects, describe_limits, find_verdict
    from st_rl.sim.motions.inspection import find_defects, find_limit_violations

    robot = load_robot(robot_name)
    missing = [name for name in robot.joint_names if name not in clip.joint_names]
    limits = describe_limits(find_limit_violations(robot, clip))
    if missing:
        return [
            *limits,
            f"not usable: it has {len(clip.joint_names)} joints and lacks {len(missing)} of the {robot.num_joints} of "
            f"{robot.path.name} ({missing[0]}, ...); name its robot with --robot",
        ]
    if robot.free_joint is None or not robot.feet:
        return limits
    found = find_defects(robot, clip)
    return [*describe_defects(found), find_verdict(clip, found, option)]


def _row(clip: MotionClip) -> list[str]:
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
        clip.quat_order or "-",
        f"{np.linalg.norm(displacement) / clip.duration:.2f}",
        f"{clip.root_pos[:, 2].mean():.2f}",
        f"{np.abs(clip.joint_vel).max():.1f}",
    ]


def find_problems(clip: MotionClip, robot_name: str) -> list[str]:
    """Return what the reader assumed and what could keep a robot from following the clip."""
    from st_rl.datasets.checks import find_velocity_problems

    found = list(clip.notes)
    if clip.estimated:
        found.append(f"estimated: {', '.join(clip.estimated)}")
    found += find_velocity_problems(clip)
    robot = load_robot(robot_name)
    return [*found, *_find_joint_problems(clip, robot), *_find_slip(clip, robot)]


def _find_slip(clip: MotionClip, robot: Robot) -> list[str]:
    """Return a line if the feet slide, and do not with the other order of quaternions."""
    from st_rl.datasets.checks import MIN_UPRIGHTNESS, root_uprightness
    from st_rl.datasets.formats.quaternion_order import swap_order
    from st_rl.sim.motions.clips import foot_slip

    is_posable = robot.free_joint is not None and robot.feet and set(robot.joint_names) <= set(clip.joint_names)
    if not is_posable or not clip.quat_order:
        return []
    slip, swapped = foot_slip(robot, clip), swap_order(clip)
    if slip < _MIN_SLIP or root_uprightness(swapped) < MIN_UPRIGHTNESS:
        return []
    other = foot_slip(robot, swapped)
    if other > 0.5 * slip:
        return []
    return [
        f"feet slide at {slip:.2f} m/s with quaternions {clip.quat_order}, {other:.2f} m/s with {swapped.quat_order}: "
        f"use --quat-order {swapped.quat_order}"
    ]


def _find_joint_problems(clip: MotionClip, robot: Robot) -> list[str]:
    """Return joints that only the robot or only the clip has."""
    shared = [name for name in robot.joint_names if name in clip.joint_names]
    if not shared:
        return [f"no joint of {robot.path.name}: name the robot with --robot, or its joints with --joint-names"]
    found = []
    missing = [name for name in robot.joint_names if name not in shared]
    foreign = [name for name in clip.joint_names if name not in shared]
    if missing:
        found.append(f"missing joints of the robot: {', '.join(missing)}")
    if foreign:
        found.append(f"joints that the robot does not have: {', '.join(foreign)}")
    return found
