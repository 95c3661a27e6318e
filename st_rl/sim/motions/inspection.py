"""Defects of a clip on a robot: sliding feet, ground penetration, joint limits, jumps."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from st_rl.datasets.checks import root_uprightness
from st_rl.datasets.clip import MotionClip
from st_rl.datasets.editing import is_cyclic
from st_rl.sim.motions.ground import CONTACT_HEIGHT, GroundHeights, measure_ground_heights
from st_rl.sim.robots import Robot
from st_rl.utils.tensors import rotations

JOINT_JUMP = 0.4
"""Smallest jump of a joint or of the root's orientation, rad."""
ROOT_JUMP = 0.1
"""Smallest jump of the root's position, m."""
# Smaller excess over a joint limit, rad, is rounding.
_LIMIT_TOLERANCE = 1e-3
# The ground of a clip that floats or sinks is at this quantile of the heights of its lowest foot.
_GROUND_QUANTILE = 0.05


class LimitViolation(NamedTuple):
    """A joint out of its range."""

    joint: str
    excess: float
    """Largest excess, rad."""
    first_s: float
    """Time of the first frame out of range."""
    last_s: float
    """Time of the last frame out of range."""


class Jump(NamedTuple):
    """A step between two frames that fits neither the step before nor the one after."""

    frame: int
    """The frame after the jump."""
    name: str
    """A joint, `root position` or `root rotation`."""
    size: float
    """rad, or m for the root position."""


@dataclass(frozen=True)
class ClipDefects:
    """What keeps a robot from following a clip."""

    duration_s: float
    is_cyclic: bool
    """Whether the last pose is the first."""
    uprightness: float
    """Mean cosine of the root's tilt; -1 is upside down."""
    slide: float
    """Mean horizontal speed of the feet while they are on the ground, m/s."""
    max_slide: float
    """Largest such speed, m/s."""
    max_slide_foot: str
    max_slide_s: float
    """When it is reached."""
    penetration: float
    """Depth of the deepest point of the robot below the ground, m; 0 if there is none."""
    penetration_geom: str
    penetration_s: float
    lowest_foot: float
    """Lowest height of a foot in the clip, m; positive if the robot never touches the ground."""
    foot_height_range: float
    """How much the lowest foot rises and sinks over the clip, m, flight phases of less than half the clip left out."""
    limits: tuple[LimitViolation, ...]
    jumps: tuple[Jump, ...]
    longest_part_s: tuple[float, float]
    """Start and end of the longest part without a jump."""


def find_defects(robot: Robot, clip: MotionClip) -> ClipDefects:
    """The defects of a clip on a robot; MotionError if it lacks a joint of the robot."""
    heights = measure_ground_heights(robot, clip)
    is_down = find_ground_contacts(heights)
    speed = np.where(is_down, heights.foot_speed, 0.0)
    frame, foot = np.unravel_index(int(speed.argmax()), speed.shape)
    deepest = int(heights.lowest.argmin())
    jumps = find_jumps(clip)
    lowest = heights.feet.min(axis=1)
    return ClipDefects(
        duration_s=clip.duration,
        is_cyclic=is_cyclic(clip),
        uprightness=root_uprightness(clip),
        slide=float(heights.foot_speed[is_down].mean()) if is_down.any() else 0.0,
        max_slide=float(speed.max()),
        max_slide_foot=heights.foot_names[int(foot)],
        max_slide_s=float(frame) / clip.fps,
        penetration=max(0.0, -float(heights.lowest[deepest])),
        penetration_geom=heights.lowest_geom[deepest],
        penetration_s=deepest / clip.fps,
        lowest_foot=float(lowest.min()),
        foot_height_range=float(np.quantile(lowest, 0.5) - lowest.min()),
        limits=find_limit_violations(robot, clip),
        jumps=jumps,
        longest_part_s=_longest_part(clip, jumps),
    )


def find_ground_contacts(heights: GroundHeights) -> np.ndarray:
    """Whether each foot is on the ground, `(F, K)`: in this frame, the one before and the one after.

    In a clip that floats or sinks the ground is where its lowest foot is.
    """
    ground = float(np.quantile(heights.feet.min(axis=1), _GROUND_QUANTILE))
    is_low = heights.feet < ground + CONTACT_HEIGHT
    padded = np.pad(is_low, ((1, 1), (0, 0)), mode="edge")
    return padded[:-2] & padded[1:-1] & padded[2:]


def find_limit_violations(robot: Robot, clip: MotionClip) -> tuple[LimitViolation, ...]:
    """Joints of the clip that leave their range on the robot, the worst first."""
    found = []
    for name, (low, high) in zip(robot.joint_names, robot.joint_range):
        if name not in clip.joint_names:
            continue
        angle = clip.joint_pos[:, clip.joint_names.index(name)]
        excess = np.maximum(low - angle, angle - high)
        frames = np.flatnonzero(excess > _LIMIT_TOLERANCE)
        if len(frames):
            times = frames[[0, -1]] / clip.fps
            found.append(LimitViolation(name, float(excess.max()), float(times[0]), float(times[1])))
    return tuple(sorted(found, key=lambda violation: -violation.excess))


def find_jumps(clip: MotionClip) -> tuple[Jump, ...]:
    """Jumps of joints and root, in the order of their frames; the largest one of each frame."""
    turns = rotations.to_rotation_vector(rotations.multiply(clip.root_rot[1:], rotations.conjugate(clip.root_rot[:-1])))
    sizes = {
        name: _unexpected_steps(np.diff(angle)[:, None]) for name, angle in zip(clip.joint_names, clip.joint_pos.T)
    }
    sizes["root rotation"] = _unexpected_steps(turns)
    sizes["root position"] = _unexpected_steps(np.diff(clip.root_pos, axis=0))
    found: dict[int, Jump] = {}
    for name, steps in sizes.items():
        limit = ROOT_JUMP if name == "root position" else JOINT_JUMP
        for step in np.flatnonzero(steps > limit):
            jump = Jump(int(step) + 1, name, float(steps[step]))
            if jump.frame not in found or found[jump.frame].size < jump.size:
                found[jump.frame] = jump
    return tuple(found[frame] for frame in sorted(found))


def _unexpected_steps(steps: np.ndarray) -> np.ndarray:
    """How much each of the steps `(F - 1, D)` differs from both of its neighbours, `(F - 1,)`."""
    changes = np.linalg.norm(np.diff(steps, axis=0), axis=1)
    padded = np.concatenate([changes[:1], changes, changes[-1:]]) if len(changes) else np.zeros(2)
    return np.minimum(padded[:-1], padded[1:])


def _longest_part(clip: MotionClip, jumps: tuple[Jump, ...]) -> tuple[float, float]:
    """Start and end, s, of the longest part between two jumps."""
    bounds = [0, *(jump.frame for jump in jumps), clip.num_frames]
    start, end = max(pairwise(bounds), key=lambda part: part[1] - part[0])
    return start / clip.fps, (end - 1) / clip.fps
