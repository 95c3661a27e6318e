"""Generated terrain has the configured slopes, steps and stones; heights equal those of MuJoCo's collision."""

import math

import mujoco
import numpy as np
import pytest
import torch

from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.terrain.height_field import Ground, HeightField, add_height_field
from st_rl.sim.terrain.patches import KINDS, TerrainCfg, build_patch, build_terrain, patch_centers

CFG = TerrainCfg()
HALF = CFG.patch_size / 2
STRAIGHT = np.arange(round(CFG.patch_size / CFG.spacing) + 1) * CFG.spacing - HALF


def along_x(kind, share, cfg=CFG):
    """Heights from the center of a patch to its rim, and their distances from the center."""
    patch = build_patch(kind, share, cfg, np.random.default_rng(0))
    row = patch[len(patch) // 2]
    return STRAIGHT[STRAIGHT >= -1e-9], row[STRAIGHT >= -1e-9]


class TestPatches:
    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    def test_slopes_have_their_angle(self, share):
        degrees = CFG.slope[0] + share * (CFG.slope[1] - CFG.slope[0])
        place, height = along_x("slope_up", share)
        between = (place > CFG.middle / 2 + 0.01) & (place < HALF - CFG.rim - 0.01)
        angles = np.degrees(np.arctan(np.diff(height) / np.diff(place)))[between[:-1] & between[1:]]
        np.testing.assert_allclose(angles, degrees, atol=1e-6)
        np.testing.assert_allclose(along_x("slope_down", share)[1], -height)

    @pytest.mark.parametrize("share", [0.0, 1.0])
    def test_steps_have_their_height_and_length(self, share):
        wanted = CFG.step_height[0] + share * (CFG.step_height[1] - CFG.step_height[0])
        place, height = along_x("steps_up", share)
        rises = np.flatnonzero(np.diff(height) > 1e-9)
        # Each rise is within one cell of the grid.
        np.testing.assert_allclose(np.diff(height)[rises], wanted)
        np.testing.assert_allclose(np.diff(place[rises]), CFG.step_length)
        assert len(rises) == math.floor((HALF - CFG.rim - CFG.middle / 2) / CFG.step_length)
        assert height[-1] == 0.0
        np.testing.assert_allclose(along_x("steps_down", share)[1], -height)

    def test_stones_have_configured_height_and_are_flat(self):
        cfg = TerrainCfg(rubble_height=(0.05, 0.05))
        patch = build_patch("rubble", 1.0, cfg, np.random.default_rng(3))
        assert 0.045 < patch.max() <= 0.05
        assert patch.min() == 0.0
        width = round(cfg.rubble_size / cfg.spacing)
        stones = patch[20 : 20 + 8 * width, 20 : 20 + 8 * width].reshape(8, width, 8, width).transpose(0, 2, 1, 3)
        inside = stones.reshape(64, -1)
        assert (inside.max(axis=1) == inside.min(axis=1)).mean() > 0.9
        assert len(np.unique(inside[:, 0])) > 40

    def test_waves_have_configured_height_and_no_steps(self):
        cfg = TerrainCfg(wave_height=(0.2, 0.2))
        patch = build_patch("waves", 1.0, cfg, np.random.default_rng(0))
        assert 0.15 < patch.max() - patch.min() <= 0.2 + 1e-9
        assert np.abs(np.diff(patch, axis=0)).max() < math.tan(math.radians(30.0)) * cfg.spacing

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_middle_and_rim_are_flat_and_level_grows_with_difficulty(self, kind):
        easy, hard = (build_patch(kind, share, CFG, np.random.default_rng(0)) for share in (0.0, 1.0))
        x, y = np.meshgrid(STRAIGHT, STRAIGHT)
        distance = np.maximum(abs(x), abs(y))
        assert not hard[distance > HALF - CFG.rim + 1e-6].any()
        middle = hard[distance < CFG.middle / 2 - 1e-6]
        assert middle.max() == pytest.approx(middle.min())
        assert kind == "flat" or np.ptp(hard) > 2 * np.ptp(easy)

    def test_patch_centers_match_terrain(self):
        terrain = build_terrain(CFG)
        ground = Ground(terrain, "cpu")
        centers = torch.tensor(patch_centers(CFG), dtype=torch.float32)
        assert centers.shape == (len(CFG.kinds), CFG.num_levels, 2)
        steepest = math.tan(math.radians(CFG.slope[1]))
        fall = ground.height_at(centers[CFG.kinds.index("slope_up"), -1])
        assert float(fall) == pytest.approx(-steepest * (HALF - CFG.rim - CFG.middle / 2), abs=1e-4)
        corners = ground.height_at(centers + HALF)
        assert not corners.any()


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"kinds": ()}, "kinds is empty"),
            ({"kinds": ("slop_up",)}, "did you mean 'slope_up'"),
            ({"num_levels": 0}, "num_levels must be at least 1"),
            ({"patch_size": 7.02}, "not a multiple of terrain.spacing"),
            ({"middle": 6.5}, "leave nothing"),
            ({"spacing": 0.0}, "terrain.spacing is 0.0: give a positive length"),
            ({"step_length": -1.0}, "terrain.step_length is -1.0: give a positive length"),
        ],
    )
    def test_rejects_invalid_terrain(self, change, message):
        with pytest.raises(ValueError, match=message):
            build_terrain(TerrainCfg(**change))


@pytest.fixture(scope="module")
def world():
    """A bumpy field with no symmetry, not around the origin, under the robot."""
    random = np.random.default_rng(1)
    field = HeightField(random.uniform(-0.3, 0.5, (23, 31)), (-0.7, 0.4), 0.1)
    robot = Robot.from_mjcf(robot_path("quadruped"), lambda spec: add_height_field(spec, field))
    data = mujoco.MjData(robot.model)
    mujoco.mj_forward(robot.model, data)
    return robot.model, data, field


class TestHeights:
    def test_heights_are_where_rays_meet_the_ground(self, world):
        model, data, field = world
        random = np.random.default_rng(2)
        places = random.uniform((-0.69, 0.41), (2.29, 2.59), (400, 2))
        geom = model.geom("terrain").id
        down = np.array([0.0, 0.0, -1.0])
        rays = [2.0 - mujoco.mj_rayHfield(model, data, geom, np.array([*p, 2.0]), down, None) for p in places]
        heights = Ground(field, "cpu").height_at(torch.tensor(places, dtype=torch.float32))
        np.testing.assert_allclose(heights, rays, atol=1e-5)

    def test_heights_at_grid_points_are_exact_and_clamped_at_edge(self, world):
        field = world[2]
        ground = Ground(field, "cpu")
        for row, column in ((0, 0), (5, 7), (22, 30)):
            place = torch.tensor([field.origin[0] + 0.1 * column, field.origin[1] + 0.1 * row])
            assert float(ground.height_at(place)) == pytest.approx(field.heights[row, column], abs=1e-4)
        outside = torch.tensor([[field.origin[0] - 3.0, field.origin[1]], [100.0, 100.0]])
        expected = [field.heights[0, 0], field.heights[-1, -1]]
        np.testing.assert_allclose(ground.height_at(outside), expected, atol=1e-6)

    def test_height_field_replaces_floor_with_same_contact_bits(self, world):
        model = world[0]
        kinds = mujoco.mjtGeom
        ground = [g for g in range(model.ngeom) if model.geom_bodyid[g] == 0]
        assert [int(model.geom_type[g]) for g in ground] == [int(kinds.mjGEOM_HFIELD)]
        assert (model.geom_contype[ground[0]], model.geom_conaffinity[ground[0]]) == (1, 0)

    def test_dropped_robot_stays_on_top(self):
        field = HeightField(np.full((41, 41), 0.37), (-1.0, -1.0), 0.05)
        robot = Robot.from_mjcf(robot_path("quadruped"), lambda spec: add_height_field(spec, field))
        data = mujoco.MjData(robot.model)
        data.qpos[:] = robot.default_qpos
        data.qpos[2] += 0.37
        data.ctrl[:] = robot.default_joint_pos
        mujoco.mj_step(robot.model, data, 200)
        soles = [data.sensordata[foot.position + 2] - foot.radius for foot in robot.feet]
        np.testing.assert_allclose(soles, 0.37, atol=5e-3)
