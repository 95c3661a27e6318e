"""Choice of the number of torch threads."""

import time

import pytest
import torch

from st_rl.engine import UpdateThreads, torch_threads
from st_rl.runners import build_runner
from tests.fakes import EchoEnv


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_threads_are_restored_after_error():
    seen = []

    def fail():
        with torch_threads(2):
            seen.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*seen, torch.get_num_threads()] == [2, 1]


def test_none_keeps_threads():
    with torch_threads(None):
        assert torch.get_num_threads() == 1


class TimedUpdates:
    """Runs updates with given durations per number of threads on a fake clock."""

    def __init__(self, monkeypatch, threads):
        self.threads, self.now = threads, 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def run(self, num_updates, seconds):
        """The number of threads of each update."""
        used = []
        for _ in range(num_updates):
            with self.threads.measured():
                used.append(torch.get_num_threads())
                self.now += seconds[used[-1]]
        return used


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [({1: 0.4, 2: 0.25}, 2), ({1: 0.4, 2: 0.5}, 1), ({1: 0.4, 2: 0.39}, 1)],
    ids=["more are faster", "fewer are faster", "no clear gain"],
)
def test_fastest_number_of_a_trial_is_kept(monkeypatch, seconds, chosen):
    updates = TimedUpdates(monkeypatch, UpdateThreads(1, (1, 2)))
    assert updates.run(300, seconds) == [1, 2] * 3 + [chosen] * 294


def test_first_round_only_warms_up(monkeypatch):
    updates = TimedUpdates(monkeypatch, UpdateThreads(1, (1, 2)))
    updates.run(2, {1: 0.4, 2: 30.0})
    assert updates.run(10, {1: 0.4, 2: 0.25})[4:] == [2] * 6


def test_falls_back_to_one_thread_if_more_become_slower(monkeypatch, caplog):
    caplog.set_level("INFO")
    updates = TimedUpdates(monkeypatch, UpdateThreads(2, (1, 2)))
    updates.run(100, {1: 0.4, 2: 0.25})
    # Another program uses one of the cores.
    used = updates.run(100, {1: 0.4, 2: 1.5})
    assert used.count(2) <= 10 + 3
    assert set(used[20:]) == {1}
    assert "updates use 1 of 2 threads from now on (1: 400 ms, 2: 1.5e+03 ms)" in caplog.text


def test_uses_more_threads_again_when_machine_is_idle(monkeypatch):
    updates = TimedUpdates(monkeypatch, UpdateThreads(1, (1, 2)))
    assert set(updates.run(50, {1: 0.8, 2: 3.0})[6:]) == {1}
    used = updates.run(50, {1: 0.4, 2: 0.25})
    assert set(used[20:]) == {2}


def test_trials_without_change_become_rare(monkeypatch):
    updates = TimedUpdates(monkeypatch, UpdateThreads(1, (1, 2)))
    used = []
    for _ in range(40):
        # The load of the machine alternates.
        used += updates.run(12, {1: 0.4, 2: 2.0}) + updates.run(12, {1: 0.8, 2: 4.0})
    assert used.count(2) < 0.05 * len(used)


def test_fixed_threads_are_not_tried(monkeypatch):
    updates = TimedUpdates(monkeypatch, UpdateThreads(2))
    assert set(updates.run(20, {2: 0.25}) + updates.run(50, {2: 4.0})) == {2}


def test_failed_update_is_not_measured(monkeypatch):
    threads = UpdateThreads(2, (1, 2))
    updates = TimedUpdates(monkeypatch, threads)
    for _ in range(30):
        with pytest.raises(KeyError), threads.measured():
            raise KeyError
    assert torch.get_num_threads() == 1
    assert updates.run(6, {1: 0.4, 2: 0.25}) == [1, 2] * 3


def test_updates_and_rollouts_have_separate_threads():
    seen = {"step": set(), "update": set()}
    config = {
        "num_steps_per_env": 4,
        "update_threads": 2,
        "policy": {"class_name": "ActorCritic", "actor_hidden_dims": [8], "critic_hidden_dims": [8]},
        "algorithm": {"class_name": "PPO"},
    }
    env = EchoEnv(num_envs=4)
    runner = build_runner("OnPolicyRunner", env, config)
    step, compute_losses = env.step, runner.alg.compute_losses

    def watched_step(actions):
        seen["step"].add(torch.get_num_threads())
        return step(actions)

    def watched_losses(minibatch):
        seen["update"].add(torch.get_num_threads())
        return compute_losses(minibatch)

    env.step, runner.alg.compute_losses = watched_step, watched_losses
    runner.learn(2)
    assert seen == {"step": {1}, "update": {2}}


def test_rejects_invalid_number_of_threads():
    config = {"num_steps_per_env": 4, "update_threads": 0, "policy": {}, "algorithm": {}}
    with pytest.raises(ValueError, match="update_threads"):
        build_runner("OnPolicyRunner", EchoEnv(num_envs=4), config)
