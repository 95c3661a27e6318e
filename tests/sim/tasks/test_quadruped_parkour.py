"""The task `quadruped-parkour`: observations, commands and levels."""

import numpy as np
import pytest
import torch

from st_rl.sim.evaluation.evaluator import make_eval_task
from st_rl.sim.tasks import find_task, make_task
from st_rl.sim.tasks.quadruped_parkour import QuadrupedParkourCfg, terrain_scan
from st_rl.sim.terrain.depth_camera import DepthCameraCfg
from st_rl.utils.tensors.segments import get_obs_slice

QUIET = {"noise.level": 0.0, "push.max_speed": 0.0, "physics.num_threads": 1}
QUIET |= {"randomization.friction": None, "randomization.base_mass": None, "randomization.motor_strength": None}
MIXED = {"mixed": ("step_up", "hurdle", "gap", "step_down")}


def build(num_envs=12, **overrides):
    return make_task("quadruped-parkour", num_envs, **{**QUIET, **overrides})


def place(task, x, y=None, z=None, yaw=0.0):
    """Put every robot at a place along its track, above the ground or as high as `z` says, at rest."""
    qpos, qvel = task.backend.qpos.clone(), torch.zeros_like(task.backend.qvel)
    qpos[:, 0] = torch.as_tensor(x, dtype=torch.float32)
    if y is not None:
        qpos[:, 1] += y - task.track_offset
    qpos[:, 3:7] = torch.tensor([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)], dtype=torch.float32)
    task.backend.reset(torch.ones(task.num_envs, dtype=torch.bool), qpos, qvel)
    task._read_state()
    if z is None:
        qpos[:, 2] += task.default_height - task.base_height.squeeze(1)
    else:
        qpos[:, 2] = z
    task.backend.reset(torch.ones(task.num_envs, dtype=torch.bool), qpos, qvel)
    task._read_state()


def track_row(task, robot):
    """Track-table row of a robot, computed independently."""
    return robot % len(task.cfg.terrain_kinds) * task.cfg.tracks.num_levels + int(task.level[robot])


def segment(task, name, obs=None):
    obs = task.compute_observation()[:, : task.num_obs] if obs is None else obs
    return obs[:, get_obs_slice(task.obs_segments, name)[0]]


def test_one_robot_in_an_evaluation_shows_all_blocks_at_the_last_level():
    task = make_eval_task("quadruped-parkour", QuadrupedParkourCfg(), 1, 12.0, seed=0, fine=True)
    assert (int(task.kind), int(task.level)) == (task.cfg.terrain_kinds.index("mixed"), task.cfg.num_levels - 1)
    assert int(task.num_blocks) == 4


class TestObservation:
    def test_segments_and_columns_of_proprioception(self):
        task = build()
        assert task.obs_segments == {"proprioception": 48, "engaging_block": 9, "forward_depth": (1, 16, 12)}
        hidden = ["base_lin_vel", "base_height", "foot_contact", "foot_height", "properties", "terrain_scan"]
        assert list(task.critic_obs_segments) == [*task.obs_segments, *hidden]
        task.step(torch.linspace(-1, 1, 12).repeat(12, 1))
        seen = segment(task, "proprioception")
        assert torch.equal(seen[:, 9], task.commands[:, 0] * task.cfg.normalization.obs_scales["lin_vel"])
        assert torch.equal(seen[:, -12:], task.actions)
        torch.testing.assert_close(seen[:, 24:36], task.joint_vel * 0.05)
        torch.testing.assert_close(seen[:, 8], task.heading)
        assert "base_lin_vel" not in task.obs_segments

    def test_actor_observes_configured_segments_in_order(self):
        task = build(observe=("forward_depth", "proprioception"))
        assert list(task.obs_segments) == ["forward_depth", "proprioception"]
        assert "engaging_block" in task.critic_obs_segments
        assert build(observe=("proprioception",)).num_obs == 48
        torch.testing.assert_close(segment(task, "proprioception")[:, 9], task.commands[:, 0] * 2.0)

    def test_block_is_engaged_until_cleared(self):
        task = build(num_envs=1, **{"tracks.sequences": MIXED, "curriculum.start_levels": (2, 2)})
        ids = {"step_up": 3, "hurdle": 1, "gap": 2, "step_down": 3}
        direction = {"step_up": 1.0, "step_down": -1.0}
        blocks = task._tracks.blocks[2]
        for x in np.linspace(0.0, 8.0, 60):
            place(task, float(x))
            # expected: the first uncleared block, engaged from 0.8 m before it
            left = [block for block in blocks if x < block.end + 0.4]
            expected = np.zeros(9)
            expected[0], expected[1] = 2.0, 1.0
            if left:
                block = left[0]
                if block.start - x <= 0.8:
                    expected[0] = block.start - x
                    expected[1:6] = np.eye(5)[ids[block.kind]]
                    expected[6:] = block.height, block.end - block.start, direction.get(block.kind, 0.0)
            np.testing.assert_allclose(segment(task, "engaging_block")[0].numpy(), expected, atol=1e-5)
            assert int(task.num_cleared) == len(blocks) - len(left)

    def test_steps_can_have_columns_of_their_own(self):
        ids = {"hurdle": 1, "gap": 1, "step_up": 2, "step_down": 4}
        task = build(num_envs=1, **{"tracks.sequences": MIXED, "blocks.ids": ids})
        for block in task._tracks.blocks[0]:
            place(task, block.start - 0.3)
            assert int(segment(task, "engaging_block")[0, 1:6].argmax()) == ids[block.kind]

    def test_depth_is_that_of_rays_through_the_track_in_numpy(self):
        """Depth image by an independent ray caster that marches along each ray in steps of 1 mm."""
        task = build(
            num_envs=3, **{"camera": DepthCameraCfg(height=6, width=3), "curriculum.start_levels": (3, 3)},
            **{"tracks.sequences": MIXED},
        )  # fmt: skip
        place(task, x=[1.0, 2.4, 3.7], y=0.1, yaw=0.2)
        depth = segment(task, "forward_depth").view(3, 6, 3).numpy() * 2.0
        camera, tracks = task.cfg.camera, task._tracks
        t = np.arange(1, 2000) * 0.001
        for robot in range(3):
            base = task.backend.qpos[robot, :3].double().numpy()
            turn = np.array([[np.cos(0.2), -np.sin(0.2), 0.0], [np.sin(0.2), np.cos(0.2), 0.0], [0.0, 0.0, 1.0]])
            lens = base + turn @ np.array(camera.position)
            for row, up in enumerate(np.linspace(0.5, -0.5, 6) * camera.vertical_view):
                for column, left in enumerate(np.linspace(0.5, -0.5, 3) * camera.horizontal_view):
                    pitch = np.array([[np.cos(0.75), 0.0, np.sin(0.75)], [0, 1, 0], [-np.sin(0.75), 0, np.cos(0.75)]])
                    ray = turn @ pitch @ np.array([1.0, np.tan(left), np.tan(up)])
                    points = lens + t[:, None] * ray
                    ground = np.full(len(t), tracks.floor)
                    for start, end, top in zip(tracks.edges[3], tracks.edges[3][1:], tracks.ground[3]):
                        ground[(points[:, 0] >= start) & (points[:, 0] < end)] = top
                    ground[np.abs(points[:, 1] - tracks.centers[3]) > 1.0] = tracks.floor
                    below = np.flatnonzero(points[:, 2] <= ground)
                    expected = t[below[0]] if len(below) else 2.0
                    assert depth[robot, row, column] == pytest.approx(expected, abs=2e-3)

    def test_covered_camera_returns_largest_depth(self):
        task = build(**{"camera.covered": True})
        assert task.obs_segments["forward_depth"] == (1, 16, 12)
        assert torch.all(segment(task, "forward_depth") == 1.0)

    def test_terrain_scan_and_heights_are_above_the_track(self):
        task = build(num_envs=1, **{"tracks.sequences": {"up": ("step_up", "step_up")}})
        first = task._tracks.blocks[0][0].start
        place(task, first - 0.35)
        assert float(task.base_height) == pytest.approx(task.default_height, abs=1e-5)
        scan = terrain_scan(task)[0]
        offsets = torch.linspace(-0.4, 1.2, 17)
        expected = torch.where(offsets >= 0.35, 0.10, 0.0) - task.backend.qpos[0, 2]
        torch.testing.assert_close(scan, expected, atol=1e-5, rtol=0)

    def test_feet_stand_at_height_zero_on_every_column(self):
        fine = {"physics.timestep": 0.002, "physics.substeps": 10, "physics.iterations": 50}
        settings = {"tracks.sequences": {"up": ("step_up",) * 3}, "curriculum.start_levels": (4, 4)}
        task = build(num_envs=4, **settings, **fine)
        blocks = task._tracks.blocks[4]
        place(task, [0.0, *(block.start + 0.6 for block in blocks)])
        for _ in range(50):
            task.step(torch.zeros(4, 12))
        assert task.foot_contact.all()
        assert task.foot_height.abs().max() < 0.01
        heights = task.backend.qpos[:, 2].numpy() - task.base_height[:, 0].numpy()
        np.testing.assert_allclose(heights, [0.0, 0.3, 0.6, 0.9], atol=1e-5)


class TestCommands:
    def test_steering_returns_to_center_line(self):
        task = build()
        place(task, 0.0, y=0.3)
        assert torch.all(task.commands[:, 2] < 0)
        place(task, 0.0, y=-0.3)
        assert torch.all(task.commands[:, 2] > 0)
        place(task, 0.0, y=0.0, yaw=0.3)
        torch.testing.assert_close(task.commands[:, 2], torch.full((12,), -0.45), atol=1e-3, rtol=0)
        assert torch.all(task.commands[:, 1] == 0)

    def test_standing_robot_is_not_steered(self):
        task = build()
        task.hold_commands(torch.zeros(12, 3))
        place(task, 0.0, y=0.3)
        assert torch.all(task.commands == 0)
        assert not task.moving.any()

    def test_held_speed_is_kept_while_steering(self):
        task = build()
        task.hold_commands(torch.tensor([0.6, 0.0, 0.0]).repeat(12, 1))
        for _ in range(3):
            task.step(torch.zeros(12, 12))
        assert torch.all(task.commands[:, 0] == 0.6)
        obs = task.get_observations()[0]
        torch.testing.assert_close(segment(task, "proprioception", obs)[:, 9], torch.full((12,), 1.2))


class TestEpisodes:
    def test_robots_start_on_assigned_track(self):
        task = build(num_envs=60, **{"curriculum.start_levels": (0, 4)})
        assert task.level.bincount().tolist() == [12] * 5
        for robot in range(60):
            center = task._tracks.centers[track_row(task, robot)]
            assert abs(float(task.backend.qpos[robot, 1]) - center) <= 0.15 + 1e-4
            assert -0.3 <= float(task.backend.qpos[robot, 0]) <= 0.3
        torch.testing.assert_close(task.base_height, torch.full((60, 1), task.default_height))

    def test_levels_follow_cleared_blocks(self):
        task = build(num_envs=6, **{"tracks.sequences": {"up": ("step_up",) * 4}, "curriculum.start_levels": (2, 2)})
        starts = [block.start for block in task._tracks.blocks[2]]
        # cleared: none, one, two, three, all; and all of an episode that has not begun
        place(task, [0.0, starts[0] + 0.5, starts[1] + 0.5, starts[2] + 0.5, starts[3] + 0.5, starts[3] + 0.5])
        task._update_errors()
        task.episode_length_buf = torch.tensor([9, 9, 9, 9, 9, 0])
        task._reset_envs(torch.ones(6, dtype=torch.bool))
        assert task.level.tolist() == [1, 1, 2, 2, 3, 2]

    def test_robots_without_blocks_keep_their_level(self):
        sequences = {"up": ("step_up",), "flat": ()}
        task = build(num_envs=4, **{"tracks.sequences": sequences, "curriculum.start_levels": (2, 2)})
        task._episode_length.fill_(5)
        task._has_cleared.fill_(True)
        task._has_struggled.fill_(False)
        task._reset_envs(torch.ones(4, dtype=torch.bool))
        assert task.kind.tolist() == [0, 1, 0, 1]
        assert task.level.tolist() == [3, 2, 3, 2]

    def test_only_ended_episodes_change_levels_and_the_first_level_is_the_lowest(self):
        task = build(num_envs=4, **{"tracks.sequences": {"up": ("step_up",)}})
        task.episode_length_buf = torch.full((4,), 9)
        place(task, [0.0, 0.0, 3.0, 3.0])
        task._update_errors()
        task._reset_envs(torch.tensor([True, False, True, False]))
        assert task.level.tolist() == [0, 0, 1, 0]

    def test_last_level_leads_to_random_level(self):
        task = build(num_envs=200, **{"tracks.sequences": {"up": ("step_up",)}, "curriculum.start_levels": (4, 4)})
        task.episode_length_buf = torch.full((200,), 9)
        place(task, 3.0)
        task._update_errors()
        task._sample_random()
        task._reset_envs(torch.ones(200, dtype=torch.bool))
        assert set(task.level.tolist()) == {0, 1, 2, 3, 4}

    def test_evaluation_keeps_chosen_or_all_levels(self):
        cfg = find_task("quadruped-parkour").cfg()
        assert cfg.for_evaluation().curriculum.start_levels == (0, 4)
        assert not cfg.for_evaluation().curriculum.enabled
        assert cfg.curriculum.enabled
        cfg.curriculum.enabled = False
        assert cfg.for_evaluation().curriculum.start_levels == (0, 0)
        task = build(num_envs=4, **{"curriculum.enabled": False})
        task.episode_length_buf = torch.full((4,), 9)
        place(task, 6.0)
        task._update_errors()
        task._reset_envs(torch.ones(4, dtype=torch.bool))
        assert task.level.tolist() == [0] * 4

    def test_log_and_infos_report_cleared_tracks(self):
        task = build(num_envs=2, **{"tracks.sequences": {"up": ("step_up", "step_up")}})
        place(task, [0.0, 5.0])
        _, _, _, infos = task.step(torch.zeros(2, 12))
        assert infos["success"].tolist() == [False, True]
        assert float(infos["log"]["Parkour/blocks_cleared"]) == pytest.approx(0.5)
        assert float(infos["log"]["Parkour/level"]) == 0.0

    def test_falling_into_a_gap_and_leaving_the_track_end_the_episode(self):
        task = build(num_envs=3, **{"tracks.sequences": {"gap": ("gap",)}, "curriculum.start_levels": (4, 4)})
        gap = task._tracks.blocks[4][0]
        place(task, [0.0, (gap.start + gap.end) / 2, 0.0], z=torch.tensor([0.32, -0.3, 0.32]))
        task.backend.batch.bind("qpos")[2, 1] += 1.2
        _, _, dones, infos = task.step(torch.zeros(3, 12))
        assert dones.tolist() == [False, True, True]
        assert float(infos["log"]["Termination/off_track"]) == pytest.approx(1 / 3)
        assert float(infos["log"]["Termination/in_pit"]) >= 1 / 3 - 1e-6

    def test_course_success_after_last_block_and_nan_without_blocks(self):
        tracks = {"walk": (), "up": ("step_up", "step_up")}
        task = build(num_envs=6, **{"tracks.sequences": tracks, "tracks.run_out": 5.0})
        last = task._tracks.blocks[task.cfg.tracks.num_levels][-1].end
        place(task, [0.0, last - 0.1, 2.4, last + 0.5, 2.6, last + 4.6])
        success, is_at_end = task.course()
        assert success[::2].isnan().all()
        assert success[1::2].tolist() == [0.0, 1.0, 1.0]
        # The section without blocks is from -2 m to 3 m.
        assert is_at_end.tolist() == [False, False, False, False, True, True]

    def test_falls_only_after_end_of_course(self):
        """With real physics; the end is at 2 m, and front feet are 0.2 m ahead of the base."""
        task = build(num_envs=2, **{"tracks.sequences": {"walk": ()}, "tracks.run_out": 4.0})
        place(task, [1.45, 1.9])
        assert task.course().is_at_end.tolist() == [False, True]
        fell = torch.zeros(2, dtype=torch.bool)
        for _ in range(50):
            fell |= task.step(torch.zeros(2, 12))[2]
        assert fell.tolist() == [False, True]

    def test_only_trunk_contact_is_fall(self):
        task = build(num_envs=2)
        contacts = torch.zeros(2, len(task.robot.fall_sensors))
        trunk = task.robot.fall_sensors.index(int(task.robot.model.sensor("trunk_contact").adr[0]))
        contacts[0] = 2.0
        contacts[0, trunk] = 0.0
        contacts[1, trunk] = 1.0
        task._fall_contacts = contacts
        task._update_errors()
        assert task.has_fallen.tolist() == [False, True]
        assert task.num_knee_contacts.tolist() == [4.0, 0.0]

    def test_progress_is_fraction_of_commanded_speed(self):
        task = build(num_envs=2, rewards={"progress": 1.0})
        task.hold_commands(torch.tensor([[0.8, 0.0, 0.0]] * 2))
        task.track_velocity = torch.tensor([0.4, 3.0])
        assert task.REWARDS["progress"].function(task).tolist() == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"observe": ("proprioception", "depth")}, "observe: unknown segment 'depth'"),
        ({"observe": ()}, "observe must name different segments"),
        ({"curriculum.start_levels": (0, 5)}, r"start_levels is \(0, 5\): give two of the levels 0 to 4"),
        ({"blocks.ids": {"gap": 5}}, "gives 'gap' the column 5: use 1 to 4"),
        ({"blocks.ids": {"gap": 1}}, r"blocks\.ids lacks hurdle, step_down, step_up"),
        ({"normalization.obs_scales.lin_vel": 1.0}, "needs one factor for lin_vel and commands.*got 1.0 and 2.0"),
        ({"camera.width": 0}, "camera.width has 0 points: give at least one"),
        ({"scan": (0.0, 1.0, 0)}, "scan has 0 points: give at least one"),
    ],
)
def test_rejects_contradicting_settings(overrides, message):
    with pytest.raises(ValueError, match=message):
        build(**overrides)


@pytest.mark.gpu
def test_gpu_observation_equals_cpu_observation():
    overrides = {**QUIET, "tracks.num_levels": 2, "curriculum.start_levels": (0, 1)}
    cpu, gpu = (make_task("quadruped-parkour", 24, device, **overrides) for device in ("cpu", "cuda"))
    random = torch.Generator().manual_seed(0)
    qpos = cpu.backend.qpos.clone()
    qpos[:, 0] = 5.0 * torch.rand(24, generator=random)
    qpos[:, 3:7] += 0.1 * torch.randn(24, 4, generator=random)
    qpos[:, 3:7] /= qpos[:, 3:7].norm(dim=1, keepdim=True)
    for task in (cpu, gpu):
        task.backend.reset(
            torch.ones(24, dtype=torch.bool, device=task.device),
            qpos.to(task.device),
            torch.zeros_like(task.backend.qvel),
        )
        task.commands.fill_(0.5)
        task.phase.fill_(0.3)
        task.actions.fill_(0.1)
        task._read_state()
    torch.testing.assert_close(gpu.compute_observation().cpu(), cpu.compute_observation(), rtol=1e-4, atol=1e-4)
    for _ in range(5):
        obs, _, _, infos = gpu.step(torch.zeros(24, 12, device="cuda"))
    assert obs.isfinite().all()
    assert infos["log"]["Simulation/diverged"] == 0
