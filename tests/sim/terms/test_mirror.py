"""Mirror symmetry of walking tasks: mirrored robots under mirrored actions stay mirror images."""

import pytest
import torch

from st_rl.modules.symmetry import Symmetry, joint_mirror, observation_mirror
from st_rl.runners import build_runner
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.robots import Robot, robot_path
from st_rl.sim.tasks import TASKS, make_task
from st_rl.sim.terms.mirror import mirror_columns

QUIET = {"noise.level": 0.0, "push.max_speed": 0.0, "physics.num_threads": 1, "commands.standing_fraction": 0.0}
ALIKE = {f"randomization.{name}": None for name in ("friction", "base_mass", "motor_strength")}
# Mirror signs of the positions and velocities of a free joint: x, y, z, then a quaternion; its
# linear velocity is in the world frame, its angular velocity in the body frame.
FREE_POSITION = torch.tensor([1.0, -1, 1, 1, -1, 1, -1])
FREE_VELOCITY = torch.tensor([1.0, -1, 1, -1, 1, -1])


def symmetry_of(task):
    mirror = task.mirror
    joints = joint_mirror(mirror["joint_names"], mirror["joint_signs"])
    obs = observation_mirror(task.obs_segments, mirror["obs"], joints)
    return Symmetry(obs, joints, observation_mirror(task.critic_obs_segments, mirror["critic_obs"], joints))


def write_mirrored_pairs(task, joints):
    """Make every second robot the mirror image of the previous one, half a stride later."""
    qpos, qvel = task.backend.qpos.clone(), task.backend.qvel.clone()
    for values, free in ((qpos, FREE_POSITION), (qvel, FREE_VELOCITY)):
        width = len(free)
        values[1::2, :width] = values[::2, :width] * free
        values[1::2, width:] = joints(values[::2, width:])
    task.phase[1::2] = (task.phase[::2] + 0.5).frac()
    task.commands[1::2] = task.commands[::2] * torch.tensor([1.0, -1, -1])
    task.backend.reset(torch.ones(task.num_envs, dtype=torch.bool), qpos, qvel)


@pytest.mark.parametrize("name", ["humanoid-walk", "quadruped-walk"])
def test_mirrored_robots_under_mirrored_actions_stay_mirror_images(name):
    task = make_task(name, 16, seed=3, **QUIET, **ALIKE)
    symmetry = symmetry_of(task)
    write_mirrored_pairs(task, symmetry.actions)
    generator = torch.Generator().manual_seed(1)
    obs = task.get_observations()[0]
    for _ in range(12):
        actions = torch.empty(16, task.num_actions)
        actions[::2] = torch.randn(8, task.num_actions, generator=generator)
        actions[1::2] = symmetry.actions(actions[::2])
        obs, rewards, dones, infos = task.step(actions)
        assert not dones.any()
        critic_obs = infos["observations"]["critic"]
        torch.testing.assert_close(obs[1::2], symmetry.obs(obs[::2]), atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(critic_obs[1::2], symmetry.critic_obs(critic_obs[::2]), atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(rewards[1::2], rewards[::2], atol=1e-3, rtol=1e-3)
    # They have moved, and the robots of a pair differ.
    assert (obs[1::2] - obs[::2]).abs().max() > 0.1


def clock_signs(*phases):
    robot = Robot.from_mjcf(robot_path("quadruped")).mirror()
    return mirror_columns("clock", 2, robot, phases)[1]


def test_clock_signs_of_trot_pace_and_bound():
    assert clock_signs(0.0, 0.5, 0.5, 0.0) == [-1, -1]  # trot
    assert clock_signs(0.1, 0.6, 0.1, 0.6) == [-1, -1]  # pace
    assert clock_signs(0.0, 0.0, 0.5, 0.5) == [1, 1]  # bound


def test_rejects_terms_without_mirror():
    robot = Robot.from_mjcf(robot_path("quadruped"))
    with pytest.raises(ValueError, match="another gait in the mirror"):
        clock_signs(0.0, 0.25, 0.5, 0.75)
    with pytest.raises(ValueError, match="unknown mirror 'depth'; use scalar, vector"):
        mirror_columns("depth", 10, robot.mirror(), ())
    with pytest.raises(ValueError, match="has 4 columns, the term 6"):
        mirror_columns("feet", 6, robot.mirror(), ())
    lopsided = Robot.from_mjcf(robot_path("quadruped"))
    lopsided.default_qpos[robot.qpos_indices[0]] = 0.2
    with pytest.raises(ValueError, match="no mirror symmetry at 'FR_hip_joint'"):
        lopsided.mirror()


def test_mirror_kinds_give_columns_and_signs_and_repeat_over_a_history():
    robot = Robot.from_mjcf(robot_path("quadruped")).mirror()
    assert mirror_columns("pseudovector", 6, robot, ()) == ([0, 1, 2, 3, 4, 5], [-1, 1, -1, -1, 1, -1])
    assert mirror_columns("feet", 4, robot, ()) == (list(robot.feet), [1] * 4)
    assert mirror_columns("joints", 12, robot, ()) == (list(robot.joints), list(robot.signs))
    assert mirror_columns((1, -1), 4, robot, ()) == ([0, 1, 2, 3], [1, -1, 1, -1])
    assert mirror_columns({"columns": [1, 0], "signs": [-1, -1]}, 2, robot, ()) == ([1, 0], [-1, -1])


@pytest.mark.parametrize("name", [name for name, entry in sorted(TASKS.items()) if issubclass(entry.task, LeggedWalk)])
def test_every_walking_task_has_a_mirror_of_its_whole_observation(name):
    task = make_task(name, 2, seed=1, **QUIET)
    symmetry = symmetry_of(task)
    assert (len(symmetry.obs), len(symmetry.critic_obs)) == (task.num_obs, task.num_privileged_obs)
    obs = task.compute_observation()
    assert torch.equal(symmetry.critic_obs(symmetry.critic_obs(obs)), obs)


def test_runner_takes_the_mirror_of_its_environment():
    from st_rl.runners import build_runner
    from st_rl.sim.tasks import find_task

    env = make_task("humanoid-walk", 4, **{"physics.num_threads": 1})
    config = find_task("humanoid-walk").training_config() | {"num_steps_per_env": 4, "engine": "eager"}
    config["algorithm"]["symmetry_cfg"] = {"mirror_loss_coef": 0.5}
    runner = build_runner("OnPolicyRunner", env, config, None, "cpu")
    assert len(runner.alg.symmetry.symmetry.critic_obs) == env.num_privileged_obs
    runner.learn(1)


def symmetric_runner(task, symmetry_cfg):
    config = TASKS["quadruped-walk"].training_config()
    config["algorithm"]["symmetry_cfg"] = symmetry_cfg
    return build_runner("OnPolicyRunner", task, config, device="cpu")


def test_runner_reads_mirror_of_task():
    task = make_task("quadruped-walk", 2, seed=1, **QUIET)
    runner = symmetric_runner(task, {"mirror_loss_coef": 0.5, "joint_names": None})
    learned, expected = runner.alg.symmetry, symmetry_of(task)
    assert learned.mirror_loss_coef == 0.5
    sizes = (task.num_obs, task.num_privileged_obs, task.num_actions)
    values = [torch.randn(3, size) for size in sizes]
    for mirrored, image in zip(learned.symmetry.augment(*values), expected.augment(*values)):
        torch.testing.assert_close(mirrored, image)


def test_inner_algorithm_settings_get_the_mirror():
    task = make_task("quadruped-walk", 2, seed=1, **QUIET)
    config = TASKS["quadruped-walk"].training_config()
    teacher = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}
    config["algorithm"] = {"class_name": "TPPO", "teacher_policy": teacher, "ppo": {"symmetry_cfg": {"obs": None}}}
    runner = build_runner("OnPolicyRunner", task, config, device="cpu")
    assert len(runner.alg.symmetry.symmetry.critic_obs) == task.num_privileged_obs


def test_configured_mirror_takes_precedence_over_task():
    """A configured mirror map is accepted for a task without one."""
    task = make_task("quadruped-walk", 2, seed=1, **QUIET)
    own = task.mirror
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(task), "mirror", property(lambda _: pytest.fail("asked for its mirror image")))
        runner = symmetric_runner(task, own)
    assert runner.alg.symmetry.use_data_augmentation
