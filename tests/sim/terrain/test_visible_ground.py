"""Rendering crops a large height field around the robot and keeps its heights."""

import mujoco
import numpy as np
import pytest

from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.terrain.height_field import HeightField, add_height_field
from st_rl.sim.terrain.visible_ground import VisibleGround


@pytest.fixture(scope="module")
def model():
    heights = np.random.default_rng(0).uniform(-0.2, 0.6, (301, 401))
    field = HeightField(heights, (-5.0, -3.0), 0.1)
    return Robot.from_mjcf(robot_path("quadruped"), lambda spec: add_height_field(spec, field)).model


def height(model, position, x, y):
    """Height of the terrain of a model, moved to a position, by a ray from above."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    geom = model.geom("terrain").id
    data.geom_xpos[geom] = position
    return 5.0 - mujoco.mj_rayHfield(model, data, geom, np.array([x, y, 5.0]), np.array([0.0, 0.0, -1.0]), None)


@pytest.mark.parametrize("place", [(10.0, 9.0), (-4.0, 9.0), (34.9, 26.9)])
def test_cropped_ground_keeps_heights(model, place):
    ground = VisibleGround(model)
    assert ground.follow(np.array(place))
    geom = model.geom("terrain").id
    whole = model.geom_pos[geom].copy()
    for offset in np.random.default_rng(1).uniform(-6.0, 6.0, (20, 2)):
        x, y = np.clip(np.array(place) + offset, (-4.9, -2.9), (34.9, 26.9))
        cut = height(ground.model, ground._positions[geom], x, y)
        assert cut == pytest.approx(height(model, whole, x, y), abs=1e-4)
    assert int(ground.model.hfield_nrow[0] * ground.model.hfield_ncol[0]) < 301 * 401 / 4
    assert (int(model.hfield_nrow[0]), int(model.hfield_ncol[0])) == (301, 401)


def test_crops_again_only_far_from_center(model):
    ground = VisibleGround(model)
    assert ground.follow(np.array([10.0, 9.0]))
    assert not ground.follow(np.array([12.0, 7.0]))
    assert ground.follow(np.array([14.0, 9.0]))
    assert ground.follow(np.array([500.0, -500.0]))
    assert ground.model.hfield_nrow[0] >= 2


def test_model_without_height_fields_is_unchanged():
    plain = Robot.from_mjcf(robot_path("quadruped")).model
    assert not VisibleGround(plain).follow(np.array([0.0, 0.0]))
