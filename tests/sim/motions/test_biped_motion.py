"""A generated biped walk, compared with MuJoCo kinematics and inverted-pendulum dynamics."""

import mujoco
import numpy as np
import pytest

from st_rl.datasets.gaits import BIPED_GAITS, GRAVITY, foot_phases, make_biped_gait
from st_rl.datasets.gaits.biped import solve_leg_joints
from st_rl.datasets.library import load_clips, motion_paths
from st_rl.datasets.processing import mirror
from st_rl.sim.motions.clips import add_body_poses
from st_rl.sim.motions.geometry import biped_geometry
from st_rl.sim.robots import Robot, robot_path

GAIT = BIPED_GAITS["walk"]
SIDES = ("left", "right")


@pytest.fixture(scope="module")
def robot():
    return Robot.from_mjcf(robot_path("humanoid"))


@pytest.fixture(scope="module")
def geometry(robot):
    return biped_geometry(robot)


def feet_in_base(robot, joints):
    """Ankles `(2, 3)` and rotations of the feet `(2, 3, 3)` in the frame of the base, as MuJoCo computes them."""
    data = mujoco.MjData(robot.model)
    data.qpos[:] = 0.0
    data.qpos[3] = 1.0
    data.qpos[7:] = joints
    mujoco.mj_kinematics(robot.model, data)
    bodies = [data.body(f"{side}_foot") for side in SIDES]
    return np.stack([body.xpos for body in bodies]), np.stack([body.xmat.reshape(3, 3) for body in bodies])


def test_inverse_kinematics_recovers_joints_of_mujoco(robot, geometry):
    rng = np.random.default_rng(0)
    low, high = np.array([-1.2, -0.3, -0.8, 0.1, -0.7, -0.3]), np.array([0.6, 0.3, 0.8, 1.8, 0.4, 0.3])
    for legs in rng.uniform(low, high, size=(30, 2, 6)):
        joints = robot.default_joint_pos.copy()
        joints[geometry.legs] = legs
        ankles, rotations = feet_in_base(robot, joints)
        np.testing.assert_allclose(solve_leg_joints(geometry, ankles, rotations), legs, atol=1e-9)


def test_geometry_is_that_of_the_file(robot, geometry):
    names = np.array(geometry.joint_names)
    parts = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
    assert names[geometry.legs].tolist() == [[f"{side}_{part}_joint" for part in parts] for side in SIDES]
    assert [names[shoulder] for shoulder in geometry.shoulders] == [f"{side}_shoulder_pitch_joint" for side in SIDES]
    assert geometry.foot_names == ("left_foot", "right_foot")
    assert (geometry.thigh, geometry.shin) == (0.3, 0.3)


def test_rejects_robot_of_other_geometry(tmp_path):
    with pytest.raises(
        ValueError, match=r"quadruped.xml is not a biped that a walk can be synthesized for.*record a policy"
    ):
        biped_geometry(Robot.from_mjcf(robot_path("quadruped")))
    crooked = (
        robot_path("humanoid")
        .read_text()
        .replace('name="left_shin" pos="0 0 -0.30"', 'name="left_shin" pos="0.01 0 -0.3"')
    )
    path = tmp_path / "crooked.xml"
    path.write_text(crooked)
    with pytest.raises(ValueError, match="not a biped"):
        biped_geometry(Robot.from_mjcf(path))


@pytest.mark.parametrize("speed", [0.2, 0.8])
def test_standing_feet_are_flat_and_still_and_swinging_feet_clear_the_ground(robot, geometry, speed):
    clip = add_body_poses(robot, make_biped_gait(geometry, "walk", speed, fps=200.0, strides=2))
    stance = foot_phases(GAIT, np.arange(clip.num_frames) / clip.fps) < GAIT.stance_fraction
    np.testing.assert_allclose(clip.feet.pos[..., 2][stance], geometry.foot_height, atol=1e-9)
    np.testing.assert_allclose(clip.feet.vel[stance], 0.0, atol=5e-3)
    assert clip.feet.pos[..., 2].max() == pytest.approx(geometry.foot_height + GAIT.swing_height, abs=2e-3)
    places = [clip.bodies.names.index(f"{side}_foot") for side in SIDES]
    np.testing.assert_allclose(np.abs(clip.bodies.rot[:, places, 0]), 1.0, atol=1e-9)
    low, high = robot.joint_range.T
    assert ((clip.joint_pos > low) & (clip.joint_pos < high)).all()


def test_center_of_mass_is_inverted_pendulum(geometry):
    clip = make_biped_gait(geometry, "walk", 0.6, fps=1000.0, strides=1)
    phase = foot_phases(GAIT, np.arange(clip.num_frames) / clip.fps)
    acceleration = np.gradient(np.gradient(clip.root_pos[:, :2], axis=0), axis=0) * 1e6
    height = GAIT.base_height + geometry.centre_of_mass[2]
    pressure = clip.root_pos[:, :2] + [geometry.centre_of_mass[0], 0.0] - acceleration * height / GRAVITY
    for foot, other in ((0, 1), (1, 0)):
        # In single support, away from the weight transfer.
        alone = (phase[:, other] > GAIT.stance_fraction + 0.1) & (phase[:, other] < 0.9)
        apart = np.abs(pressure - clip.feet.pos[:, foot, :2])[alone]
        assert apart.max() < 0.015  # well within the sole
    # It sways towards the stance foot, by less than the step width.
    left_alone = (phase[:, 1] > 0.7) & (phase[:, 1] < 0.9)
    assert (clip.root_pos[left_alone, 1] > 0.005).all()
    assert np.abs(clip.root_pos[:, 1]).max() < 0.03


def test_walk_is_mirrored_after_half_a_stride(geometry):
    clip = make_biped_gait(geometry, "walk", 0.5, fps=50.0, strides=2)
    half = round(0.5 * GAIT.period_s * clip.fps)
    np.testing.assert_allclose(mirror(clip).joint_pos[:-half], clip.joint_pos[half:], atol=1e-9)
    np.testing.assert_allclose(clip.joint_pos[-1], clip.joint_pos[0], atol=1e-9)


def test_arms_swing_against_the_legs(geometry):
    clip = make_biped_gait(geometry, "walk", 0.8, fps=100.0, strides=1)
    ahead = clip.feet.pos[:, 0, 0] - clip.feet.pos[:, 1, 0]
    left, right = (clip.joint_pos[:, shoulder] for shoulder in geometry.shoulders)
    # A positive shoulder angle moves the arm back.
    assert np.corrcoef(ahead, left - right)[0, 1] > 0.9
    assert 0.3 < np.ptp(left) < 1.2


def test_velocities_equal_finite_differences(robot, geometry):
    clip = make_biped_gait(geometry, "walk", 0.5, fps=1000.0, strides=1)
    moving = (clip.joint_pos[2:] - clip.joint_pos[:-2]) * 500.0
    assert np.median(np.abs(moving - clip.joint_vel[1:-1])) < 2e-3
    np.testing.assert_allclose((clip.root_pos[2:] - clip.root_pos[:-2]) * 500.0, clip.root_lin_vel[1:-1], atol=1e-3)
    np.testing.assert_allclose(add_body_poses(robot, clip).feet.vel, clip.feet.vel, atol=1e-4)


def test_rejects_walk_that_is_too_fast(geometry):
    with pytest.raises(ValueError, match=r"out of reach.*walk slower"):
        make_biped_gait(geometry, "walk", 2.0)
    with pytest.raises(ValueError, match="fps is 0"):
        make_biped_gait(geometry, "walk", 0.5, fps=0)


def test_built_in_clips_equal_output_of_motion_make(geometry):
    assert [path.stem for path in motion_paths("walk")] == ["walk_0.2", "walk_0.4", "walk_0.6", "walk_0.8"]
    for clip, speed in zip(load_clips("walk"), (0.2, 0.4, 0.6, 0.8)):
        made = make_biped_gait(geometry, "walk", speed)
        np.testing.assert_allclose(clip.joint_pos, made.joint_pos, atol=1e-5)
        assert clip.root_lin_vel[:, 0].mean() == pytest.approx(speed, abs=0.02)
