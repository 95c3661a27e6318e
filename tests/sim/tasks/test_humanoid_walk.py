"""The humanoid model and the tasks `humanoid-walk` and `humanoid-amp`."""

import math

import mujoco
import numpy as np
import pytest
import torch

from st_rl.sim.backends.warp_backend import max_ground_contacts
from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.tasks import find_task, make_task
from st_rl.sim.tasks.humanoid_walk import NARROWEST_STEP
from st_rl.sim.terms.randomization import trunk_bodies

QUIET = {"noise.level": 0.0, "push.max_speed": 0.0, "physics.num_threads": 1}
ALIKE = {f"randomization.{name}": None for name in ("friction", "base_mass", "motor_strength")}
STILL = {"reset.joint_pos": 0.0, "reset.velocity": 0.0, "reset.yaw": 0.0}
LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow")


@pytest.fixture(scope="module")
def robot():
    return Robot.from_mjcf(robot_path("humanoid"))


@pytest.fixture
def home(robot):
    data = mujoco.MjData(robot.model)
    mujoco.mj_resetDataKeyframe(robot.model, data, 0)
    mujoco.mj_forward(robot.model, data)
    return data


def build(name="humanoid-walk", num_envs=4, **overrides):
    return make_task(name, num_envs, **(QUIET | ALIKE | overrides))


def test_it_has_21_joints_the_size_of_a_child_and_45_kilograms(robot, home):
    legs, arms = ([f"{side}_{part}_joint" for side in ("left", "right") for part in parts] for parts in (LEG, ARM))
    assert robot.joint_names == (*legs, "waist_yaw_joint", *arms)
    assert robot.num_joints == 21
    assert robot.mass == pytest.approx(45, abs=1)
    tops = [
        home.geom_xpos[g, 2] + np.abs(home.geom_xmat[g].reshape(3, 3)[2]) @ robot.model.geom_size[g]
        for g in range(robot.model.ngeom)
        if robot.model.geom_bodyid[g] > 0
    ]
    assert 1.2 < max(tops) < 1.4
    assert robot.actuation == "position"
    assert np.isfinite(robot.effort_limit).all()
    assert (robot.stiffness > 0).all()
    low, high = robot.control_range.T
    assert ((low < robot.default_joint_pos) & (robot.default_joint_pos < high)).all()


def test_it_stands_at_home_on_two_flat_feet_with_bent_knees(robot, home):
    assert [foot.name for foot in robot.feet] == ["left_foot", "right_foot"]
    for foot in robot.feet:
        geom = home.geom(foot.name)
        assert geom.xpos[2] == pytest.approx(foot.radius, abs=1e-3)
        assert geom.xmat.reshape(3, 3)[2, 2] == pytest.approx(1.0, abs=1e-3)
    knees = [robot.joint_names.index(f"{side}_knee_joint") for side in ("left", "right")]
    assert (robot.default_joint_pos[knees] > 0.2).all()
    # The centre of mass is above the soles.
    middle, half_length = home.geom("left_foot").xpos[0], robot.model.geom("left_foot").size[0]
    assert abs(home.subtree_com[robot.free_joint.body][0] - middle) < 0.5 * half_length
    mujoco.mj_step(robot.model, home, nstep=20)
    assert all(home.sensordata[foot.contact] > 0 for foot in robot.feet)
    assert all(home.sensordata[sensor] == 0 for sensor in robot.fall_sensors)


def test_contact_of_knee_or_pelvis_is_fall(robot, home):
    for height, turn in ((0.05, [1, 0, 0, 0]), (0.07, [0.7071, 0, 0.7071, 0])):
        home.qpos[:] = robot.default_qpos
        home.qpos[2], home.qpos[3:7] = height, turn
        mujoco.mj_step(robot.model, home)
        assert any(home.sensordata[sensor] > 0 for sensor in robot.fall_sensors)
    assert len(robot.fall_sensors) == 3


def test_contact_buffers_fit_feet_knees_and_pelvis(robot):
    assert max_ground_contacts(robot.model) - 4 <= find_task("humanoid-walk").cfg().physics.max_contacts


def test_base_mass_scales_pelvis_and_torso(robot):
    model = robot.model
    assert [model.body(body).name for body in trunk_bodies(robot)] == ["pelvis", "torso"]
    task = build(**{"randomization.base_mass": (1.3, 1.3)})
    mass = task.backend.expand("body_mass")[0].numpy()
    np.testing.assert_allclose(mass.sum(), robot.mass + 0.3 * (5 + 14.5), rtol=1e-6)


def test_standing_humanoid_is_rewarded_until_fall():
    task = build(num_envs=16, **STILL, **{"commands.lin_vel_x": (0.0, 0.0), "commands.ang_vel_yaw": (0.0, 0.0)})
    rewards, dones = [], []
    for _ in range(100):
        _, reward, done, infos = task.step(torch.zeros(16, 21))
        rewards.append(reward)
        dones.append(done)
    # Nearly the maximum until it tips over.
    assert torch.stack(rewards[:20]).mean() > 0.8 * 0.02 * (2.5 + 1.5 + 1.0 + 0.3)
    assert not torch.stack(dones[:20]).any()
    assert torch.stack(rewards).min() >= 0.0
    assert infos["log"]["Reward/posture"] <= 0.0


def test_step_width_is_measured_in_the_frame_of_the_base():
    task = build(num_envs=8, **{**STILL, "reset.yaw": 6.0})
    task.step(torch.zeros(8, 21))
    torch.testing.assert_close(task.step_width, torch.full((8,), 0.18), atol=0.01, rtol=0)
    assert task.REWARDS["narrow_step"].function(task).max() == 0.0
    # Inward hip roll crosses the feet.
    qpos = task.backend.qpos.clone()
    qpos[:, 7 + 1], qpos[:, 7 + 7] = -0.2, 0.2
    task.backend.reset(torch.ones(8, dtype=torch.bool), qpos, torch.zeros(8, 27))
    task.step((qpos[:, 7:] - torch.from_numpy(task.robot.default_joint_pos)).float() / task.cfg.control.action_scale)
    expected = 0.18 - 2 * 0.2 * (0.6 * math.cos(0.3) + 0.04)
    torch.testing.assert_close(task.step_width, torch.full((8,), expected), atol=0.02, rtol=0)
    penalty = task.REWARDS["narrow_step"].function(task)
    torch.testing.assert_close(penalty, (NARROWEST_STEP - task.step_width) ** 2)


def test_yaw_rate_reward_tolerates_pelvis_swing():
    task = build()
    task.velocity_error = torch.tensor([[0.0, 0.0, error] for error in (0.0, 0.5, -0.5, 2.0)])
    reward = task.REWARDS["track_ang_vel_z"].function(task)
    torch.testing.assert_close(reward, torch.tensor([1.0, math.exp(-0.5), math.exp(-0.5), math.exp(-8.0)]))
    assert task.REWARDS["track_lin_vel_xy"].function(task).min() == 1.0


def test_posture_reward_excludes_stepping_joints():
    task = build()
    task.joint_offset = torch.zeros(4, 21)
    names = task.robot.joint_names
    task.joint_offset[0, names.index("left_knee_joint")] = 1.0
    task.joint_offset[1, names.index("right_elbow_joint")] = 0.5
    task.joint_offset[2, names.index("waist_yaw_joint")] = -0.3
    task.joint_offset[3, names.index("left_hip_roll_joint")] = 0.2
    torch.testing.assert_close(task.REWARDS["posture"].function(task), torch.tensor([0.0, 0.25, 0.09, 0.04]))
    with pytest.raises(ValueError, match=r"posture_joints 'tail' is found in no joint.*left_hip_pitch_joint"):
        build(posture_joints="tail")
    with pytest.raises(ValueError, match=r"posture_joints: 'hip_\(' is not a regular expression"):
        build(posture_joints="hip_(")
    build(posture_joints="tail", **{"rewards.posture": 0.0}).step(torch.zeros(4, 21))


def test_rejects_robot_with_four_feet():
    with pytest.raises(ValueError, match=r"quadruped.xml has 4 feet; humanoid-walk needs two"):
        build(robot="quadruped")


def test_episodes_start_from_reference_walk():
    amp = make_task("humanoid-amp", 32, **{**QUIET, "style.noise": {}, "style.start_fraction": 1.0})
    width = 21 + 21 + 1
    assert amp.style_transition.shape == (32, 2, width)
    own, reference = amp.style_transition[:, 1], amp.reference_transition.view(32, 2, width)[:, 0]
    torch.testing.assert_close(own, reference, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(amp.phase, (amp.clip_time / 0.8).frac())
    # Stance feet of the gait clock are on the ground: its frequency and phase are those of the clip.
    for _ in range(3):
        amp.step(amp.joint_offset / amp.cfg.control.action_scale)
    assert (amp.foot_contact == amp.foot_stance).float().mean() > 0.7
