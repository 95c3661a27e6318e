"""Squat, wave, kick and turn: contact, limits, continuity and balance, computed from MuJoCo and finite differences."""

import mujoco
import numpy as np
import pytest

from st_rl.cli import main
from st_rl.cli.commands.motion.verdict import find_verdict
from st_rl.datasets.checks import find_velocity_problems
from st_rl.datasets.editing import blend_clips
from st_rl.datasets.library import load_clips
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.motions.clips import add_body_poses
from st_rl.sim.motions.inspection import find_defects, find_jumps
from st_rl.sim.motions.standing_motions import STANDING_MOTIONS, make_standing_motion
from st_rl.sim.robots import Robot, robot_path
from st_rl.utils.tensors import rotations

SIDES = ("left", "right")
FPS = 200.0


@pytest.fixture(scope="module")
def robot():
    return Robot.from_mjcf(robot_path("humanoid"))


@pytest.fixture(scope="module", params=STANDING_MOTIONS)
def clip(robot, request):
    """A clip with the feet and bodies of MuJoCo's kinematics."""
    return add_body_poses(robot, make_standing_motion(robot, request.param, FPS))


def soles(robot, clip):
    """Corners of the soles `(F, 2, 4, 3)` in the world."""
    sizes = [robot.model.geom(f"{side}_foot").size for side in SIDES]
    signs = np.array([[x, y, -1.0] for x in (-1.0, 1.0) for y in (-1.0, 1.0)])
    places = [clip.bodies.names.index(f"{side}_foot") for side in SIDES]
    corners = np.stack([size * signs for size in sizes])
    return clip.feet.pos[:, :, None] + rotations.rotate(clip.bodies.rot[:, places][:, :, None], corners)


def test_feet_on_the_ground_are_flat_and_still_and_others_clear_it(robot, clip):
    corners = soles(robot, clip)
    assert corners[..., 2].min() > -1e-9
    is_down = corners[..., 2].max(axis=2) < 1e-4
    assert is_down.any(axis=1).all()
    # While the highest corner is within 0.1 mm of the ground no corner moves along it.
    speed = np.linalg.norm(np.gradient(corners, 1.0 / FPS, axis=0)[..., :2], axis=-1).max(axis=2)
    inner = is_down & np.roll(is_down, 1, axis=0) & np.roll(is_down, -1, axis=0)
    assert speed[inner].max() < 1e-3
    in_air = {"squat": [], "wave": [], "kick": [0], "turn": [0, 1]}[clip.name]
    assert [foot for foot in (0, 1) if corners[:, foot, :, 2].min(axis=1).max() > 0.04] == in_air


def test_joint_limits_are_kept_with_a_margin(robot, clip):
    low, high = robot.joint_range.T
    assert np.minimum(clip.joint_pos - low, high - clip.joint_pos).min() > 0.05
    assert np.abs(clip.joint_vel).max() < 10.0


def test_begins_and_ends_at_rest_in_the_standing_pose(robot, clip):
    for frame in (0, -1):
        np.testing.assert_allclose(clip.joint_pos[frame], robot.default_joint_pos, atol=1e-6)
        for velocity in (clip.joint_vel, clip.root_lin_vel, clip.root_ang_vel):
            np.testing.assert_allclose(velocity[frame], 0.0, atol=1e-9)
    assert clip.root_pos[0, 2] == pytest.approx(clip.root_pos[-1, 2]) == pytest.approx(robot.default_qpos[2], abs=1e-3)


def test_motion_is_smooth_and_velocities_are_those_of_positions(clip):
    np.testing.assert_allclose(
        clip.joint_vel[1:-1], (clip.joint_pos[2:] - clip.joint_pos[:-2]) * FPS / 2.0, rtol=0, atol=1e-9
    )
    assert find_velocity_problems(clip) == []
    # No step of the joint velocity: it would be an acceleration of 2000 rad/s^2 for 0.1 rad per frame at this rate.
    assert np.abs(np.diff(clip.joint_vel, axis=0)).max() * FPS < 150.0


def zero_moment_point(robot, clip):
    """The point of the ground `(F, 2)` about which ground forces have no horizontal moment, from the momentum."""
    model, data = robot.model, mujoco.MjData(robot.model)
    com, linear, angular = (np.empty((clip.num_frames, 3)) for _ in range(3))
    for frame, (data.qpos[:], data.qvel[:]) in enumerate(zip(*clip_to_qpos_qvel(robot, clip))):
        mujoco.mj_forward(model, data)
        mujoco.mj_subtreeVel(model, data)
        com[frame], linear[frame] = data.subtree_com[1], data.subtree_linvel[1] * robot.mass
        angular[frame] = data.subtree_angmom[1]
    force = np.gradient(linear, 1.0 / FPS, axis=0) + np.array([0.0, 0.0, 9.81 * robot.mass])
    moment = np.gradient(angular, 1.0 / FPS, axis=0)
    x = com[:, 0] - (force[:, 0] * com[:, 2] + moment[:, 1]) / force[:, 2]
    y = com[:, 1] - (force[:, 1] * com[:, 2] - moment[:, 0]) / force[:, 2]
    return np.stack([x, y], axis=1), force


def test_zero_moment_point_stays_inside_the_soles_on_the_ground(robot, clip):
    points, force = zero_moment_point(robot, clip)
    corners = soles(robot, clip)
    is_down = corners[..., 2].max(axis=2) < 1e-4
    angle = np.arange(72) * np.pi / 36
    directions = np.stack([np.cos(angle), np.sin(angle)])
    # Distance from the point to the convex hull of the corners, by its support function.
    reach = np.where(is_down[..., None, None], corners[..., :2] @ directions, -np.inf).max(axis=(1, 2))
    assert (reach - points @ directions).min() > 0.01
    assert force[:, 2].min() > 0.5 * 9.81 * robot.mass


def test_verdict_is_usable(robot, clip):
    found = find_defects(robot, clip)
    assert find_verdict(clip, found, None) == "usable"
    assert not found.limits
    assert not found.jumps
    assert found.max_slide < 1e-3
    assert found.penetration < 1e-6


def test_squat_lowers_kick_reaches_forward_and_turn_turns(robot):
    squat, kick, turn = (make_standing_motion(robot, name) for name in ("squat", "kick", "turn"))
    assert np.ptp(squat.root_pos[:, 2]) == pytest.approx(0.2, abs=1e-3)
    assert np.ptp(kick.feet.pos[:, 0, 0]) > 0.5
    assert np.linalg.norm(kick.feet.vel[:, 0], axis=1).max() > 2.0
    np.testing.assert_allclose(turn.root_rot[-1], [np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)], atol=1e-9)
    assert turn.root_ang_vel[:, 2].sum() / turn.fps == pytest.approx(np.pi / 2, abs=0.01)


def test_right_hand_waves_beside_the_head(robot):
    wave = add_body_poses(robot, make_standing_motion(robot, "wave"))
    places = [wave.bodies.names.index(f"right_{part}") for part in ("upper_arm", "forearm")]
    shoulder, elbow = (wave.bodies.pos[:, place] for place in places)
    axis = rotations.rotate(wave.bodies.rot[:, places[1]], np.array([0.0, 0.0, -1.0]))
    is_raised = elbow[:, 2] > shoulder[:, 2] - 0.05
    assert 1.5 < is_raised.sum() / wave.fps < 3.0
    assert axis[is_raised, 2].min() > 0.45  # The forearm points up,
    sideways = axis[is_raised, 1]
    assert np.ptp(sideways) > 0.7  # and swings to the sides,
    assert (np.diff(np.sign(np.diff(sideways))) != 0).sum() >= 5  # three times.


def test_clips_can_be_joined(robot):
    joined, *others = (make_standing_motion(robot, name) for name in ("turn", "squat", "wave", "kick"))
    for other in others:
        joined = blend_clips(joined, other, 0.1)
    assert not find_jumps(joined)
    found = find_defects(robot, joined)
    assert find_verdict(joined, found, None) == "usable"
    assert found.max_slide < 0.02


def test_built_in_clips_equal_output_of_motion_make(robot, tmp_path, capsys):
    for name in STANDING_MOTIONS:
        assert main(["motion", "make", name, "--output", str(tmp_path)]) == 0
        (made,), (kept,) = load_clips(str(tmp_path / f"{name}.npz")), load_clips(name)
        assert made.fps == kept.fps == 50.0
        np.testing.assert_allclose(kept.joint_pos, made.joint_pos, atol=1e-5)
        np.testing.assert_allclose(kept.joint_vel, made.joint_vel, atol=1e-4)
    assert main(["motion", "inspect", *STANDING_MOTIONS]) == 0
    shown = capsys.readouterr().out
    assert [f"{name}: usable" in shown for name in STANDING_MOTIONS] == [True] * 4
    assert "humanoid: can follow all clips" in shown


def test_rejects_robot_without_arms(tmp_path):
    text = robot_path("humanoid").read_text().replace("left_elbow_joint", "left_hinge")
    (tmp_path / "other.xml").write_text(text)
    with pytest.raises(ValueError, match=r"other.xml has no joint left_elbow_joint: .*record a policy"):
        make_standing_motion(Robot.from_mjcf(tmp_path / "other.xml"), "wave")
