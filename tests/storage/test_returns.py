from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

from st_rl.storage import returns as returns_module
from st_rl.storage.returns import generalized_advantages, normalize_advantages
from st_rl.storage.rollout_storage import RolloutStorage
from tests.storage.rollouts import fill


def loop_gae(rewards, values, dones, last_values, gamma, lam):
    """GAE, one environment and one step at a time, in float64."""
    num_steps, num_envs = rewards.shape
    returns, advantages = np.zeros((num_steps, num_envs)), np.zeros((num_steps, num_envs))
    for env in range(num_envs):
        next_advantage, next_value = 0.0, last_values[env]
        for step in reversed(range(num_steps)):
            alive = 0.0 if dones[step, env] else 1.0
            delta = rewards[step, env] + alive * gamma * next_value - values[step, env]
            next_advantage = delta + alive * gamma * lam * next_advantage
            next_value = values[step, env]
            advantages[step, env] = next_advantage
            returns[step, env] = next_advantage + next_value
    return returns, advantages


@pytest.mark.parametrize(("gamma", "lam"), [(0.998, 0.95), (0.9, 0.0), (1.0, 1.0), (0.0, 0.7)])
@pytest.mark.parametrize("num_steps", [1, 2, 24])
def test_generalized_advantages_equal_loop(gamma, lam, num_steps):
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=(2, num_steps, 6))
    dones, last_values = rng.random((num_steps, 6)) < 0.2, rng.normal(size=6)
    expected = loop_gae(rewards, values, dones, last_values, gamma, lam)
    inputs = [torch.from_numpy(array) for array in (rewards, values, dones, last_values)]
    before = [tensor.clone() for tensor in inputs]
    for finished in (inputs[2], inputs[2].to(torch.uint8), 3 * inputs[2].to(torch.int64), 0.5 * inputs[2].float()):
        inputs[2] = finished
        results = generalized_advantages(*inputs, gamma, lam)
        for result, reference in zip(results, expected):
            np.testing.assert_allclose(result.numpy(), reference, rtol=1e-12, atol=1e-12)
    for tensor, original in zip(inputs, before):
        assert torch.equal(tensor.to(original.dtype), original)


def test_generalized_advantages_accept_values_with_gradients():
    values, last_values = torch.randn(3, 2, requires_grad=True), torch.randn(2, requires_grad=True)
    returns, advantages = generalized_advantages(torch.randn(3, 2), values, torch.zeros(3, 2), last_values, 0.9, 0.9)
    assert not returns.requires_grad
    assert not advantages.requires_grad


def test_storage_returns_and_normalized_advantages():
    storage = RolloutStorage(6, 9, [3], [None], [2])
    transitions = fill(storage, 9, seed=1)
    rewards = np.stack([t.rewards.double().numpy() for t in transitions])
    values = np.stack([t.values[:, 0].double().numpy() for t in transitions])
    dones = np.stack([t.dones.numpy() for t in transitions])
    last_values = torch.randn(6, 1)
    returns, advantages = loop_gae(rewards, values, dones, last_values[:, 0].double().numpy(), 0.99, 0.9)
    storage.compute_returns(last_values, 0.99, 0.9)
    np.testing.assert_allclose(storage.returns[..., 0].numpy(), returns, rtol=1e-5, atol=1e-6)
    normalised = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    np.testing.assert_allclose(storage.advantages[..., 0].numpy(), normalised, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, -123.4, 1e6])
def test_advantages_without_variance_become_zero(value):
    assert torch.equal(normalize_advantages(torch.full((7, 11), value)), torch.zeros(7, 11))
    assert torch.equal(normalize_advantages(torch.full((1, 1), value)), torch.zeros(1, 1))


def test_single_sample_gives_finite_returns():
    storage = RolloutStorage(1, 1, [3], None, [2])
    fill(storage, 1)
    storage.compute_returns(torch.ones(1, 1), 0.99, 0.95)
    assert torch.isfinite(storage.returns).all()
    assert torch.equal(storage.advantages, torch.zeros(1, 1, 1))


def test_advantages_are_normalized_over_all_ranks(monkeypatch):
    shards = torch.randn(2, 6, 5) * torch.tensor([1.0, 30.0]).view(2, 1, 1) + torch.tensor([0.0, 7.0]).view(2, 1, 1)
    barrier, posted = Barrier(2), []

    def average(tensor):
        posted.append(tensor)
        barrier.wait(timeout=10)
        mean = (posted[-1] + posted[-2]) / 2
        barrier.wait(timeout=10)
        return mean

    monkeypatch.setattr(returns_module, "average", average)
    monkeypatch.setattr(returns_module, "world_size", lambda: 2)
    with ThreadPoolExecutor(2) as ranks:
        normalised = torch.stack(list(ranks.map(normalize_advantages, shards)))
    expected = (shards - shards.mean()) / shards.std()
    torch.testing.assert_close(normalised, expected)
