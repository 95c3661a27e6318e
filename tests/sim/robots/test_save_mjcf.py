"""A saved robot file behaves like the original."""

import numpy as np
import pytest

from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.robots.save_mjcf import save_mjcf
from tests.sim.robots.foreign_robots import torque_quadruped

mujoco = pytest.importorskip("mujoco")


def states(model, control, joints: list[int]) -> np.ndarray:
    """Positions after each of 50 steps from the default pose."""
    data = mujoco.MjData(model)
    data.qpos[:] = model.key("home").qpos
    rows = []
    for _ in range(50):
        data.ctrl[:] = control(data.qpos[joints], data.qvel[[joint - 1 for joint in joints]])
        mujoco.mj_step(model, data)
        rows.append(data.qpos.copy())
    return np.array(rows)


def test_servos_behave_as_in_original(tmp_path):
    robot = Robot.from_mjcf(robot_path("quadruped"))
    gains = np.stack([robot.stiffness, robot.damping], axis=1)
    save_mjcf(robot, gains, robot.control_range, tmp_path / "robot.xml", timestep=0.002)
    saved = mujoco.MjModel.from_xml_path(str(tmp_path / "robot.xml"))
    original = robot.model
    original.opt.timestep, original.opt.integrator = 0.002, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    targets, joints = robot.default_joint_pos + 0.2, list(robot.qpos_indices)
    runs = [states(model, lambda q, dq: targets, joints) for model in (original, saved)]
    np.testing.assert_allclose(runs[0], runs[1], atol=1e-6)


def test_motors_become_servos_of_given_gains(tmp_path):
    (tmp_path / "torque.xml").write_text(torque_quadruped())
    robot = Robot.from_mjcf(tmp_path / "torque.xml")
    gains = np.tile([35.0, 0.5], (robot.num_joints, 1))
    save_mjcf(robot, gains, robot.joint_range, tmp_path / "kit" / "robot.xml")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "kit" / "robot.xml"))
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], 35.0)
    np.testing.assert_allclose(model.actuator_biasprm[:, 1:3], [[-35.0, -0.5]] * robot.num_joints)
    np.testing.assert_allclose(model.actuator_gear[:, 0], 1.0)
    np.testing.assert_allclose(np.abs(model.actuator_forcerange).max(axis=1), robot.effort_limit, rtol=1e-5)
    np.testing.assert_allclose(model.key("home").qpos, robot.default_qpos, atol=1e-5)


def test_copies_meshes_of_equal_names(tmp_path):
    pyramid = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 {height}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    for number, height in (("a", 1), ("b", 2)):
        (tmp_path / "meshes" / number).mkdir(parents=True)
        (tmp_path / "meshes" / number / "part.obj").write_text(pyramid.format(height=height))
    assets = "".join(f'<mesh name="{name}" file="{name}/part.obj"/>' for name in ("a", "b"))
    geoms = "".join(f'<geom type="mesh" mesh="{name}"/>' for name in ("a", "b"))
    (tmp_path / "robot.xml").write_text(
        f'<mujoco><compiler meshdir="meshes"/><asset>{assets}</asset><worldbody><body name="arm"><joint name="j" '
        f'range="-1 1"/>{geoms}</body></worldbody><actuator><position joint="j" kp="3"/></actuator></mujoco>'
    )
    robot = Robot.from_mjcf(tmp_path / "robot.xml")
    save_mjcf(robot, np.array([[3.0, 0.1]]), robot.control_range, tmp_path / "kit" / "robot.xml")
    (tmp_path / "meshes").rename(tmp_path / "elsewhere")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "kit" / "robot.xml"))
    np.testing.assert_allclose(model.mesh_vert, robot.model.mesh_vert)
