"""Tasks by name, their configurations, and errors for misspelled ones."""

import dataclasses
import json

import pytest

from st_rl.sim.tasks import TASKS, find_task, make_task, with_overrides
from st_rl.sim.tasks.balance import Balance, BalanceCfg
from st_rl.sim.tasks.quadruped_walk import QuadrupedWalk, QuadrupedWalkCfg


def test_unknown_task_lists_the_tasks_with_the_nearest_first():
    with pytest.raises(ValueError, match=r"unknown task 'quadruped-wlak'; did you mean 'quadruped-walk'\? known: bal"):
        make_task("quadruped-wlak", 2)


def test_task_by_path_gets_its_configuration():
    path = "st_rl.sim.tasks.balance:Balance"
    assert type(make_task(path, 2, cfg=BalanceCfg())) is Balance
    with pytest.raises(ValueError, match="needs its configuration"):
        make_task(path, 2)
    with pytest.raises(ValueError, match="must be a subclass of Task"):
        make_task("st_rl.sim.tasks.balance:BalanceCfg", 2, cfg=BalanceCfg())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("comands.lin_vel_x", r"option 'comands.lin_vel_x'.*did you mean 'commands'"),  # codespell:ignore comands
        ("commands.lin_vl_x", r"did you mean 'lin_vel_x'"),
        ("rewards.gate", r"did you mean 'gait'"),
        ("episode_length_s.x", r"reaches into a value that has no parts: 10.0"),
    ],
)
def test_unknown_option_names_the_nearest(option, message):
    with pytest.raises(ValueError, match=message):
        make_task("quadruped-walk", 2, **{option: 1.0})


def test_overrides_reach_every_level_and_keep_original():
    cfg = QuadrupedWalkCfg()
    before = dataclasses.asdict(cfg)
    changed = with_overrides(
        cfg,
        {"episode_length_s": 3.0, "physics.timestep": 0.005, "commands.lin_vel_x": (0.3, 1.0), "rewards.gait": 2.0},
    )
    assert dataclasses.asdict(cfg) == before
    assert (changed.episode_length_s, changed.physics.timestep) == (3.0, 0.005)
    assert changed.commands.lin_vel_x == (0.3, 1.0)
    assert changed.rewards == before["rewards"] | {"gait": 2.0}


@pytest.mark.parametrize(
    ("task", "option", "value", "message"),
    [
        (
            "quadruped-walk",
            "commands.lin_vel_x",
            0.5,
            r"'commands.lin_vel_x' takes 2 values \(a number, a number\), such as",
        ),
        ("quadruped-walk", "commands.lin_vel_x", (0.1, 0.2, 0.3), r"takes 2 values"),
        ("quadruped-walk", "commands.lin_vel_x", ("slow", "fast"), r"takes 2 values"),
        ("quadruped-walk", "randomization.friction", 0.5, r"takes 2 values .* or None, such as \(0.5, 1.25\); got 0.5"),
        ("quadruped-walk", "physics.integrator", "euler", r"takes one of Euler, RK4"),
        ("quadruped-walk", "physics.substeps", 2.5, r"takes a whole number, such as 2; got 2.5"),
        ("quadruped-walk", "only_positive_rewards", 1, r"takes True or False"),
        ("quadruped-walk", "gait.offsets", 0.5, r"takes several of: a number"),
        ("quadruped-walk", "push", {"max_speed": 0.0}, r"'push' takes a PushCfg"),
        ("quadruped-parkour", "tracks.sequences", ("gap",), r"takes a dictionary"),
        ("quadruped-parkour", "curriculum.start_levels", 2, r"takes 2 values \(a whole number, a whole number\)"),
    ],
)
def test_wrong_type_error_names_expected_type(task, option, value, message):
    with pytest.raises(ValueError, match=message):
        with_overrides(find_task(task).cfg(), {option: value})


def test_values_are_kept_as_their_fields_hold_them():
    cfg = with_overrides(
        find_task("quadruped-parkour").cfg(),
        {
            "commands.lin_vel_x": [1, 2],
            "randomization.friction": None,
            "control.action_scale": [0.1] * 12,
            "observe": "proprioception",
            "tracks.sequences": {"gaps": ["gap", "gap"], "hurdle": "hurdle"},
            "start_area": [[0.0, 0.1], (0, 0)],
        },
    )
    assert cfg.commands.lin_vel_x == (1, 2)
    assert cfg.randomization.friction is None
    assert cfg.control.action_scale == (0.1,) * 12
    assert cfg.observe == ("proprioception",)
    assert cfg.tracks.sequences == {"gaps": ("gap", "gap"), "hurdle": ("hurdle",)}
    assert cfg.start_area == ((0.0, 0.1), (0, 0))


def test_scales_of_the_cart_pole_must_be_complete():
    with pytest.raises(ValueError, match="obs_scales lacks position, angle, ang_vel: give each a factor"):
        make_task("balance", 2, **{"normalization.obs_scales": {"lin_vel": 1.0}})


def test_number_of_robots_comes_from_the_configuration_unless_given():
    assert make_task("balance").num_envs == find_task("balance").cfg().num_envs
    assert make_task("balance", 3).num_envs == 3
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        make_task("balance", 0)


def test_rejects_configuration_of_other_task():
    with pytest.raises(ValueError, match="takes a BalanceCfg, got a QuadrupedWalkCfg"):
        make_task("balance", 2, cfg=QuadrupedWalkCfg())


def test_rejects_unknown_reward_term():
    cfg = QuadrupedWalkCfg(rewards={"track_linear_velocty": 1.0})
    with pytest.raises(ValueError, match="did you mean 'track_lin_vel_xy'"):
        make_task("quadruped-walk", 2, cfg=cfg)
    with pytest.raises(ValueError, match="gives no term a weight"):
        make_task("quadruped-walk", 2, cfg=QuadrupedWalkCfg(rewards={"gait": 0.0}))


def test_task_keeps_its_own_copy_of_the_configuration():
    cfg = QuadrupedWalkCfg()
    task = make_task("quadruped-walk", 2, cfg=cfg)
    cfg.rewards["gait"] = 9.0
    assert task.cfg.rewards["gait"] == QuadrupedWalk.REWARDS["gait"].weight


@pytest.mark.parametrize("name", sorted(TASKS))
def test_training_configuration_is_plain_and_a_copy(name):
    entry = find_task(name)
    config = entry.training_config()
    assert json.loads(json.dumps(config)) == config
    assert config["num_steps_per_env"] == 24
    assert config["algorithm"]["class_name"] == ("APPO" if name.endswith("-amp") else "PPO")
    config["policy"]["init_noise_std"] = 9.0
    assert entry.training_config()["policy"]["init_noise_std"] == 0.5


def test_scales_that_controllers_need_are_exposed():
    cfg = make_task("quadruped-walk", 2).cfg
    assert cfg.control.action_scale == 0.3
    assert cfg.normalization.obs_scales["lin_vel"] == 1.0


def test_evaluation_has_no_disturbances_and_fine_physics():
    cfg = QuadrupedWalkCfg(episode_length_s=20.0)
    fine, coarse = cfg.for_evaluation(), cfg.for_evaluation(fine=False)
    assert (fine.physics.timestep, fine.physics.substeps, fine.physics.iterations) == (0.005, 4, 50)
    assert coarse.physics == cfg.physics
    assert fine.physics.control_period == pytest.approx(cfg.physics.control_period)
    for quiet in (fine, coarse):
        assert quiet.noise.level == quiet.push.max_speed == 0.0
        assert quiet.control.latency_s == (0.0, 0.0)
        assert set(dataclasses.astuple(quiet.randomization)) == {None}
        assert quiet.episode_length_s == 20.0
    assert cfg.noise.level == 1.0


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_summary(name):
    assert TASKS[name].summary[0].islower()
    assert len(TASKS[name].summary.split()) > 4


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize(
    "name", ["episode_length_s", "control.clip_actions", "normalization.clip_observations", "physics.timestep"]
)
def test_rejects_impossible_numbers(name, value):
    with pytest.raises(ValueError, match=rf"{name.removeprefix('physics.')}.*(give a number above 0|> 0)"):
        make_task("balance", 2, **{name: value})


def test_rejects_endless_episodes_and_negative_threads():
    with pytest.raises(ValueError, match="episode_length_s is infinite: give a number of seconds"):
        make_task("balance", 2, episode_length_s=float("inf"))
    with pytest.raises(ValueError, match="num_threads is -2: give a number of threads, or 0 for all cores"):
        make_task("balance", 2, **{"physics.num_threads": -2})
