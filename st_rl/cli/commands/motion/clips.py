"""Read the clips of motion files."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from st_rl.datasets.clip import MotionClip
    from st_rl.sim.robots import Robot


@dataclass(kw_only=True)
class ClipOptions:
    """Options for reading motion files."""

    robot: str | None = None
    """Robot: an MJCF file, a robot description (.yaml), or the name of a built-in robot; None uses the humanoid for
    clips of its joints, otherwise the quadruped."""
    joint_names: tuple[str, ...] | None = None
    """Joint names in the order of the file, for formats without them; None uses those of the robot (AMP files: legs in
    the order FR, FL, RR, RL)."""
    fps: float | None = None
    """Frame rate; overrides that of the file, required for formats without it."""
    quat_order: Literal["xyzw", "wxyz"] | None = None
    """Order of the quaternions in npz, csv and GMR files; None uses the one in which the root stands upright."""


def read_clips(motions: tuple[str, ...], options: ClipOptions) -> list[MotionClip]:
    """Read the clips of files, folders or names; files without joint names use those of the robot if as many."""
    from st_rl.datasets.library import read_each

    return read_each(motions, lambda path: _read_file(path, options))


def _read_file(path: Path, options: ClipOptions) -> list[MotionClip]:
    """Read the clips of one file; see `read_clips`."""
    from st_rl.datasets.formats import read_motion

    robot_joints = None
    if options.joint_names is None:
        unnamed = read_motion(path, fps=options.fps, quat_order=options.quat_order)
        names = load_robot(robot_of(options.robot, unnamed[0])).joint_names
        robot_joints = names if len(names) == len(unnamed[0].joint_names) else None
    return read_motion(
        path,
        joint_names=options.joint_names,
        robot_joints=robot_joints,
        fps=options.fps,
        quat_order=options.quat_order,
    )


def robot_of(robot: str | None, clip: MotionClip) -> str:
    """Return the robot of the option, otherwise the built-in one with the joint names or number of joints of a clip."""
    if robot is not None:
        return robot
    joints, names = _humanoid_joints(), set(clip.joint_names)
    return "humanoid" if names.issuperset(joints) or len(names) == len(joints) else "quadruped"


@functools.cache
def _humanoid_joints() -> tuple[str, ...]:
    return load_robot("humanoid").joint_names


def load_robot(name: str) -> Robot:
    """Load an MJCF file, a robot description, or a built-in robot; one without actuators gets a motor per joint."""
    from st_rl.sim.robots import Robot, robot_path
    from st_rl.sim.robots.build_model import add_missing_motors

    return Robot.from_file(robot_path(name), add_missing_motors)
