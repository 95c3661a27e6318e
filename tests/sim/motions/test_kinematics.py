"""Forward kinematics in torch, compared with MuJoCo."""

import numpy as np
import pytest
import torch

mujoco = pytest.importorskip("mujoco")
from st_rl.sim.motions.kinematics import Kinematics  # noqa: E402
from st_rl.sim.robots import Robot, robot_path  # noqa: E402
from st_rl.sim.robots.model_queries import find_free_joint  # noqa: E402

ODD = """
<mujoco><worldbody><geom type="plane" size="1 1 1"/><body name="other" pos="3 0 0"><geom size="0.1"/></body>
<body name="base" pos="0 0 1" euler="10 20 30"><freejoint/><geom size="0.1"/>
  <body name="arm" pos="0.1 0.2 0.3" euler="40 -20 10">
    <joint name="a" axis="1 2 3" pos="0.1 -0.2 0.05" ref="20"/><joint name="b" type="slide" axis="0 1 1" ref="0.1"/>
    <geom size="0.1"/>
    <body name="fixed" pos="0.2 0 0" euler="0 90 0"><geom size="0.1"/>
      <body name="tip" pos="0 0.1 0.2"><joint name="c" axis="0 1 0" pos="0 0 0.1"/><geom size="0.1"/></body></body>
  </body></body></worldbody></mujoco>
"""


def models():
    return {
        "humanoid": Robot.from_mjcf(robot_path("humanoid")).model,
        "quadruped": Robot.from_mjcf(robot_path("quadruped")).model,
        "odd": mujoco.MjModel.from_xml_string(ODD),
    }


@pytest.mark.parametrize("name", ["humanoid", "quadruped", "odd"])
def test_equals_mujoco(name):
    model = models()[name]
    base = find_free_joint(model)
    bodies = [b for b in range(1, model.nbody) if model.body_rootid[b] == model.body_rootid[base.body]]
    random = np.random.default_rng(0)
    qpos, qvel = random.normal(size=(6, model.nq)), random.normal(size=(6, model.nv))
    quat = qpos[:, base.qpos + 3 : base.qpos + 7]
    quat /= np.linalg.norm(quat, axis=1, keepdims=True)
    found = Kinematics(model, base, bodies, dtype=torch.float64)(torch.from_numpy(qpos), torch.from_numpy(qvel))
    data, velocity = mujoco.MjData(model), np.zeros(6)
    for row in range(6):
        data.qpos[:], data.qvel[:] = qpos[row], qvel[row]
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_fwdVelocity(model, data)
        np.testing.assert_allclose(found.pos[row], data.xpos[bodies], atol=1e-9)
        np.testing.assert_allclose(found.rot[row].flatten(1), data.xmat[bodies], atol=1e-9)
        for place, body in enumerate(bodies):
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
            np.testing.assert_allclose(found.ang_vel[row, place], velocity[:3], atol=1e-9)
            np.testing.assert_allclose(found.lin_vel[row, place], velocity[3:], atol=1e-9)


def test_rejects_body_of_the_world():
    model = mujoco.MjModel.from_xml_string(ODD)
    with pytest.raises(ValueError, match="other do not move with the base"):
        Kinematics(model, find_free_joint(model), [model.body("other").id])
