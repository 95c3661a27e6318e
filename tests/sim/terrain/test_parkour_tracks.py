"""Track tables, their boxes in the MuJoCo model, and depth images of them."""

import math

import mujoco
import numpy as np
import pytest
import torch

from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.terrain.depth_camera import DepthCameraCfg, cast_rays, pixel_rays
from st_rl.sim.terrain.parkour_tracks import TracksCfg, add_boxes, block_table, build_tracks
from st_rl.utils.tensors.rotations import WXYZ_TO_XYZW, quat_to_rotmat

SEQUENCES = {
    "walk": (),
    "climb": ("step_up", "step_up", "step_down"),
    "mixed": ("gap", "hurdle", "step_up", "gap", "step_down", "hurdle"),
}
FAR = 2.0


@pytest.fixture(scope="module")
def tracks():
    return build_tracks(TracksCfg(SEQUENCES, num_levels=3), FAR)


def height_at(tracks, row, x):
    """Ground height by a search over the columns."""
    for start, end, top in zip(tracks.edges[row], tracks.edges[row][1:], tracks.ground[row]):
        if start <= x < end:
            return top
    return tracks.floor


class TestTables:
    def test_heights_follow_the_blocks(self, tracks):
        cfg = TracksCfg(SEQUENCES, num_levels=3)
        for row, blocks in enumerate(tracks.blocks):
            level = row % 3
            step, hurdle, gap = (
                np.linspace(low, high, 3)[level] for low, high in (cfg.step_height, cfg.hurdle_height, cfg.gap_length)
            )
            for block in blocks:
                before, after = height_at(tracks, row, block.start - 0.01), height_at(tracks, row, block.end + 0.01)
                inside = height_at(tracks, row, (block.start + block.end) / 2)
                change = {"step_up": step, "step_down": -step}.get(block.kind, 0.0)
                assert after - before == pytest.approx(change)
                if block.kind == "hurdle":
                    assert inside - before == pytest.approx(hurdle) == pytest.approx(block.height)
                    assert block.end - block.start == pytest.approx(cfg.hurdle_length)
                if block.kind == "gap":
                    assert inside == -cfg.pit_depth
                    assert block.end - block.start == pytest.approx(gap)

    def test_blocks_come_in_order_and_at_the_same_places_at_every_level(self, tracks):
        for track, kinds in enumerate(SEQUENCES.values()):
            rows = tracks.blocks[3 * track : 3 * track + 3]
            assert all(tuple(block.kind for block in row) == kinds for row in rows)
            assert len({tuple(block.start for block in row) for row in rows}) == 1
            starts = np.array([block.start for block in rows[0]])
            assert np.all(np.diff(starts) >= 0.8 * 1.4)
            assert np.all(np.diff(starts) <= 1.2 * 1.4)

    def test_lowest_walkable_column_is_at_zero_and_gaps_are_bridged(self, tracks):
        for row in range(9):
            walkable = tracks.ground[row][tracks.ground[row] > tracks.floor]
            assert walkable.min() == pytest.approx(0.0)
            is_gap = tracks.ground[row] == tracks.floor
            assert np.all(tracks.surface[row][~is_gap] == tracks.ground[row][~is_gap])
            before = tracks.surface[row][np.flatnonzero(is_gap) - 1]
            np.testing.assert_allclose(tracks.surface[row][is_gap], before)

    def test_block_table_ends_with_unreachable_block(self, tracks):
        table = block_table(tracks, {"hurdle": 1, "gap": 2, "step_up": 3, "step_down": 3})
        assert table.shape == (9, 7, 6)
        assert np.all(table[0, :, 0] == 1000.0)
        np.testing.assert_allclose(table[4, :3, 2:], [[3, 0.2, 0, 1], [3, 0.2, 0, 1], [3, 0.2, 0, -1]])
        assert np.all(table[4, 3:, 0] == 1000.0)
        assert table[6, 0, 2:].tolist() == pytest.approx([2, 0.0, 0.18, 0])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sequences": {}}, "sequences is empty"),
            ({"sequences": {"a": ("step", "gap")}}, r"track 'a': unknown kind of block 'step'; did you mean 'step_up'"),
            ({"num_levels": 0}, "num_levels must be at least 1, got 0"),
            ({"spacing": 0.5}, r"do not fit a tracks\.spacing of 0\.5 m"),
        ],
    )
    def test_rejects_invalid_tracks(self, changes, message):
        with pytest.raises(ValueError, match=message):
            build_tracks(TracksCfg(**{"sequences": SEQUENCES, **changes}), FAR)


def cast_one_ray(tracks, row, half_width, origin, ray):
    """Depth of one ray in float64: the first hit among the faces of all columns and the floor."""
    hits = []
    floor = tracks.floor

    def offer(t, inside):
        if t > 0 and inside(origin + t * ray):
            hits.append(t)

    eps = 1e-9
    for start, end, top in zip(tracks.edges[row], tracks.edges[row][1:], tracks.ground[row]):
        if end <= start or top <= floor:
            continue
        low, high = np.array([start, -half_width, floor]), np.array([end, half_width, top])
        for axis in range(3):
            if abs(ray[axis]) < 1e-12:
                continue
            for plane in (low[axis], high[axis]):
                offer(
                    (plane - origin[axis]) / ray[axis],
                    lambda p, low=low, high=high: np.all(p >= low - eps) and np.all(p <= high + eps),
                )
    if ray[2] < 0:
        offer((floor - origin[2]) / ray[2], lambda p: True)
    return min([*hits, FAR])


def poses(count, seed):
    """Camera poses on a track: place, offset, height above the ground, and orientation."""
    random = np.random.default_rng(seed)
    place, offset = random.uniform(-0.5, 9.0, count), random.uniform(-0.9, 0.9, count)
    angles = random.uniform([-0.4, -0.6, -math.pi], [0.4, 0.6, math.pi], (count, 3))
    quaternions = np.zeros((count, 4))
    for row, (roll, pitch, yaw) in enumerate(angles):
        mujoco.mju_euler2Quat(quaternions[row], np.array([roll, pitch, yaw]), "xyz")
    return place, offset, random.uniform(0.1, 0.5, count), quaternions


@pytest.mark.parametrize("row", [0, 3, 5, 6, 8])
def test_depth_equals_that_of_rays_cast_one_by_one(tracks, row):
    camera = DepthCameraCfg(height=5, width=4)
    place, offset, above, quaternions = poses(6, seed=row)
    height = [max(height_at(tracks, row, x + dx) for dx in (-0.01, 0.0, 0.01)) for x in place] + above
    origins = np.stack([place, offset, height], axis=1)
    matrices = quat_to_rotmat(torch.tensor(quaternions[:, WXYZ_TO_XYZW], dtype=torch.float32))
    rays = pixel_rays(camera) @ matrices.transpose(1, 2)
    table = [torch.tensor(t[row], dtype=torch.float32).repeat(6, 1) for t in (tracks.edges, tracks.ground)]
    depth = cast_rays(torch.tensor(origins, dtype=torch.float32), rays, *table, 1.0, tracks.floor, FAR)
    assert depth.shape == (6, 20)
    assert depth.min() > 0
    expected = [
        [cast_one_ray(tracks, row, 1.0, origin, ray) for ray in rows.double().numpy()]
        for origin, rows in zip(origins, rays)
    ]
    np.testing.assert_allclose(depth.numpy(), expected, atol=2e-4)


def test_depth_equals_mujoco_ray_casts(tracks):
    """The boxes of the physics are the columns of the camera; other tracks are not visible."""
    model = Robot.from_mjcf(robot_path("quadruped"), lambda spec: add_boxes(spec, tracks, 2.0)).model
    data = mujoco.MjData(model)
    data.qpos[2] = -50.0  # the robot itself is out of the way
    mujoco.mj_forward(model, data)
    camera = DepthCameraCfg(height=6, width=5)
    hit = np.zeros(1, dtype=np.int32)
    for row in (0, 4, 8):
        place, offset, above, quaternions = poses(5, seed=10 + row)
        height = [max(height_at(tracks, row, x + dx) for dx in (-0.01, 0.0, 0.01)) for x in place] + above
        rays = pixel_rays(camera) @ quat_to_rotmat(
            torch.tensor(quaternions[:, WXYZ_TO_XYZW], dtype=torch.float32)
        ).transpose(1, 2)
        origins = np.stack([place, offset, height], axis=1)
        table = [torch.tensor(t[row], dtype=torch.float32).repeat(5, 1) for t in (tracks.edges, tracks.ground)]
        depth = cast_rays(torch.tensor(origins, dtype=torch.float32), rays, *table, 1.0, tracks.floor, FAR)
        world = origins + np.array([0.0, tracks.centers[row], 0.0])
        for i in range(5):
            for ray, found in zip(rays[i].double().numpy(), depth[i]):
                t = mujoco.mj_ray(model, data, world[i], ray, None, 1, -1, hit, None)
                assert float(found) == pytest.approx(FAR if t < 0 else min(t, FAR), abs=5e-4)


def test_pixels_are_ordered_from_the_upper_left_and_measure_along_the_axis():
    camera = DepthCameraCfg(height=3, width=3, pitch=0.0, vertical_view=1.0, horizontal_view=0.8)
    rays = pixel_rays(camera).view(3, 3, 3)
    assert torch.all(rays[..., 0] == 1.0)
    assert rays[1, 1].tolist() == [1.0, 0.0, 0.0]
    assert rays[0, 0].tolist() == pytest.approx([1.0, math.tan(0.4), math.tan(0.5)])
    assert rays[2, 2].tolist() == pytest.approx([1.0, -math.tan(0.4), -math.tan(0.5)])
    down = pixel_rays(DepthCameraCfg(height=3, width=3, pitch=0.5)).view(3, 3, 3)
    assert down[1, 1].tolist() == pytest.approx([math.cos(0.5), 0.0, -math.sin(0.5)])


def test_rotation_matrix_agrees_with_mujoco():
    _, _, _, quaternions = poses(20, seed=1)
    expected = np.zeros((20, 9))
    for row, quaternion in enumerate(quaternions):
        mujoco.mju_quat2Mat(expected[row], quaternion)
    np.testing.assert_allclose(
        quat_to_rotmat(torch.tensor(quaternions[:, WXYZ_TO_XYZW])).reshape(20, 9).numpy(), expected, rtol=0, atol=1e-12
    )
