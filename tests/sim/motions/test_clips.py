"""Generated gaits and clips, compared with MuJoCo kinematics."""

from dataclasses import replace
from xml.etree import ElementTree

import mujoco
import numpy as np
import pytest
import torch

from st_rl.datasets.clip import MotionError
from st_rl.datasets.gaits import QUADRUPED_GAITS, foot_phases, make_quadruped_gait
from st_rl.datasets.gaits.quadruped import solve_leg_joints
from st_rl.datasets.library import CLIPS, load_clips, motion_paths
from st_rl.datasets.processing import reorder_joints
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.motions.clips import add_body_poses, record_policy, render_clip
from st_rl.sim.motions.geometry import quadruped_geometry
from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.tasks import make_task

LEGS = ("FR", "FL", "RR", "RL")
PAIRS = {
    "trot": [("FR", "RL"), ("FL", "RR")],
    "pace": [("FR", "RR"), ("FL", "RL")],
    "bound": [("FR", "FL"), ("RR", "RL")],
}


@pytest.fixture(scope="module")
def robot():
    return Robot.from_mjcf(robot_path("quadruped"))


@pytest.fixture(scope="module")
def geometry(robot):
    return quadruped_geometry(robot)


def feet_in_base(robot, joints):
    """Feet `(4, 3)` in the frame of the base, as MuJoCo computes them."""
    data = mujoco.MjData(robot.model)
    data.qpos[:] = 0.0
    data.qpos[3] = 1.0
    data.qpos[7:] = joints
    mujoco.mj_kinematics(robot.model, data)
    return np.stack([data.geom(f"{leg}_foot").xpos for leg in LEGS])


def random_joints(rng, count):
    return np.stack(
        [rng.uniform(low, high, size=(count, 4)) for low, high in ((-0.6, 0.6), (-0.2, 1.5), (-2.4, -1.0))], -1
    )


def test_inverse_kinematics_matches_mujoco_feet(robot, geometry):
    rng = np.random.default_rng(0)
    for joints in random_joints(rng, 20).reshape(20, 12):
        feet = feet_in_base(robot, joints)
        again = feet_in_base(robot, solve_leg_joints(geometry, feet))
        np.testing.assert_allclose(again, feet, atol=1e-9)


def rearranged(path, order, change=lambda legs: None):
    """The quadruped with its legs in another order, written to a file."""
    tree = ElementTree.parse(robot_path("quadruped"))
    (trunk,) = (body for body in tree.iter("body") if body.get("name") == "trunk")
    legs = {body.get("name")[:2]: body for body in trunk.findall("body")}
    for leg in legs.values():
        trunk.remove(leg)
    trunk.extend(legs[leg] for leg in order)
    change(legs)
    tree.write(path)
    return Robot.from_file(path)


@pytest.mark.parametrize("name", PAIRS)
def test_gait_is_independent_of_leg_order(geometry, tmp_path, name):
    other = quadruped_geometry(rearranged(tmp_path / "robot.xml", ("RL", "FR", "FL", "RR")))
    assert other.foot_names == geometry.foot_names
    made, expected = (make_quadruped_gait(g, name, 0.5) for g in (other, geometry))
    np.testing.assert_allclose(reorder_joints(made, expected.joint_names).joint_pos, expected.joint_pos, atol=1e-9)


def test_rejects_legs_of_different_lengths(tmp_path):
    def shorten(legs):
        (foot,) = (geom for geom in legs["RL"].iter("geom") if geom.get("name") == "RL_foot")
        foot.set("pos", "0 0 -0.15")

    with pytest.raises(ValueError, match="gaits can be synthesized for: it needs four legs of the same lengths"):
        quadruped_geometry(rearranged(tmp_path / "robot.xml", LEGS, shorten))


def test_rejects_foot_out_of_reach(geometry):
    with pytest.raises(ValueError, match=r"out of reach.*walk slower"):
        solve_leg_joints(geometry, geometry.hips + np.array([0.0, 0.0, -0.6]))
    with pytest.raises(ValueError, match="out of reach"):
        make_quadruped_gait(geometry, "trot", 9.0)


@pytest.mark.parametrize("name", QUADRUPED_GAITS)
def test_stance_feet_do_not_move_and_swing_feet_clear_the_ground(robot, geometry, name):
    clip = add_body_poses(robot, make_quadruped_gait(geometry, name, 0.6, fps=200.0, strides=2))
    gait = QUADRUPED_GAITS[name]
    phase = foot_phases(gait, np.arange(clip.num_frames) / clip.fps)
    stance = phase < gait.stance_fraction
    np.testing.assert_allclose(clip.feet.pos[..., 2][stance], geometry.foot_radius, atol=1e-9)
    np.testing.assert_allclose(clip.feet.vel[stance], 0.0, atol=5e-3)
    assert clip.feet.pos[..., 2].max() == pytest.approx(geometry.foot_radius + gait.swing_height, abs=2e-3)
    low, high = robot.joint_range.T
    assert ((clip.joint_pos > low) & (clip.joint_pos < high)).all()


@pytest.mark.parametrize("name", QUADRUPED_GAITS)
def test_velocities_equal_finite_differences(robot, geometry, name):
    clip = make_quadruped_gait(geometry, name, 0.5, fps=1000.0, strides=1)
    moving = (clip.joint_pos[2:] - clip.joint_pos[:-2]) * 500.0
    # Accelerations are discontinuous at lift-off and touch-down.
    assert np.median(np.abs(moving - clip.joint_vel[1:-1])) < 2e-3
    np.testing.assert_allclose((clip.root_pos[2:] - clip.root_pos[:-2]) * 500.0, clip.root_lin_vel[1:-1], atol=1e-3)
    complete = add_body_poses(robot, clip)
    np.testing.assert_allclose(complete.feet.vel, clip.feet.vel, atol=1e-4)
    np.testing.assert_allclose(complete.bodies.ang_vel[:, 0], clip.root_ang_vel, atol=1e-9)
    np.testing.assert_allclose(complete.bodies.lin_vel[:, 0], clip.root_lin_vel, atol=1e-9)


@pytest.mark.parametrize("name", QUADRUPED_GAITS)
@pytest.mark.parametrize("speed", [0.3, 0.9])
def test_pairs_of_feet_move_together_and_against_the_others(robot, geometry, name, speed):
    clip = make_quadruped_gait(geometry, name, speed, fps=100.0, strides=2)
    down = {leg: clip.feet.pos[:, i, 2] < geometry.foot_radius + 1e-6 for i, leg in enumerate(LEGS)}
    for one, other in PAIRS[name]:
        np.testing.assert_array_equal(down[one], down[other])
    first, second = PAIRS[name][0][0], PAIRS[name][1][0]
    half = round(0.5 * QUADRUPED_GAITS[name].period_s * 100)
    np.testing.assert_array_equal(down[first][:-half], down[second][half:])


def test_base_follows_rigid_body_dynamics(geometry):
    trot, pace, bound = (make_quadruped_gait(geometry, name, 0.5) for name in ("trot", "pace", "bound"))
    roll, pitch = (
        (lambda clip: 2 * np.abs(clip.root_rot[:, 1]).max()),
        (lambda clip: 2 * np.abs(clip.root_rot[:, 2]).max()),
    )
    # Diagonal feet balance; feet of one side roll the robot, those of one end pitch it.
    assert roll(trot) < 0.01
    assert pitch(trot) < 0.03
    assert 0.1 < roll(pace) < 0.35
    assert pitch(pace) < 0.03
    assert 0.1 < pitch(bound) < 0.35
    assert roll(bound) < 0.01
    # While the right feet are in contact, the right side is pushed up.
    standing_right = foot_phases(QUADRUPED_GAITS["pace"], np.arange(pace.num_frames) / pace.fps)[:, 0]
    middle = int(np.argmin(np.abs(standing_right - 0.5 * QUADRUPED_GAITS["pace"].stance_fraction)))
    rolling = np.gradient(np.gradient(pace.root_rot[:, 1]))
    assert rolling[max(1, middle)] < 0


def test_last_frame_repeats_first(geometry):
    clip = make_quadruped_gait(geometry, "bound", 0.7, strides=3)
    assert clip.num_frames == round(3 * 0.32 * 50) + 1
    np.testing.assert_allclose(clip.joint_pos[-1], clip.joint_pos[0], atol=1e-9)
    np.testing.assert_allclose(clip.root_pos[-1] - clip.root_pos[0], [0.7 * 0.96, 0, 0], atol=1e-9)


def test_rejects_zero_repeats(robot, geometry, tmp_path):
    with pytest.raises(ValueError, match="repeats is 0; a video shows the clip at least once"):
        render_clip(robot, make_quadruped_gait(geometry, "trot", 0.5), tmp_path / "clip.mp4", repeats=0)
    assert not list(tmp_path.iterdir())


def test_rejects_robot_of_other_geometry():
    with pytest.raises(ValueError, match=r"cartpole.xml has no free joint"):
        quadruped_geometry(Robot.from_mjcf(robot_path("cartpole")))


def test_rows_of_the_model(robot, geometry):
    clip = make_quadruped_gait(geometry, "pace", 0.5)
    shuffled = replace(
        clip,
        joint_names=clip.joint_names[::-1],
        joint_pos=clip.joint_pos[:, ::-1],
        joint_vel=clip.joint_vel[:, ::-1],
    )
    qpos, qvel = clip_to_qpos_qvel(robot, shuffled)
    np.testing.assert_allclose(qpos[:, 7:], clip.joint_pos)
    np.testing.assert_allclose(qpos[:, 3:7], clip.root_rot)
    np.testing.assert_allclose(qvel[:, 6:], clip.joint_vel)
    # MuJoCo integrates these velocities to the next positions.
    step, data = 1e-4, qpos[10].copy()
    mujoco.mj_integratePos(robot.model, data, qvel[10], step)
    fine, _ = clip_to_qpos_qvel(robot, make_quadruped_gait(geometry, "pace", 0.5, fps=1 / step, strides=1))
    np.testing.assert_allclose(data, fine[round(10 / 50 / step) + 1], atol=1e-5)
    with pytest.raises(MotionError, match="joint_names lack FR_hip_joint"):
        clip_to_qpos_qvel(robot, replace(clip, joint_names=tuple(f"j{i}" for i in range(12))))


def test_built_in_clips_equal_output_of_motion_make(geometry):
    files = sorted(CLIPS.glob("*.npz"))
    assert [f.stem for f in files] == sorted(
        f"{name}_{speed}" for name in QUADRUPED_GAITS for speed in (0.3, 0.5, 0.7, 0.9)
    )
    for clip in load_clips(["trot", "pace", "bound"]):
        gait, speed = clip.name.rsplit("_", 1)
        made = make_quadruped_gait(geometry, gait, float(speed))
        for name in ("joint_pos", "joint_vel", "root_pos", "root_rot", "root_lin_vel", "root_ang_vel"):
            np.testing.assert_allclose(
                getattr(clip, name), getattr(made, name), atol=2e-5, err_msg=f"{clip.name} {name}"
            )
        np.testing.assert_allclose(clip.feet.pos, made.feet.pos, atol=1e-5)


def test_clips_by_name(tmp_path):
    assert [clip.name for clip in load_clips("trot_0.5")] == [clip.name for clip in load_clips(["trot_0.5"])]
    assert [path.stem for path in motion_paths("trot_0.5")] == ["trot_0.5"]
    assert len(motion_paths("bound")) == 4
    assert motion_paths(CLIPS / "pace_0.3.npz") == [CLIPS / "pace_0.3.npz"]
    assert len(motion_paths(CLIPS)) == 12
    with pytest.raises(
        MotionError, match=r"gallop: the motion is neither a file.*one of bound, kick, pace, squat, trot"
    ):
        motion_paths("gallop")
    with pytest.raises(MotionError, match="holds no motion files"):
        motion_paths(tmp_path)


def test_record_policy_returns_clip():
    task = make_task("quadruped-walk", 2, seed=1, cfg=None, **{"physics.num_threads": 1, "noise.level": 0.0})

    def policy(obs):
        return torch.zeros(2, 12)

    clip = record_policy(task, policy, "standing", 0.4, warmup_s=0.2, command=(0.0, 0.0, 0.0))
    assert clip.num_frames == 21
    assert clip.fps == pytest.approx(50.0)
    assert clip.joint_names == task.robot.joint_names
    np.testing.assert_allclose(clip.joint_pos[-1], task.joint_pos[0], atol=1e-6)
    assert clip.feet.names == tuple(f"{leg}_foot" for leg in LEGS)
    assert clip.bodies.names[0] == "trunk"

    def falls(obs):
        return torch.full((2, 12), 6.0)

    with pytest.raises(ValueError, match="episode ended after"):
        record_policy(task, falls, "falling", 2.0, warmup_s=0.0)
