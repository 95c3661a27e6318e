"""Order of joints, frame rate, length, left and right."""

from dataclasses import replace

import numpy as np
import pytest

from st_rl.datasets.clip import Bodies, MotionError
from st_rl.datasets.processing import cut, mirror, reorder_joints, resample
from tests.datasets.clips import JOINTS, random_quaternions, smooth_rotations, some_clip

ARRAYS = ("joint_pos", "joint_vel", "root_pos", "root_rot", "root_lin_vel", "root_ang_vel")


def full_clip():
    clip = some_clip(num_frames=9)
    rng = np.random.default_rng(1)
    bodies = (rng.normal(size=(9, 3, 3)), random_quaternions(rng, 9, 3), *rng.normal(size=(2, 9, 3, 3)))
    return replace(clip, bodies=Bodies(("trunk", "FL_calf", "FR_calf"), *bodies))


def test_joints_are_reordered_by_name_and_others_left_out():
    clip = some_clip()
    order = ("FR_knee_joint", "FL_hip_joint")
    got = reorder_joints(clip, order)
    assert got.joint_names == order
    np.testing.assert_array_equal(got.joint_pos, clip.joint_pos[:, [3, 0]])
    np.testing.assert_array_equal(got.joint_vel, clip.joint_vel[:, [3, 0]])


def test_unknown_joints_suggest_nearest():
    with pytest.raises(
        MotionError, match=r"some: joint_names lack FR_hip_jnt;.*nearest to 'FR_hip_jnt': 'FR_hip_joint'"
    ):
        reorder_joints(some_clip(), ("FR_hip_jnt", *JOINTS))


def test_resampling_is_interpolation():
    clip = some_clip(num_frames=11, fps=20.0)
    got = resample(clip, 50.0)
    assert got.fps == 50.0
    assert got.num_frames == 26
    old, new = np.arange(11) / 20.0, np.arange(26) / 50.0
    for name in ("joint_pos", "joint_vel", "root_pos", "root_lin_vel", "root_ang_vel"):
        expected = np.stack([np.interp(new, old, column) for column in getattr(clip, name).T], axis=1)
        np.testing.assert_allclose(getattr(got, name), expected, atol=1e-12)
    np.testing.assert_allclose(got.feet.pos[:, 1, 2], np.interp(new, old, clip.feet.pos[:, 1, 2]))
    # A rotation at a constant rate stays one.
    np.testing.assert_allclose(np.abs((got.root_rot * smooth_rotations(new)).sum(axis=1)), 1.0, atol=1e-12)


def test_resampling_to_the_same_rate_changes_nothing():
    clip = full_clip()
    got = resample(clip, clip.fps)
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(got, name), getattr(clip, name), atol=1e-12)


def test_resampling_keeps_estimated_fields():
    clip = some_clip(joint_vel=None)
    assert resample(clip, 100.0).estimated == clip.estimated == ("joint_vel",)


def test_resampling_needs_two_frames():
    with pytest.raises(MotionError, match="leaves one frame"):
        resample(some_clip(num_frames=3), 1.0)
    with pytest.raises(MotionError, match="fps is 0"):
        resample(some_clip(), 0.0)


def test_cut_includes_both_ends():
    clip = full_clip()
    got = cut(clip, 0.04, 0.1)
    np.testing.assert_array_equal(got.joint_pos, clip.joint_pos[2:6])
    np.testing.assert_array_equal(got.feet.vel, clip.feet.vel[2:6])
    np.testing.assert_array_equal(got.bodies.rot, clip.bodies.rot[2:6])
    with pytest.raises(MotionError, match=r"choose times between 0 and 0\.16 s"):
        cut(clip, 0.1, 0.1)


def test_mirroring_twice_gives_the_clip_back():
    clip = full_clip()
    twice = mirror(mirror(clip))
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(twice, name), getattr(clip, name))
    np.testing.assert_array_equal(twice.feet.pos, clip.feet.pos)
    for name in ("pos", "rot", "lin_vel", "ang_vel"):
        np.testing.assert_array_equal(getattr(twice.bodies, name), getattr(clip.bodies, name))


def test_mirror_swaps_left_and_right():
    clip = full_clip()
    got = mirror(clip)
    left, right = JOINTS.index("FL_hip_joint"), JOINTS.index("FR_hip_joint")
    np.testing.assert_array_equal(got.joint_pos[:, left], -clip.joint_pos[:, right])
    knee, other = JOINTS.index("FL_knee_joint"), JOINTS.index("FR_knee_joint")
    np.testing.assert_array_equal(got.joint_vel[:, knee], clip.joint_vel[:, other])
    np.testing.assert_array_equal(got.joint_pos[:, 4], -clip.joint_pos[:, 4])
    np.testing.assert_array_equal(got.root_pos, clip.root_pos * [1, -1, 1])
    np.testing.assert_array_equal(got.root_ang_vel, clip.root_ang_vel * [-1, 1, -1])
    np.testing.assert_array_equal(got.feet.pos[:, 0], clip.feet.pos[:, 1] * [1, -1, 1])
    # The mirror image of a rotation is the rotation seen in the mirror: M R M.
    for q, m in zip(clip.root_rot, got.root_rot):
        flip = np.diag([1.0, -1.0, 1.0])
        np.testing.assert_allclose(matrix(m), flip @ matrix(q) @ flip, atol=1e-12)


def matrix(q):
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def test_rejects_joint_without_mirror_sign():
    clip = some_clip(joints=("left_tail", "right_tail", "a_knee", "b_knee", "c_knee"))
    with pytest.raises(MotionError, match="names have no mirror image"):
        mirror(clip)
    assert mirror(clip, {"tail": -1}).num_frames == clip.num_frames
