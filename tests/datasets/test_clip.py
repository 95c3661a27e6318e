"""`MotionClip`: validation, and estimates of missing fields."""

import numpy as np
import pytest

from st_rl.datasets.clip import MotionError, frame_rate, make_clip, single_number
from tests.datasets.clips import smooth_rotations, some_clip

TIME = np.arange(101) / 50.0


def clip_without_velocities(**changes):
    values = {
        "joint_pos": np.stack([np.sin(3.0 * TIME), TIME**2], axis=1),
        "root_pos": np.stack([0.5 * TIME, np.cos(TIME), 0.3 + 0.0 * TIME], axis=1),
        "root_rot": smooth_rotations(TIME, axis=(1.0, 2.0, 2.0), rate=2.1),
    } | changes
    return make_clip("made", 50.0, ("a", "b"), **values)


def test_velocities_that_are_missing_are_estimated():
    clip = clip_without_velocities()
    assert clip.estimated == ("joint_vel", "root_lin_vel", "root_ang_vel")
    joint_vel = np.stack([3.0 * np.cos(3.0 * TIME), 2.0 * TIME], axis=1)
    np.testing.assert_allclose(clip.joint_vel, joint_vel, atol=5e-3)
    np.testing.assert_allclose(clip.root_lin_vel[:, 0], 0.5, atol=1e-9)
    np.testing.assert_allclose(clip.root_lin_vel[:, 1], -np.sin(TIME), atol=5e-4)
    # A constant rate about one axis, in the world: exact, at the ends too.
    np.testing.assert_allclose(clip.root_ang_vel, np.tile(2.1 * np.array([1, 2, 2]) / 3, (101, 1)), atol=1e-9)


def test_velocities_that_are_given_are_kept():
    given = np.full((101, 2), 7.0)
    clip = clip_without_velocities(joint_vel=given)
    np.testing.assert_array_equal(clip.joint_vel, given)
    assert "joint_vel" not in clip.estimated


def test_quaternion_signs_are_continuous_and_input_is_kept():
    q = smooth_rotations(TIME) * np.where(np.arange(101) % 3 == 0, -2.0 / 2.0, 1.0)[:, None]
    before = q.copy()
    clip = clip_without_velocities(root_rot=q * 1.02)
    assert ((clip.root_rot[1:] * clip.root_rot[:-1]).sum(axis=1) > 0.9).all()
    np.testing.assert_allclose(np.linalg.norm(clip.root_rot, axis=1), 1.0)
    np.testing.assert_array_equal(q, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"joint_pos": np.zeros((1, 2))}, r"made: joint_pos .*1 frame.*two frames"),
        ({"joint_pos": np.zeros((101, 3))}, r"made: joint_pos is 3 wide, but there are 2 joints \(a, b\).*joint_names"),
        ({"joint_pos": np.where(np.arange(202).reshape(101, 2) == 9, np.nan, 0.0)}, r"joint_pos .* frame 4 of 101"),
        ({"root_pos": np.zeros((100, 3))}, r"root_pos has shape \(100, 3\), expected \(101, 3\)"),
        ({"root_rot": np.zeros((101, 4))}, r"root_rot has a quaternion of length 0 at frame 0; .*order of the columns"),
        ({"root_lin_vel": np.full((101, 3), np.inf)}, "root_lin_vel is not a number at frame 0"),
        ({"weight": -1.0}, "weight is -1.0"),
        ({"root_pos": [[1, 2], [1]]}, "root_pos is not an array of numbers"),
    ],
)
def test_rejects_invalid_clip(change, message):
    with pytest.raises(MotionError, match=message):
        clip_without_velocities(**change)


def test_frame_rate_and_names_are_checked():
    zeros, rot = np.zeros((3, 2)), smooth_rotations(np.arange(3.0))
    with pytest.raises(MotionError, match=r"fps is 0.0; .*positive"):
        make_clip("x", 0.0, ("a", "b"), zeros, np.zeros((3, 3)), rot)
    with pytest.raises(MotionError, match="joint_names repeats a"):
        make_clip("x", 50.0, ("a", "a"), zeros, np.zeros((3, 3)), rot)


def test_time_stamps_give_the_frame_rate_and_must_rise_evenly():
    assert frame_rate("f", np.arange(11) * 0.04, 11) == pytest.approx(25.0)
    with pytest.raises(MotionError, match=r"f: time goes from 0.2 to 0.1 s at frame 3; sort the frames"):
        frame_rate("f", [0.0, 0.1, 0.2, 0.1, 0.3], 5)
    with pytest.raises(MotionError, match=r"time has steps from 0\.1 to 0\.3 s"):
        frame_rate("f", [0.0, 0.1, 0.2, 0.5], 4)
    with pytest.raises(MotionError, match="single frame"):
        frame_rate("f", [0.0], 1)
    with pytest.raises(MotionError, match=r"time has shape \(2,\), expected \(3,\)"):
        frame_rate("f", [0.0, 0.1], 3)


def test_accepts_scalar_in_array():
    for value in (30, 30.0, np.array(30.0), np.array([30]), [30]):
        assert single_number("f", "fps", value) == 30.0
    for value in (None, "soon", [], [30, 20], [[1], [2, 3]], float("nan")):
        with pytest.raises(MotionError, match=r"f: fps is .*; give a number"):
            single_number("f", "fps", value)


def test_length_counts_from_the_first_frame_to_the_last():
    assert some_clip(num_frames=11, fps=20.0).duration == pytest.approx(0.5)
