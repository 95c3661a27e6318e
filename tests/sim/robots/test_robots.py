"""Robot files: what is read from them, and errors for unsupported ones."""

import mujoco
import numpy as np
import pytest
import torch

from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.tasks import make_task
from tests.sim.robots.foreign_robots import FIXED_ARM, torque_quadruped


@pytest.fixture
def write_mjcf(tmp_path):
    def write(text, name="robot.xml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_quadruped_is_of_the_size_of_a_small_robot_dog():
    robot = Robot.from_mjcf(robot_path("quadruped"))
    assert robot.num_joints == 12
    assert robot.actuation == "position"
    assert 11 < robot.mass < 13
    assert robot.joint_names[:3] == ("FR_hip_joint", "FR_thigh_joint", "FR_calf_joint")
    np.testing.assert_allclose(robot.default_joint_pos, [0, 0.9, -1.8] * 4)
    np.testing.assert_allclose(robot.stiffness, 35)
    np.testing.assert_allclose(robot.damping, 0.5)
    np.testing.assert_allclose(robot.effort_limit.reshape(4, 3), [[24, 24, 35.5]] * 4)
    assert [f.name for f in robot.feet] == ["FR_foot", "FL_foot", "RR_foot", "RL_foot"]
    assert len(robot.fall_sensors) == 5


def test_quadruped_stands_and_sensors_distinguish_feet_and_trunk():
    robot = Robot.from_mjcf(robot_path("quadruped"))
    model = robot.model
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_step(model, data, nstep=400)
    assert data.qpos[2] > 0.2
    assert all(data.sensordata[f.contact] == 1 for f in robot.feet)
    assert all(data.sensordata[s] == 0 for s in robot.fall_sensors)
    for foot in robot.feet:
        np.testing.assert_allclose(
            data.sensordata[foot.position : foot.position + 3], data.geom(foot.name).xpos, atol=1e-4
        )
        assert data.sensordata[foot.position + 2] == pytest.approx(foot.radius, abs=5e-3)
    data.qpos[:] = robot.default_qpos
    data.qpos[2], data.qpos[3:7] = 0.05, [0, 1, 0, 0]  # on its back
    data.qvel[:] = 0
    mujoco.mj_step(model, data)
    assert data.sensordata[robot.fall_sensors[0]] > 0


def test_foreign_file_with_torque_motors_gets_sensors_and_a_floor(write_mjcf):
    robot = Robot.from_mjcf(write_mjcf(torque_quadruped()))
    assert robot.actuation == "torque"
    assert robot.joint_names == tuple(f"{leg}_{j}" for j in ("hip", "shank") for leg in ("fl", "fr", "rl", "rr"))
    assert robot.qpos_indices == (7, 9, 11, 13, 8, 10, 12, 14)
    assert robot.qvel_indices == (6, 8, 10, 12, 7, 9, 11, 13)
    np.testing.assert_allclose(robot.effort_limit, 20)  # control range times gear
    np.testing.assert_allclose(robot.joint_range[0], [-1.5, 1.5])
    assert len(robot.feet) == 4
    assert {f.radius for f in robot.feet} == {0.025}
    data = mujoco.MjData(robot.model)
    mujoco.mj_step(robot.model, data, nstep=300)
    assert data.qpos[2] < 0.45  # it falls without torque, and stays on the added floor
    assert data.qpos[2] > 0
    assert data.sensordata[robot.fall_sensors[0]] > 0 or any(data.sensordata[f.contact] > 0 for f in robot.feet)


TORQUE_CONTROL = {"control.stiffness": 30.0, "control.damping": 0.5}
COLLIDES = 'contype="1" conaffinity="1"'
WORLDS = {
    "shapes that touch nothing by default": lambda text: (
        text.replace("<default>", '<default><geom contype="0" conaffinity="0"/>')
        .replace('<geom type="box"', f'<geom {COLLIDES} type="box"')
        .replace('<geom type="sphere"', f'<geom {COLLIDES} type="sphere"')
    ),
    "bits of its own": lambda text: text.replace("<default>", '<default><geom contype="4" conaffinity="8"/>'),
    "a floor to look at": lambda text: text.replace(
        "<worldbody>", '<worldbody><geom name="floor" type="plane" size="5 5 1" contype="0" conaffinity="0"/>'
    ),
    "a box called floor": lambda text: text.replace(
        "<worldbody>", '<worldbody><geom name="floor" type="box" size="9 9 0.1" pos="0 0 -0.8"/>'
    ),
}


@pytest.mark.parametrize("task", ["quadruped-walk", "quadruped-rough", "quadruped-parkour"])
@pytest.mark.parametrize("world", WORLDS)
def test_added_ground_collides_with_every_robot(write_mjcf, world, task):
    path = write_mjcf(WORLDS[world](torque_quadruped()))
    env = make_task(task, 1, robot=str(path), **TORQUE_CONTROL, **{"push.max_speed": 0.0})
    for _ in range(25):
        env.step(torch.zeros(1, env.num_actions))
    assert env.foot_contact.any()
    assert env.base_height > 0.3


def test_file_sensors_are_used_only_in_world_frame(write_mjcf):
    text = torque_quadruped()
    for leg in ("fl", "fr", "rl", "rr"):
        text = text.replace('<geom type="sphere"', f'<geom name="{leg}_foot" type="sphere"', 1)
    seen_from_base = "".join(
        f'<framepos objtype="geom" objname="{leg}_foot" reftype="body" refname="base"/>'
        f'<framelinvel objtype="geom" objname="{leg}_foot" reftype="body" refname="base"/>'
        f'<contact geom1="{leg}_foot" body2="base" data="found"/>'
        for leg in ("fl", "fr", "rl", "rr")
    )
    robot = Robot.from_file(write_mjcf(text.replace("<actuator>", f"<sensor>{seen_from_base}</sensor><actuator>")))
    data = mujoco.MjData(robot.model)
    mujoco.mj_step(robot.model, data, nstep=100)
    data.qvel[:3] = 1.0
    mujoco.mj_forward(robot.model, data)
    assert any(data.sensordata[foot.contact] > 0 for foot in robot.feet)
    for foot in robot.feet:
        place = data.sensordata[foot.position : foot.position + 3]
        np.testing.assert_allclose(place, data.geom(foot.name).xpos, atol=1e-9)
        assert np.abs(data.sensordata[foot.velocity : foot.velocity + 3]).max() > 0.3


def test_servo_with_a_gear_is_described_at_the_joint(write_mjcf):
    text = FIXED_ARM.replace('kp="10"', 'kp="10" kv="2" gear="3" ctrlrange="-6 3" forcerange="-5 5"')
    robot = Robot.from_mjcf(write_mjcf(text))
    model, data = robot.model, mujoco.MjData(robot.model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = 0.1, 0.2, 0.15 * robot.gear
    mujoco.mj_forward(model, data)
    expected = robot.stiffness * (0.15 - 0.1) - robot.damping * 0.2
    np.testing.assert_allclose(data.qfrc_actuator, expected)
    np.testing.assert_allclose(robot.control_range, [[-2, 1]])
    np.testing.assert_allclose(robot.effort_limit, 15)


def test_walking_needs_a_free_joint(write_mjcf):
    path = write_mjcf(FIXED_ARM)
    robot = Robot.from_mjcf(path)
    assert robot.free_joint is None
    with pytest.raises(ValueError, match=r"robot\.xml has no free joint.*<freejoint/>.*for a test"):
        robot.require_locomotion("a test")


def test_walking_needs_feet(write_mjcf):
    text = """<mujoco><worldbody><body name="b"><freejoint/><geom type="sphere" size="0.1"/>
    <body name="l"><joint name="j"/><geom type="sphere" size="0.1" contype="0" conaffinity="0"/>
    </body></body></worldbody>
    <actuator><motor name="m" joint="j"/></actuator></mujoco>"""
    with pytest.raises(ValueError, match=r"no feet.*_foot"):
        Robot.from_mjcf(write_mjcf(text)).require_locomotion("walk")


_SERVO = '<position name="shoulder" joint="shoulder" kp="10"/>'


@pytest.mark.parametrize(
    ("actuators", "message"),
    [
        ("", "has no actuators"),
        ('<velocity name="v" joint="shoulder" kv="1"/>', "actuator 'v' is neither <position> nor <motor>"),
        (f'{_SERVO}<motor name="m" joint="shoulder"/>', "mixes <position> and <motor> actuators"),
        ('<motor name="m" body="link"/>', "cannot read"),
        ('<adhesion name="a" body="link" ctrlrange="0 1" gain="1"/>', "'a' does not drive a hinge or slide joint"),
    ],
)
def test_rejects_unsupported_actuators_with_file_name(write_mjcf, actuators, message):
    with pytest.raises(ValueError, match=message) as error:
        Robot.from_mjcf(write_mjcf(FIXED_ARM.replace(_SERVO, actuators)))
    assert "robot.xml" in str(error.value)


def test_unknown_robot_lists_the_built_in_ones():
    with pytest.raises(ValueError, match=r"'kangaroo'.*cartpole.*quadruped"):
        robot_path("kangaroo")


@pytest.mark.parametrize("order", [("fl", "fr", "rl", "rr"), ("rr", "fl", "fr", "rl"), ("fl", "rl", "fr", "rr")])
def test_feet_by_place_is_independent_of_leg_order(write_mjcf, order):
    robot = Robot.from_mjcf(write_mjcf(torque_quadruped(order)))
    names = [robot.model.body(robot.model.geom(foot.name).bodyid[0]).name for foot in robot.feet]
    assert names == [f"{leg}_lower" for leg in order]
    assert [names[foot] for foot in robot.feet_by_place] == [f"{leg}_lower" for leg in ("fr", "fl", "rr", "rl")]
    places = {"fl": (0.2, 0.12), "fr": (0.2, -0.12), "rl": (-0.2, 0.12), "rr": (-0.2, -0.12)}
    np.testing.assert_allclose(robot.foot_positions[:, :2], [places[leg] for leg in order], atol=1e-9)


def test_trot_is_independent_of_leg_order(write_mjcf):
    path = write_mjcf(torque_quadruped(("fl", "rl", "fr", "rr")))
    env = make_task(
        "quadruped-walk", num_envs=2, robot=str(path), **{"control.stiffness": 20.0, "control.damping": 1.0}
    )
    env.hold_commands(torch.tensor([[0.5, 0.0, 0.0]]).repeat(2, 1))
    stances = []
    for _ in range(30):
        env.step(torch.zeros(2, 8))
        stances.append(env.foot_stance[0])
    fl, rl, fr, rr = torch.stack(stances).T
    assert torch.equal(fl, rr)
    assert torch.equal(fr, rl)
    assert (fl != fr).float().mean() > 0.8
