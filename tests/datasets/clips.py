"""Clips for tests: smooth random motions of a small robot."""

import numpy as np

from st_rl.datasets.clip import make_clip

JOINTS = ("FL_hip_joint", "FL_knee_joint", "FR_hip_joint", "FR_knee_joint", "waist_yaw_joint")
FEET = ("FL_foot", "FR_foot")


def random_quaternions(rng, *shape):
    q = rng.normal(size=(*shape, 4))
    return q / np.linalg.norm(q, axis=-1, keepdims=True)


def smooth_rotations(time, axis=(0.3, -0.5, 0.8), rate=1.7):
    """Rotations `(F, 4)` w, x, y, z about a fixed axis at a constant rate."""
    axis = np.array(axis) / np.linalg.norm(axis)
    return np.concatenate([np.cos(0.5 * rate * time)[:, None], np.sin(0.5 * rate * time)[:, None] * axis], axis=1)


def some_clip(num_frames=12, fps=50.0, joints=JOINTS, seed=0, name="some", **changes):
    """A clip with velocities, feet and bodies that are not derived from its positions."""
    rng = np.random.default_rng(seed)
    time = np.arange(num_frames) / fps
    given = {
        "joint_vel": rng.normal(size=(num_frames, len(joints))),
        "root_lin_vel": rng.normal(size=(num_frames, 3)),
        "root_ang_vel": rng.normal(size=(num_frames, 3)),
        "feet": (FEET, rng.normal(size=(num_frames, 2, 3)), rng.normal(size=(num_frames, 2, 3))),
        "weight": 2.5,
    }
    return make_clip(
        name,
        fps,
        joints,
        rng.normal(size=(num_frames, len(joints))),
        rng.normal(size=(num_frames, 3)),
        smooth_rotations(time),
        **(given | changes),
    )
