"""The robustness benchmark: its metrics, and that its conditions are applied."""

import pytest
import torch

from benchmarks.robustness import CONDITIONS, Condition, Plan, evaluate_tracking, sim_to_sim, survival_table
from st_rl.sim.tasks import find_task, make_task

TASK = "quadruped-walk"
PLAN = Plan(robots=4, seconds=1.0, warm_up_s=0.2, commands=((0.4, 0.4), (0.0, 0.0), (0.0, 0.0)))
CFG = find_task(TASK).cfg()
CFG.physics = type(CFG.physics)(num_threads=1)
CFG.reset = type(CFG.reset)(joint_pos=0.0, yaw=0.0, velocity=0.0)


class Still:
    """A policy that keeps the default pose."""

    def __init__(self):
        self.actor_critic = self

    def __call__(self, obs):
        return torch.zeros(len(obs), 12)

    def reset(self, dones=None):
        pass

    def clear_hidden_states(self):
        pass


def test_standing_robot_survives_and_misses_command():
    row = evaluate_tracking(TASK, CFG, Still(), PLAN)
    assert row["survival"] == 1.0
    assert row["lin_vel_x_error"] == pytest.approx(0.4, abs=0.03)
    # Half of the score for the yaw rate, exp(-0.16 / 0.15) of the other half for standing at a command of 0.4 m/s.
    assert row["tracking"] == pytest.approx(0.5 + 0.5 * 0.344, abs=0.05)


def test_conditions_are_applied(monkeypatch):
    seen = {}

    def remember(name, robots, device, seed, cfg):
        task = make_task(name, robots, device, seed, cfg=cfg)
        seen["properties"], seen["push"] = task.properties, cfg.push.max_speed
        return task

    monkeypatch.setattr("benchmarks.robustness.make_task", remember)
    short = PLAN._replace(seconds=0.1)
    expected = {"friction 0.4": (0, 0.4), "friction 1.2": (0, 1.2), "trunk 30% heavier": (1, 1.3)}
    for name, (column, value) in {**expected, "latency of 20 ms": (3, 0.02)}.items():
        evaluate_tracking(TASK, CFG, Still(), short, CONDITIONS[name])
        assert torch.allclose(seen["properties"][:, column], torch.tensor(value)), name
        assert seen["push"] == 0


def test_strong_pushes_cause_falls():
    plan = PLAN._replace(seconds=5.0, robots=8)
    table = survival_table(TASK, CFG, Still(), plan, {"none": Condition(), "hard": Condition(push_speed=4.0)})
    assert table["none"]["survival"] == 1.0
    assert table["hard"]["survival"] < 0.5


def test_sim_to_sim_reports_loss():
    before = {"tracking": 0.8, "lin_vel_x_error": 0.05, "ang_vel_yaw_error": 0.1}
    after = {"tracking": 0.72, "lin_vel_x_error": 0.07, "ang_vel_yaw_error": 0.1}
    row = sim_to_sim(before, after)
    assert row["tracking_loss"] == pytest.approx(0.1)
    assert row["more_error"]["lin_vel_x_error"] == pytest.approx(0.02)
