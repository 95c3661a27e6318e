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

JUMP_SPEED, ROOT_JUMP_SPEED = 20.0, 3.0
"""A step is a jump if its speed differs from those around it by more: of a joint or of the root's orientation, rad/s,
and of the root's position, m/s."""
# Slower steps are jumps as well if they stand out by this factor from what is usual in the clip and around them, which
# counts as no less than this size, rad and m.
_JUMP_FACTOR, _QUIET_STEP, _QUIET_ROOT_STEP = 5.0, 0.01, 0.003
# Usual is this quantile of the clip, or, within this time on both sides, what is exceeded by two steps at most, s.
_USUAL_QUANTILE, _JUMP_WINDOW_S = 0.95, 0.25
_ROOT_POSITION = "root position"
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
    """A step between two frames that does not fit those before and after it."""

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
    steps = {name: np.diff(angle)[:, None] for name, angle in zip(clip.joint_names, clip.joint_pos.T)}
    steps |= {"root rotation": turns, _ROOT_POSITION: np.diff(clip.root_pos, axis=0)}
    found: dict[int, Jump] = {}
    for name, values in steps.items():
        sizes = _unexpected_parts(values)
        for step in np.flatnonzero(sizes > _jump_limits(sizes, clip.fps, name == _ROOT_POSITION)):
            jump = Jump(int(step) + 1, name, float(sizes[step]))
            if jump.frame not in found or found[jump.frame].size < jump.size:
                found[jump.frame] = jump
    return tuple(found[frame] for frame in sorted(found))


def _unexpected_parts(steps: np.ndarray) -> np.ndarray:
    """How much each step of `(F - 1, D)` differs from both neighbours and from a cubic through four, `(F - 1,)`."""
    padded = np.pad(steps, ((2, 2), (0, 0)), mode="reflect", reflect_type="odd") if len(steps) > 2 else None
    changes = np.linalg.norm(np.diff(steps, axis=0), axis=1)
    ends = np.concatenate([changes[:1], changes, changes[-1:]]) if len(changes) else np.zeros(2)
    sizes = np.minimum(ends[:-1], ends[1:])
    if padded is None:
        return sizes
    cubic = (4.0 * (padded[1:-3] + padded[3:-1]) - padded[:-4] - padded[4:]) / 6.0
    return np.minimum(sizes, np.linalg.norm(steps - cubic, axis=1))


def _jump_limits(sizes: np.ndarray, fps: float, is_root_position: bool) -> np.ndarray:
    """From which of the `sizes (F - 1,)` on a step is a jump, `(F - 1,)`: fast motion makes it larger."""
    speed, quiet = (ROOT_JUMP_SPEED, _QUIET_ROOT_STEP) if is_root_position else (JUMP_SPEED, _QUIET_STEP)
    half = max(1, round(_JUMP_WINDOW_S * fps))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(sizes, half), 2 * half + 1)
    # The largest two may be a single frame that is wrong.
    around = np.sort(windows, axis=1)[:, -3]
    usual = np.maximum(around, np.quantile(sizes, _USUAL_QUANTILE))
    return np.maximum(_JUMP_FACTOR * quiet, np.minimum(speed / fps, _JUMP_FACTOR * (usual + quiet)))


def _longest_part(clip: MotionClip, jumps: tuple[Jump, ...]) -> tuple[float, float]:
    """Start and end, s, of the longest part between two jumps."""
    bounds = [0, *(jump.frame for jump in jumps), clip.num_frames]
    start, end = max(pairwise(bounds), key=lambda part: part[1] - part[0])
    return start / clip.fps, (end - 1) / clip.fps
