"""What the actions of `st-rl motion` share: options that say how a file is read, and the clips of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class ClipOptions:
    """How motion files are read."""

    robot: str | None = None
    """The robot that moves: the path of an MJCF file or of a robot description (.yaml), or the name of a built-in one;
    when None, the humanoid for clips of its joints, else the quadruped."""
    joint_names: tuple[str, ...] | None = None
    """Joints in the order of the file, for formats that do not name them. When None: those of the robot, of AMP files
    those of FR, FL, RR, RL."""
    fps: float | None = None
    """Frames a second, whatever a file says; needed for files that do not say."""


def read_clips(motions: tuple[str, ...], options: Any) -> list[Any]:
    """The clips of files, folders or names; a file without names has the robot's joints, if it has as many."""
    from st_rl.datasets.formats import read_motion
    from st_rl.datasets.library import motion_paths

    paths: list[Path] = [path for name in motions for path in motion_paths(name)]
    clips = []
    for path in paths:
        robot_joints = None
        if options.joint_names is None:
            unnamed = read_motion(path, fps=options.fps)
            robot_joints = _robot_joints(robot_of(options.robot, unnamed[0]), len(unnamed[0].joint_names))
        clips += read_motion(path, joint_names=options.joint_names, robot_joints=robot_joints, fps=options.fps)
    return clips


def robot_of(robot: str | None, clip: Any) -> str:
    """The robot that the user names, else the built-in one whose joints, by name or number, are those of a clip."""
    if robot is not None:
        return robot
    joints, names = _humanoid_joints(), set(clip.joint_names)
    return "humanoid" if names.issuperset(joints) or len(names) == len(joints) else "quadruped"


@functools.cache
def _humanoid_joints() -> tuple[str, ...]:
    """The joints of the built-in humanoid."""
    from st_rl.sim.robots import Robot, robot_path

    return Robot.from_file(robot_path("humanoid")).joint_names


def _robot_joints(robot: str, count: int) -> tuple[str, ...] | None:
    """The joints of a robot, where it has so many."""
    from st_rl.sim.robots import Robot, robot_path

    names = Robot.from_file(robot_path(robot)).joint_names
    return names if len(names) == count else None
