"""Evaluation metrics, checked on a fake task with known motion."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from st_rl.cli.support.task_source import find_source
from st_rl.env.protocols import CommandedEnv
from st_rl.sim.envs.terrain_walk import Course
from st_rl.sim.evaluation.command_grid import AXES, EvaluationCfg, command_grid, command_ranges, evaluation_commands
from st_rl.sim.evaluation.evaluator import (
    CheckpointEvaluator,
    compute_walk_metrics,
    evaluate_episodes,
    evaluate_walk,
    make_eval_task,
    walk_score,
)
from st_rl.sim.evaluation.gait_metrics import diagonal_pairs
from st_rl.sim.evaluation.rollout import EvaluationRollout
from tests.fakes import EchoEnv
from tests.modules.graph_safety import watch_reads

FEET = np.array([[1.0, -1, 0], [1, 1, 0], [-1, -1, 0], [-1, 1, 0]])
PERIOD = 0.02


class KnownWalk:
    """Robots that move at their command plus `bias`, plus a wave of `wave`; robot `i` falls after `falls[i]` steps."""

    def __init__(self, num_envs=4, bias=0.1, wave=0.0, falls=None, fall_speed=None):
        self.num_envs, self.device, self.step_dt = num_envs, torch.device("cpu"), PERIOD
        self.cfg = SimpleNamespace(
            commands=SimpleNamespace(
                lin_vel_x=(0.0, 1.0), lin_vel_y=(0.0, 0.0), ang_vel_yaw=(0.0, 0.0), moving_threshold=0.1
            )
        )
        self.robot = SimpleNamespace(feet=[None] * 4, mass=10.0, foot_positions=FEET)
        self.bias, self.wave, self.falls, self.fall_speed = bias, wave, falls or {}, fall_speed
        self.diverged_count = torch.tensor(0)
        self.pushes = []
        self.steps = 0

    def reset(self):
        self.steps = 0
        return self.get_observations()

    def get_observations(self):
        return torch.zeros(self.num_envs, 2), {"observations": {}}

    def hold_commands(self, commands):
        self.commands = commands

    def push(self, velocity, mask):
        self.pushes.append((self.steps, velocity.clone(), mask.clone()))

    def step(self, actions):
        self.steps += 1
        swing = self.wave * math.sin(2 * math.pi * self.steps * PERIOD / 0.5)
        velocity = self.commands + self.bias + swing
        if self.fall_speed is not None:
            for robot, at in self.falls.items():
                if self.steps > at:
                    velocity[robot] = self.fall_speed
        self.base_lin_vel = torch.cat([velocity[:, :2], torch.zeros(self.num_envs, 1)], dim=1)
        self.base_ang_vel = torch.cat([torch.zeros(self.num_envs, 2), velocity[:, 2:]], dim=1)
        phase = (self.steps * PERIOD / 0.5 + torch.tensor([0.0, 0.5, 0.5, 0.0])) % 1.0
        self.foot_contact = (phase < 0.5).expand(self.num_envs, 4)
        self.foot_height = torch.where(self.foot_contact, 0.0, 0.05)
        self.torques = torch.full((self.num_envs, 12), 2.0)
        self.joint_vel = torch.full((self.num_envs, 12), -1.0)
        dones = torch.tensor([self.falls.get(i) == self.steps for i in range(self.num_envs)])
        return torch.zeros(self.num_envs, 2), torch.zeros(self.num_envs), dones, {}


def walk_metrics(record, task):
    return compute_walk_metrics(record, task.robot, warmup_s=1.0, moving_threshold=0.1)


def still(obs):
    return torch.zeros(obs.shape[0], 12)


def test_grid_fills_the_ranges_with_equal_levels():
    grid = command_grid([(-0.5, 1.0), (-0.4, 0.4), (-0.8, 0.8)], 64)
    assert grid.shape == (64, 3)
    assert len({tuple(row) for row in grid.tolist()}) == 64
    for axis, (low, high) in enumerate([(-0.5, 1.0), (-0.4, 0.4), (-0.8, 0.8)]):
        expected = [low + i * (high - low) / 3 for i in range(4)]
        assert sorted({round(v, 5) for v in grid[:, axis].tolist()}) == pytest.approx(expected, abs=1e-5)


def test_grid_of_one_axis_gives_every_robot_its_own_speed():
    grid = command_grid([(0.3, 1.0), (0.0, 0.0), (0.0, 0.0)], 64)
    assert grid[:, 0].tolist() == pytest.approx([0.3 + 0.7 * i / 63 for i in range(64)], abs=1e-6)
    assert (grid[:, 1:] == 0).all()


def test_grid_repeats_for_other_counts():
    grid = command_grid([(0.0, 1.0), (0.0, 1.0), (0.0, 0.0)], 6)
    assert grid[:4].tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]]
    assert grid[4:].tolist() == grid[:2].tolist()


@pytest.mark.parametrize("count", [1, 7])
def test_small_grid_uses_center_of_ranges(count):
    grid = command_grid([(-0.5, 1.0), (-0.4, 0.4), (-0.8, 0.8)], count)
    torch.testing.assert_close(grid, torch.tensor([0.25, 0.0, 0.0]).repeat(count, 1))


def test_accepts_reversed_command_range():
    commands = SimpleNamespace(lin_vel_x=(1.0, -0.5), lin_vel_y=(-0.4, 0.4), ang_vel_yaw=(0.0, 0.0))
    assert command_ranges(EvaluationCfg(ang_vel_yaw=(0.8, -0.8)), commands) == [(-0.5, 1.0), (-0.4, 0.4), (-0.8, 0.8)]


def test_commands_are_shuffled_over_levels():
    flat, rough = KnownWalk(num_envs=64), KnownWalk(num_envs=64)
    rough.level = torch.arange(64).div(16, rounding_mode="floor")
    in_order, shuffled = (evaluation_commands(EvaluationCfg(), task)[:, 0] for task in (flat, rough))
    assert torch.equal(in_order, torch.linspace(0.0, 1.0, 64))
    assert torch.equal(shuffled.sort().values, in_order)
    for level in range(4):
        assert shuffled[rough.level == level].mean() == pytest.approx(0.5, abs=0.15)


def test_counts_robots_of_which_a_knee_touched_before_their_fall():
    class UnevenWalk(KnownWalk):
        def step(self, actions):
            # The third robot falls first: its knee counts only until then.
            self.num_knee_contacts = torch.tensor([2.0 * (self.steps == 40), 0.0, 1.0 * (self.steps == 40), 0.0])
            return super().step(actions)

    cfg = EvaluationCfg(num_envs=4, seconds=2.0, push_speed=0.0)
    metrics, _ = evaluate_walk(UnevenWalk(falls={2: 30}), still, cfg)
    assert (metrics["falls"], metrics["knee_contacts"]) == (1, 1)
    assert "knee_contacts" not in evaluate_walk(KnownWalk(), still, cfg)[0]


def test_rejects_a_rollout_shorter_than_the_warmup():
    with pytest.raises(ValueError, match=r"of 1 s ends within the warm-up of 1 s: give more seconds"):
        evaluate_walk(KnownWalk(), still, EvaluationCfg(num_envs=4, seconds=1.0))


def test_configuration_overrides_command_ranges_of_the_task():
    commands = SimpleNamespace(lin_vel_x=(-0.5, 1.0), lin_vel_y=(-0.4, 0.4), ang_vel_yaw=(-0.8, 0.8))
    plan = EvaluationCfg(lin_vel_x=(0.3, 1.0), ang_vel_yaw=(0.0, 0.0))
    assert command_ranges(plan, commands) == [(0.3, 1.0), (-0.4, 0.4), (0.0, 0.0)]


def test_error_of_the_mean_ignores_an_oscillation_that_the_mae_includes():
    task = KnownWalk(bias=0.1, wave=0.3)
    commands = command_grid([(0.2, 1.0), (0.0, 0.0), (0.0, 0.0)], 4)
    figures = walk_metrics(EvaluationRollout(task, still, 6.0).run(commands), task)
    # Whole periods after the settling time: the mean of the wave is zero.
    steps = range(51, 301)
    instant = [abs(0.1 + 0.3 * math.sin(2 * math.pi * s * PERIOD / 0.5)) for s in steps]
    for axis in AXES:
        assert figures[f"{axis}_error"] == pytest.approx(0.1, abs=1e-3)
        assert figures[f"{axis}_mae"] == pytest.approx(sum(instant) / len(instant), abs=1e-3)


def test_errors_exclude_steps_after_fall():
    task = KnownWalk(bias=0.1, falls={1: 100, 3: 20}, fall_speed=50.0)
    result = EvaluationRollout(task, still, 4.0).run(command_grid([(0.2, 1.0), (0.0, 0.0), (0.0, 0.0)], 4))
    figures = walk_metrics(result, task)
    assert figures["falls"] == 2
    assert result.fell.tolist() == [False, True, False, True]
    assert figures["lin_vel_x_error"] == pytest.approx(0.1, abs=1e-5)


class LedWalk(KnownWalk):
    """The task overrides the requested yaw rate, and the robots follow the override."""

    def step(self, actions):
        outcome = super().step(actions)
        self.commands = torch.cat([self.commands[:, :2], torch.full((self.num_envs, 1), 0.4)], dim=1)
        return outcome


def test_errors_are_relative_to_the_effective_command():
    led = LedWalk(bias=0.0)
    record = EvaluationRollout(led, still, 4.0).run(torch.full((4, 3), 0.5))
    figures = walk_metrics(record, led)
    assert figures["ang_vel_yaw_error"] == pytest.approx(0.0, abs=1e-6)
    assert figures["ang_vel_yaw_mae"] == pytest.approx(0.0, abs=1e-6)


class CourseWalk(KnownWalk):
    """Robots that go 0.02 m a step: past the last obstacle at `cleared[i]` m, NaN for none, and over the end at 4 m.

    Whoever is done is at the start of a new episode when its step is over.
    """

    def __init__(self, cleared, **settings):
        super().__init__(num_envs=len(cleared), bias=0.0, **settings)
        self.cleared, self.level = torch.tensor(cleared), torch.tensor([0, 0, 0, 2, 2, 2])
        self.place = torch.zeros(len(cleared))

    def reset(self):
        self.place = torch.zeros(self.num_envs)
        return super().reset()

    def course(self):
        success = (self.place >= self.cleared).float()
        return Course(success.masked_fill_(self.cleared.isnan(), math.nan), self.place >= 3.99)

    def step(self, actions):
        obs, rewards, dones, infos = super().step(actions)
        self.place = self.place + 0.02
        dones = dones | (self.place > 4.02)
        self.place[dones] = 0.0
        return obs, rewards, dones, infos


NEVER = 100.0


def test_success_before_fall_and_end_of_course_is_no_fall():
    # Robot 0 has no obstacles; 1 falls after the last one, 2 before; 3 succeeds in its second episode; 4 never.
    task = CourseWalk([math.nan, 1.0, 1.0, 3.0, NEVER, 3.0], falls={1: 100, 2: 25, 3: 120})
    plan = EvaluationCfg(num_envs=6, seconds=10.0, push_speed=0.0)
    figures, robots = evaluate_walk(task, still, plan)
    assert robots["fell"] == [False, True, True, True, False, False]
    assert figures["falls"] == 3
    assert figures["success"] == pytest.approx(2 / 5)
    by_level = figures["success_by_level"]
    assert by_level[0] == pytest.approx(1 / 2)
    assert math.isnan(by_level[1])
    assert by_level[2] == pytest.approx(1 / 3)
    again, _ = evaluate_walk(task, still, plan)
    assert (again["falls"], again["success"]) == (3, figures["success"]), "a second walk starts afresh"


def test_steps_after_end_of_course_are_invalid():
    task = CourseWalk([math.nan] * 6, falls=dict.fromkeys(range(6), 201), fall_speed=50.0)
    result = EvaluationRollout(task, still, 8.0).run(torch.full((6, 3), 0.5))
    assert result.is_valid[:200].all()
    assert not result.is_valid[200:].any()
    assert walk_metrics(result, task)["lin_vel_x_error"] == pytest.approx(0.0, abs=1e-6)
    assert result.success.isnan().all()


def test_no_success_metrics_without_a_course():
    task = KnownWalk()
    figures, _ = evaluate_walk(task, still, EvaluationCfg(num_envs=4, seconds=2.0))
    assert not {"success", "success_by_level"} & set(figures)


@pytest.mark.parametrize(("seconds", "pushes"), [(3.0, []), (5.0, [200])])
def test_push_survival_needs_a_push(seconds, pushes):
    task = KnownWalk()
    figures, _ = evaluate_walk(task, still, EvaluationCfg(num_envs=4, seconds=seconds))
    assert [step for step, _, _ in task.pushes] == pushes
    assert ("push_survival" in figures) == bool(pushes)


def test_warns_of_commands_that_the_task_overrides(caplog):
    led = LedWalk(bias=0.0)
    plan = EvaluationCfg(num_envs=4, seconds=2.0, ang_vel_yaw=(-0.5, 0.5), push_speed=0.0)
    with caplog.at_level("WARNING", logger="st_rl"):
        _, robots = evaluate_walk(led, still, plan)
    assert "ang_vel_yaw" in caplog.text
    assert "lin_vel_x" not in caplog.text
    assert [command[2] for command in robots["command"]] == pytest.approx([0.4] * 4)
    caplog.clear()
    evaluate_walk(led, still, EvaluationCfg(num_envs=4, seconds=2.0, push_speed=0.0))
    assert caplog.text == "", "no command has a yaw rate"


def test_gait_figures_of_a_known_trot():
    task = KnownWalk(bias=0.0)
    result = EvaluationRollout(task, still, 5.0).run(torch.full((4, 3), 0.5))
    figures = walk_metrics(result, task)
    assert figures["foot_clearance"] == pytest.approx(0.05)
    assert figures["swing_rate"] == pytest.approx(2.0, abs=0.15)  # incomplete swings at either end do not count
    assert figures["stance_fraction"] == pytest.approx([0.5] * 4, abs=0.03)
    assert figures["alternation"] == pytest.approx(1.0)
    speed = math.hypot(0.5, 0.5)
    assert figures["cost_of_transport"] == pytest.approx(24.0 / (10.0 * 9.81 * speed), rel=1e-4)


def test_standing_robots_have_no_gait_metrics():
    task = KnownWalk(bias=0.0)
    result = EvaluationRollout(task, still, 3.0).run(torch.zeros(4, 3))
    figures = walk_metrics(result, task)
    assert math.isnan(figures["foot_clearance"])
    assert figures["lin_vel_x_error"] == pytest.approx(0.0, abs=1e-6)


def test_pushes_have_configured_speed_and_interval():
    task = KnownWalk(num_envs=8)
    EvaluationRollout(task, still, 10.0).run(torch.zeros(8, 3), pushes=(0.5, 3.0))
    assert [step for step, _, _ in task.pushes] == [150, 300, 450]
    for _, velocity, mask in task.pushes:
        assert velocity[:, :2].norm(dim=1).tolist() == pytest.approx([0.5] * 8, abs=1e-5)
        assert (velocity[:, 2] == 0).all()
        assert mask.all()
    assert not torch.equal(task.pushes[0][1], task.pushes[1][1])


def test_score_prefers_standing_to_small_errors():
    upright = {"num_envs": 64, "falls": 0, "lin_vel_x_mae": 0.3, "lin_vel_y_mae": 0.2, "ang_vel_yaw_mae": 0.2}
    precise = {"num_envs": 64, "falls": 32, "lin_vel_x_mae": 0.1, "lin_vel_y_mae": 0.1, "ang_vel_yaw_mae": 0.1}
    better = {**upright, "lin_vel_x_mae": 0.2}
    assert walk_score(better) > walk_score(upright) > walk_score(precise)
    nan = float("nan")
    fallen = {"num_envs": 64, "falls": 64, **{f"{axis}_mae": nan for axis in AXES}}
    assert walk_score(fallen) < walk_score(precise)
    # The fraction of fallen robots counts, not their number.
    assert walk_score({**precise, "num_envs": 640, "falls": 320}) == pytest.approx(walk_score(precise))


def test_policy_is_reset_where_episodes_end():
    resets = []

    class Recorder:
        def __call__(self, obs):
            return obs[:, :2]

        def reset(self, dones=None):
            resets.append(None if dones is None else dones.tolist())

    evaluate_episodes(EchoEnv(num_envs=3, episode_length=3, stagger=True), Recorder())
    assert resets == [None, [False, False, True], [False, True, False], [True, False, False]]


def test_episodes_are_summed_until_each_first_ends():
    env = EchoEnv(num_envs=6, episode_length=7, stagger=True)
    figures = evaluate_episodes(env, lambda obs: obs[:, :2])
    assert figures["num_envs"] == 6
    assert figures["reached_time_limit"] == 1.0
    # A perfect echo earns exactly one a step.
    assert figures["return_mean"] == pytest.approx(figures["length_mean"])
    assert 1.0 <= figures["length_mean"] <= 7.0


class NetworkPolicy:
    """A policy as a runner passes it to the evaluator."""

    def __init__(self, network):
        self.actor_critic = network

    def __call__(self, obs):
        return self.actor_critic(obs)


def test_wrapped_step_is_reused_until_the_tensors_of_the_policy_move():
    made, task = [], KnownWalk(bias=0.1)

    def wrap_step(step):
        made.append(step)
        return step

    scorer = CheckpointEvaluator(task, EvaluationCfg(num_envs=4, seconds=2.0, push_speed=0.0), wrap_step)
    network, other = torch.nn.Linear(2, 12), torch.nn.Linear(2, 12)
    network.is_recurrent = other.is_recurrent = False
    # All three axes are 0.1 off; the last one counts half.
    assert scorer(NetworkPolicy(network)) == pytest.approx(-0.25, abs=1e-5)
    with torch.no_grad():
        network.weight.mul_(2.0)
    task.bias = 0.2
    assert scorer(NetworkPolicy(network)) == pytest.approx(-0.5, abs=1e-5), "a second walk starts afresh"
    assert len(made) == 1
    scorer(NetworkPolicy(other))
    assert len(made) == 2
    other.weight = torch.nn.Parameter(other.weight.detach().clone())
    scorer(NetworkPolicy(other))
    assert len(made) == 3, "the numbers lie elsewhere now"
    other.is_recurrent = True
    other.weight = torch.nn.Parameter(other.weight.detach().clone())
    scorer(NetworkPolicy(other))
    assert len(made) == 3, "a memory moves with every step"


def test_steps_on_a_course_are_not_wrapped():
    # A captured step would read the iteration at capture.
    made, network = [], torch.nn.Linear(2, 12)
    network.is_recurrent = False

    def wrap_step(step):
        made.append(step)
        return step

    cfg = EvaluationCfg(num_envs=6, seconds=2.0, push_speed=0.0)
    CheckpointEvaluator(CourseWalk([1.0] * 6, falls={}), cfg, wrap_step)(NetworkPolicy(network))
    assert made == []


def test_evaluation_preserves_the_random_state():
    class Noisy:
        def __call__(self, obs):
            return torch.randn(obs.shape[0], 2)

    scorer = CheckpointEvaluator(EchoEnv(num_envs=3, episode_length=5), EvaluationCfg())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    score = scorer(Noisy())
    assert math.isfinite(score)
    assert torch.equal(torch.get_rng_state(), before)
    assert not isinstance(EchoEnv(num_envs=3), CommandedEnv)


@pytest.mark.parametrize("name", ["balance", "quadruped-walk", "gym:Pendulum-v1"])
def test_every_checkpoint_starts_from_the_same_states(name):
    """Scores do not depend on how many checkpoints were evaluated before, which differs after a resume."""
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    source = find_source(name)
    env = source.make_eval(source.default_config, 4, 1.0, 3)
    actions = torch.zeros(4, env.num_actions)
    scorer = CheckpointEvaluator(env, EvaluationCfg(num_envs=4, seconds=1.0, warmup_s=0.2))
    scores = [scorer(lambda obs: actions + 0.1 * torch.randn(actions.shape)) for _ in range(3)]
    assert len(set(scores)) == 1


@pytest.fixture(scope="module")
def task():
    """The real quadruped."""
    pytest.importorskip("mujoco")
    from st_rl.sim.tasks import TASKS

    return make_eval_task("quadruped-walk", TASKS["quadruped-walk"].cfg(), 4, 2.0, seed=3, fine=True)


class TestBuiltInTask:
    """The real quadruped, briefly."""

    def test_eval_task_is_undisturbed_fine_and_long_enough(self, task):
        assert task.cfg.physics.timestep == pytest.approx(0.005)
        assert task.cfg.physics.iterations == 50
        assert task.cfg.push.max_speed == 0
        assert task.cfg.noise.level == 0
        assert task.max_episode_length * task.step_dt >= 3.0

    def test_eval_task_has_no_time_out_within_its_seconds(self):
        from st_rl.sim.tasks import TASKS, with_overrides

        cfg = with_overrides(TASKS["quadruped-walk"].cfg(), {"episode_length_s": 1.0})
        task = make_eval_task("quadruped-walk", cfg, 2, 2.0, seed=3, fine=False)
        assert task.max_episode_length * task.step_dt > 2.0

    def test_pairs_are_the_feet_across_the_body(self, task):
        names = [foot.name for foot in task.robot.feet]
        pairs = {
            frozenset((names[a], names[b]))
            for a, b in diagonal_pairs(torch.from_numpy(task.robot.foot_positions[:, :2]))
        }
        assert pairs == {frozenset(("FR_foot", "RL_foot")), frozenset(("FL_foot", "RR_foot"))}

    def test_error_of_standing_robot_equals_command(self, task):
        commands = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.6], [0.0, 0.0, 0.0]])
        first = EvaluationRollout(task, lambda obs: torch.zeros(4, 12), 1.6).run(commands)
        figures = walk_metrics(first, task)
        assert figures["falls"] == 0
        assert figures["lin_vel_x_error"] == pytest.approx(0.5 / 4, abs=0.05)
        assert figures["lin_vel_y_error"] == pytest.approx(0.3 / 4, abs=0.05)
        assert figures["ang_vel_yaw_error"] == pytest.approx(0.6 / 4, abs=0.05)
        assert torch.equal(task.commands, commands)

    def test_small_commands_count_as_standing(self, task):
        result = EvaluationRollout(task, lambda obs: torch.zeros(4, 12), 0.2).run(torch.full((4, 3), 0.05))
        assert (result.commands > 0).all()
        assert (result.effective_commands == 0).all()

    def test_all_steps_of_two_rollouts_read_the_same_memory(self, task):
        reads, commands = [], torch.full((4, 3), 0.3)
        rollout = EvaluationRollout(task, lambda obs: torch.zeros(4, 12), 0.2, watch_reads(reads))
        rollout.run(commands)
        rollout.run(commands.clone())
        assert len(reads) == 2 * 10
        assert all(addresses == reads[0] for addresses in reads)

    def test_hard_push_makes_robot_fall(self, task):
        thrown = EvaluationRollout(task, lambda obs: torch.zeros(4, 12), 1.6).run(torch.zeros(4, 3), pushes=(6.0, 0.4))
        assert thrown.fell.any()
