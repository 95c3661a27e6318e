"""Clips as states of a robot's model."""

from collections.abc import Sequence

import numpy as np

from st_rl.datasets.clip import MotionClip
from st_rl.datasets.processing import reorder_joints
from st_rl.sim.robots import Robot
from st_rl.utils.tensors import rotations


def clip_to_qpos_qvel(robot: Robot, clip: MotionClip) -> tuple[np.ndarray, np.ndarray]:
    """Positions `(F, nq)` and velocities `(F, nv)` of the model in a clip; MotionError if it lacks a joint."""
    base = robot.require_locomotion("a motion")
    clip = reorder_joints(clip, robot.joint_names)
    qpos = np.tile(robot.default_qpos, (clip.num_frames, 1))
    qpos[:, base.qpos : base.qpos + 3] = clip.root_pos
    qpos[:, base.qpos + 3 : base.qpos + 7] = clip.root_rot
    qpos[:, list(robot.qpos_indices)] = clip.joint_pos
    qvel = np.zeros((clip.num_frames, robot.model.nv))
    qvel[:, base.qvel : base.qvel + 3] = clip.root_lin_vel
    # The angular velocity of a free joint is in the body frame.
    qvel[:, base.qvel + 3 : base.qvel + 6] = rotations.rotate_inverse(clip.root_rot, clip.root_ang_vel)
    qvel[:, list(robot.qvel_indices)] = clip.joint_vel
    return qpos, qvel


def clips_to_qpos_qvel(robot: Robot, clips: Sequence[MotionClip]) -> tuple[np.ndarray, np.ndarray]:
    """The same for all clips, one after the other."""
    qpos, qvel = zip(*(clip_to_qpos_qvel(robot, clip) for clip in clips))
    return np.concatenate(qpos), np.concatenate(qvel)
