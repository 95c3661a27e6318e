"""The step shared by all tasks."""

import math

import pytest
import torch

from st_rl.sim.tasks import make_task


def build(**overrides):
    settings = {"physics.num_threads": 1, "noise.level": 0.0, "push.max_speed": 0.0, **overrides}
    return make_task("quadruped-walk", 4, **settings)


def test_last_action_is_that_of_the_step_before_clipped():
    task = build(**{"control.clip_actions": 0.5})
    first, second = torch.full((4, 12), 0.2), torch.full((4, 12), -3.0)
    task.step(first)
    _, _, _, infos = task.step(second)
    assert torch.equal(task.last_actions, first)
    assert torch.equal(task.actions, torch.full((4, 12), -0.5))
    # The action-rate term is that of 12 actions that change by 0.7 each.
    expected = task.cfg.rewards["action_rate"] * 12 * 0.7**2
    assert float(infos["log"]["Reward/action_rate"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("only_positive", [True, False])
def test_only_positive_rewards_are_zero_instead_of_negative(only_positive):
    task = build(rewards={"alive": -1.0}, only_positive_rewards=only_positive)
    rewards = task.step(torch.zeros(4, 12))[1]
    assert rewards.tolist() == pytest.approx([0.0 if only_positive else -task.step_dt] * 4)


def test_final_observation_of_a_diverged_robot_is_zero(monkeypatch):
    task = build()
    apply_actions = task._apply_actions

    def diverge(actions):
        apply_actions(actions)
        task.backend.qvel[2] = math.nan

    monkeypatch.setattr(task, "_apply_actions", diverge)
    obs, rewards, dones, infos = task.step(torch.zeros(4, 12))
    assert dones.tolist() == [False, False, True, False]
    for group in infos["final_observations"].values():
        assert not group[2].any()
        assert group[[0, 1, 3]].any(dim=1).all()
    assert all(value.isfinite().all() for value in (obs, rewards, *infos["observations"].values()))


def test_tracking_error_is_that_of_the_command_of_the_step():
    task = build(**{"commands.resample_s": 0.02, "commands.standing_fraction": 0.0})
    for _ in range(2):
        told = task.commands[:, 0].clone()
        task.step(torch.zeros(4, 12))
        assert (task.commands[:, 0] != told).any()
        torch.testing.assert_close(task.lin_vel_rmsd, (task.base_lin_vel[:, 0] - told).abs())
    task.reset()
    torch.testing.assert_close(task.lin_vel_rmsd, (task.base_lin_vel[:, 0] - task.commands[:, 0]).abs())


def test_observations_are_clipped_to_the_configured_bound():
    task = build(**{"normalization.clip_observations": 0.3})
    assert task.get_observations()[0].abs().max() == pytest.approx(0.3)
    obs, _, _, infos = task.step(torch.ones(4, 12))
    for group in (obs, *infos["observations"].values(), *infos["final_observations"].values()):
        assert group.abs().max() == pytest.approx(0.3)
