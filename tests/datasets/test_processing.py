"""Order of joints, frame rate, length, left and right."""

from dataclasses import replace

import numpy as np
import pytest

from st_rl.datasets.clip import Bodies, MotionError, make_clip
from st_rl.datasets.formats import read_motion, write_motion
from st_rl.datasets.processing import cut, mirror, reorder_joints, resample
from st_rl.utils.tensors.splines import evaluate_spline
from tests.datasets.clips import FEET, JOINTS, random_quaternions, some_clip

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


# Frequencies, Hz, of a motion with known derivatives.
HERTZ = np.array([0.7, 1.3, 2.0, 0.4, 1.0])


def analytic_motion(time):
    """Joint positions, root positions and rotations about a fixed axis, and their velocities, at `time (F,)`."""
    rates = 2.0 * np.pi * HERTZ
    axis, angle, rate = np.array([1.0, 2.0, 2.0]) / 3.0, 0.3 * np.sin(4.0 * time), 1.2 * np.cos(4.0 * time)
    rotation = np.concatenate([np.cos(0.5 * angle)[:, None], np.sin(0.5 * angle)[:, None] * axis], axis=1)
    joints, root = np.sin(time[:, None] * rates), 0.2 * np.cos(time[:, None] * rates[:3])
    joint_vel, root_vel = rates * np.cos(time[:, None] * rates), -0.2 * rates[:3] * np.sin(time[:, None] * rates[:3])
    return (joints, root, rotation), (joint_vel, root_vel, rate[:, None] * axis)


@pytest.mark.parametrize(
    ("file", "format", "has_velocities"),
    [
        ("clip.json", "amp", True),
        ("clip.pkl", "amp", True),
        ("clip.npz", "isaaclab", True),
        ("clip.npz", "mjlab", True),
        ("clip.pkl", "gmr", False),
        ("clip.csv", "csv", False),
    ],
)
@pytest.mark.parametrize(("fps", "output_fps"), [(30.0, 50.0), (120.0, 50.0), (50.0, 50.0)])
def test_every_format_resamples_to_the_positions_and_velocities_of_the_motion(
    tmp_path, file, format, has_velocities, fps, output_fps
):
    positions, velocities = analytic_motion(np.arange(int(3 * fps) + 1) / fps)
    names = ("joint_vel", "root_lin_vel", "root_ang_vel")
    clip = make_clip("some", fps, JOINTS, *positions, **dict(zip(names, velocities)))
    write_motion(tmp_path / file, clip, format)
    (read,) = read_motion(tmp_path / file, joint_names=None if format == "amp" else JOINTS, fps=fps)
    assert bool(read.estimated) is not has_velocities
    got = resample(read, output_fps)
    expected, expected_vel = analytic_motion(np.arange(151) / output_fps)
    assert got.num_frames == 151
    for name, values in zip(("joint_pos", "root_pos", "root_rot"), expected):
        np.testing.assert_allclose(getattr(got, name), values, atol=1e-3, err_msg=name)
    for name, values in zip(names, expected_vel):
        error = np.abs(getattr(got, name) - values) / np.abs(values).max()
        assert error[4:-4].max() < 4e-3, name
        # At both ends a velocity that the file lacks follows from one side only.
        assert error.max() < (4e-3 if has_velocities else 2e-2), name


def test_resampled_feet_and_bodies_follow_the_same_splines():
    clip = full_clip()
    got = resample(clip, 73.0)
    time = np.arange(got.num_frames) * 50.0 / 73.0
    np.testing.assert_allclose(got.feet.pos, evaluate_spline(clip.feet.pos, time)[0])
    np.testing.assert_allclose(got.bodies.ang_vel, evaluate_spline(clip.bodies.ang_vel, time)[0])
    without = make_clip(
        "x", 50.0, JOINTS, clip.joint_pos, clip.root_pos, clip.root_rot, feet=(FEET, clip.feet.pos, None)
    )
    feet = resample(without, 73.0).feet
    np.testing.assert_allclose(feet.vel, 50.0 * evaluate_spline(clip.feet.pos, time)[1])


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
