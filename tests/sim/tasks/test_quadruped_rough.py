"""The task `quadruped-rough`: heights above ground, terrain levels, and commands within a patch."""

import math

import mujoco
import numpy as np
import pytest
import torch

from st_rl.modules.symmetry import joint_mirror, observation_mirror
from st_rl.sim.tasks import find_task, make_task

NUM_ENVS = 12
EVERYONE = torch.ones(NUM_ENVS, dtype=torch.bool)


def build(num_envs=NUM_ENVS, **overrides):
    # A small terrain is built faster.
    small = {"terrain.num_levels": 3, "terrain.patch_size": 5.0, "terrain.border": 1.0, "physics.num_threads": 1}
    return make_task("quadruped-rough", num_envs, **{**small, **overrides})


@pytest.fixture
def task():
    return build()


def place(task, x, y, yaw=0.0, height=0.0):
    """Place every robot on its patch at a position, height and heading, and read the state."""
    qpos = task._default_qpos.repeat(task.num_envs, 1)
    qpos[:, :2] = task._patch_centers() + torch.tensor([x, y])
    qpos[:, 2] += task.ground.height_at(qpos[:, :2]) + height
    qpos[:, 3], qpos[:, 6] = math.cos(yaw / 2), math.sin(yaw / 2)
    everyone = torch.ones(task.num_envs, dtype=torch.bool)
    task.backend.reset(everyone, qpos, torch.zeros_like(task.backend.qvel))
    # Sensors lag by one step: take one with little motion.
    task.backend.set_control(qpos[:, 7:])
    task.backend.step(1)
    task._read_state()
    return qpos


def ray_height(task, data, x, y):
    """Height of the ground by a ray from above."""
    geom = task.robot.model.geom("terrain").id
    start, down = np.array([float(x), float(y), 5.0]), np.array([0.0, 0.0, -1.0])
    return 5.0 - mujoco.mj_rayHfield(task.robot.model, data, geom, start, down, None)


class TestHeights:
    def test_base_feet_and_scan_are_measured_above_the_ground(self, task):
        yaw = 0.7
        place(task, 1.3, -0.6, yaw, height=0.2)
        cos, sin = math.cos(yaw), math.sin(yaw)
        points = [(x, y) for x in np.linspace(-0.4, 0.8, 13) for y in np.linspace(-0.3, 0.3, 5)]
        for robot in range(NUM_ENVS):
            data = task.backend.snapshot(robot)
            base_x, base_y, base_z = data.qpos[:3]
            hips = [ray_height(task, data, base_x + s * 0.19 * cos, base_y + s * 0.19 * sin) for s in (-1, 1)]
            assert float(task.base_height[robot]) == pytest.approx(base_z - sum(hips) / 2, abs=1e-3)
            scan = [ray_height(task, data, base_x + x * cos - y * sin, base_y + x * sin + y * cos) for x, y in points]
            expected = np.array(scan) - (base_z - task.default_height)
            np.testing.assert_allclose(task.height_scan[robot], expected, atol=2e-3)
            for foot, height in zip(task.robot.feet, task.foot_height[robot]):
                x, y, z = data.geom(foot.name).xpos
                under = [ray_height(task, data, x + a * cos, y + a * sin) for a in (0.0, 0.12)]
                assert float(height) == pytest.approx(z - foot.radius - max(under), abs=4e-3)

    def test_robots_start_on_flat_ground_in_the_middle_of_their_patches(self, task):
        task.reset()
        assert torch.all(task.patch_place.abs() <= 0.3 + 1e-6)
        torch.testing.assert_close(task.base_height, torch.full((NUM_ENVS, 1), task.default_height), rtol=0, atol=1e-4)
        assert task.kind.tolist() == [i % 6 for i in range(NUM_ENVS)]


class TestObservations:
    @pytest.mark.parametrize("observe", [True, False])
    def test_actor_observes_scan_only_if_configured(self, observe):
        task = build(observe_scan=observe)
        assert ("height_scan" in task.obs_segments) == observe
        assert task.critic_obs_segments["height_scan"] == 65

    def test_actor_scan_has_configured_noise_and_commands_have_none(self):
        task = build(**{"noise.height_scan": 0.03})
        task.step(torch.zeros(NUM_ENVS, 12))
        difference = (task.obs_buf - task.privileged_obs_buf[:, : task.num_obs]).abs()
        assert 0.025 < difference[:, -65:].max() <= 0.03 + 1e-6
        start = sum(w for n, w in list(task.obs_segments.items())[: list(task.obs_segments).index("commands")])
        assert difference[:, start:-65].max() == 0

    def test_teacher_obs_equals_critic_obs_of_blind_student(self):
        blind = {"observe_scan": False, "observe_linear_velocity": False}
        teacher, student = build(privileged_actor=True, **blind), build(**blind)
        assert list(teacher.obs_segments.items()) == list(student.critic_obs_segments.items())


class TestCommands:
    def test_steering_takes_shorter_way(self, task):
        task.commands[:] = torch.tensor([0.5, 0.0, 0.0])
        task.desired_heading.fill_(math.pi - 0.1)
        place(task, 0.0, 0.0, yaw=-math.pi + 0.1)
        assert torch.allclose(task.commands[:, 2], torch.tensor(-0.2), atol=1e-3)
        place(task, 0.0, 0.0, yaw=0.0)
        assert torch.allclose(task.commands[:, 2], torch.tensor(0.8))

    def test_standing_robot_is_not_steered(self, task):
        task.commands.zero_()
        task.desired_heading.fill_(1.0)
        place(task, 0.0, 0.0)
        assert not task.commands.any()

    def test_steers_robots_at_rim_to_center(self, task):
        no_env = torch.zeros(NUM_ENVS, dtype=torch.bool)
        place(task, 2.4, 0.0)
        task.desired_heading.fill_(0.3)
        task._reset_envs(no_env)
        off = (task.desired_heading - math.pi).remainder(2 * math.pi)
        assert torch.all(torch.minimum(off, 2 * math.pi - off) <= 0.5 + 1e-5)
        # No change if it moves back already or is not at the rim yet.
        for x, heading in ((2.4, 2.5), (1.5, 0.3)):
            place(task, x, 0.0)
            task.desired_heading.fill_(heading)
            task._reset_envs(no_env)
            assert torch.all(task.desired_heading == heading)


class TestLevels:
    def walked(self, task, farthest, speed=0.5):
        """Levels after an episode in which every robot moved a given distance from the center."""
        task.commands[:] = torch.tensor([speed, 0.0, 0.0])
        place(task, 0.0, 0.0)
        task.farthest.fill_(farthest)
        task._update_errors()
        task._episode_length.fill_(100)
        task._sample_random()
        task._reset_envs(EVERYONE)
        return task.level.clone()

    def test_clearing_moves_up_and_struggling_moves_down(self, task):
        task.level.fill_(1)
        assert torch.all(self.walked(task, task.rim) == 2)
        assert torch.all(task.farthest == 0)
        task.level.fill_(1)
        # 0.5 m/s for 10 s leads beyond the rim, so half the distance to it is required.
        assert torch.all(self.walked(task, 0.51 * task.rim) == 1)
        assert torch.all(self.walked(task, 0.49 * task.rim) == 0)
        assert torch.all(self.walked(task, 0.0) == 0)

    def test_required_distance_scales_with_command(self, task):
        task.level.fill_(1)
        assert torch.all(self.walked(task, 0.55, speed=0.1) == 1)
        assert torch.all(self.walked(task, 0.45, speed=0.1) == 0)

    def test_clearing_last_level_continues_at_random_level(self):
        task = build(60)
        task.level.fill_(2)
        task.commands[:, 0] = 0.5
        task.farthest.fill_(task.rim)
        task._update_errors()
        task._episode_length.fill_(100)
        task._reset_envs(torch.ones(60, dtype=torch.bool))
        assert set(task.level.tolist()) == {0, 1, 2}

    def test_evaluation_spreads_robots_over_fixed_levels(self):
        cfg = find_task("quadruped-rough").cfg()
        cfg.terrain.num_levels = 3
        task = make_task("quadruped-rough", 18, cfg=cfg.for_evaluation(fine=False))
        assert sorted(zip(task.kind.tolist(), task.level.tolist())) == [(k, lv) for k in range(6) for lv in range(3)]
        before = task.level.clone()
        task.farthest.fill_(9.0)
        task._update_errors()
        task._episode_length.fill_(100)
        task._reset_envs(torch.ones(18, dtype=torch.bool))
        assert torch.equal(task.level, before)

    def test_rejects_unknown_levels(self):
        with pytest.raises(ValueError, match=r"start_levels is \(0, 3\): give two of the levels 0 to 2"):
            build(**{"curriculum.start_levels": (0, 3)})


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("sideways", (-0.3, 0.3, 1), r"scan.sideways has 1 points from -0.3 to 0.3 m: give two or more"),
        ("forward", (-0.4, 0.8, 0), r"scan.forward has 0 points"),
        ("sideways", (-0.3, 0.2, 4), r"as far left as right"),
    ],
)
def test_rejects_asymmetric_or_empty_scan(name, line, message):
    with pytest.raises(ValueError, match=message):
        build(**{f"scan.{name}": line})


@pytest.mark.parametrize("in_evaluation", [False, True])
def test_knee_is_fall_in_training_only(in_evaluation):
    cfg = find_task("quadruped-rough").cfg()
    task = build(2, knees_may_touch=(cfg.for_evaluation() if in_evaluation else cfg).knees_may_touch)
    names = {
        int(task.robot.model.sensor(s).adr[0]): task.robot.model.sensor(s).name for s in range(task.robot.model.nsensor)
    }
    base = [names[address] == "trunk_contact" for address in task.robot.fall_sensors]
    # The knees of the first robot touch the ground, and the trunk of the second.
    task._fall_contacts = torch.tensor([[float(not is_base) for is_base in base], [float(is_base) for is_base in base]])
    task._update_errors()
    assert task.has_fallen.tolist() == [not in_evaluation, True]
    assert task.num_knee_contacts.tolist() == [4.0, 0.0]
    assert [names[address] for address in task.fall_sensors] == ["trunk_contact"]


def test_leaving_the_terrain_ends_the_episode(task):
    qpos = place(task, 0.0, 0.0)
    qpos[3, 0] -= 100.0
    task.backend.reset(EVERYONE, qpos, torch.zeros_like(task.backend.qvel))
    for _ in range(25):
        _, _, dones, infos = task.step(torch.zeros(NUM_ENVS, 12))
        if dones[3]:
            break
    assert dones[3]
    assert not infos["time_outs"][3]


def test_mirror_swaps_sides_of_scan(task):
    kinds = task.mirror
    joints = joint_mirror(kinds["joint_names"], kinds["joint_signs"])
    critic = observation_mirror(task.critic_obs_segments, kinds["critic_obs"], joints)
    place(task, 1.3, -0.6, 0.0)
    first = sum(list(task.critic_obs_segments.values())[: list(task.critic_obs_segments).index("height_scan")])
    seen = task.compute_observation()
    mirrored = critic(seen)[:, first : first + 65].view(-1, 13, 5)
    assert torch.equal(mirrored, seen[:, first : first + 65].view(-1, 13, 5).flip(2))
