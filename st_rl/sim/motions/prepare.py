"""Prepares a clip for a task: joints and frame rate of the robot, and checks that it can be followed."""

import numpy as np

from st_rl.datasets.checks import root_uprightness
from st_rl.datasets.clip import MotionClip, MotionError
from st_rl.datasets.editing import is_cyclic
from st_rl.datasets.processing import reorder_joints, resample
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.motions.ground import lowest_heights
from st_rl.sim.robots import Robot
from st_rl.utils.log import logger

# A clip that is not cyclic has at least this duration, s: a shorter one is more likely a mistake than a motion.
_MIN_DURATION_S = 1.0
# A clip is rejected if a joint is further out of its range than this, rad: no robot turns its joints so far.
_MAX_JOINT_EXCESS = np.pi
# A clip is rejected if its feet are this far above or below the ground, m, and gets a warning from the second on.
_MAX_GROUND_DISTANCE, _NOTABLE_PENETRATION = 0.15, 0.05


def prepare_clip(robot: Robot, clip: MotionClip, fps: float) -> MotionClip:
    """The clip with the joints of the robot at a frame rate; MotionError for one that no robot can follow."""
    clip = reorder_joints(clip, robot.joint_names)
    if clip.duration < _MIN_DURATION_S and not is_cyclic(clip):
        raise MotionError(
            clip.where,
            "the clip",
            f"lasts only {clip.duration:.3g} s and does not end in its first pose",
            f"use one of {_MIN_DURATION_S:g} s or more, or make it a loop: st-rl motion edit CLIP OUT --loop",
        )
    low, high = robot.joint_range.T
    excess = np.maximum(clip.joint_pos - high, low - clip.joint_pos).max(axis=0)
    if excess.max() > _MAX_JOINT_EXCESS:
        joint = int(excess.argmax())
        raise MotionError(
            clip.where,
            f"the joint {robot.joint_names[joint]}",
            f"moves from {clip.joint_pos[:, joint].min():.3g} to {clip.joint_pos[:, joint].max():.3g} rad, far out of "
            f"its range of {low[joint]:.2f} to {high[joint]:.2f}",
            "give angles in radians, in the order of the joints of the robot",
        )
    upright = root_uprightness(clip)
    if upright < 0:
        raise MotionError(
            clip.where,
            "the root",
            f"is upside down (cosine of its tilt {upright:.2f})",
            "check the order of the quaternions with st-rl motion inspect, and convert it with --quat-order",
        )
    clip = resample(clip, fps)
    lowest = lowest_heights(robot, clip_to_qpos_qvel(robot, clip)[0])
    if float(np.median(lowest)) < -_MAX_GROUND_DISTANCE or float(lowest.min()) > _MAX_GROUND_DISTANCE:
        where = "below" if lowest.min() < 0 else "above"
        raise MotionError(
            clip.where,
            "the robot",
            f"is {abs(float(np.median(lowest))):.2f} m {where} the ground",
            "put it on the ground: st-rl motion edit CLIP OUT --ground constant",
        )
    if float(lowest.min()) < -_NOTABLE_PENETRATION:
        logger.warning(
            f"{clip.where}: up to {-float(lowest.min()):.3f} m below the ground; "
            "st-rl motion edit CLIP OUT --ground smooth raises it"
        )
    return clip
