"""`RandomNetworkDistillation`."""

import io

import numpy as np
import pytest
import torch

from st_rl.modules.rnd import DiscountedRewardScaling, RandomNetworkDistillation
from tests.modules.graph_safety import NoHostSync


def make(**kwargs):
    torch.manual_seed(0)
    return RandomNetworkDistillation(3, 4, [8, -1], [6], **{"weight": 0.5, "activation": "relu", **kwargs})


def network(rnd, name, x):
    """A ReLU MLP in float64 NumPy, from the state dictionary."""
    state = {key: value.double().numpy() for key, value in rnd.state_dict().items() if key.startswith(name)}
    layers = sorted({int(key.split(".")[2]) for key in state})
    for layer in layers:
        x = x @ state[f"{name}.model.{layer}.weight"].T + state[f"{name}.model.{layer}.bias"]
        if layer != layers[-1]:
            x = np.maximum(x, 0.0)
    return x


def difference(rnd, states):
    states = states.double().numpy() if isinstance(states, torch.Tensor) else states
    return network(rnd, "target", states) - network(rnd, "predictor", states)


def test_reward_is_weighted_prediction_error():
    rnd, states = make(), torch.randn(5, 3)
    reward = rnd.get_intrinsic_reward(states)
    assert reward.shape == (5,)
    assert not reward.requires_grad
    expected = 0.5 * np.sqrt((difference(rnd, states) ** 2).sum(axis=1))
    np.testing.assert_allclose(reward.numpy(), expected, rtol=1e-5)


def test_hidden_size_minus_one_is_the_state_size():
    rnd = make()
    assert rnd.predictor.model[2].out_features == 3
    assert [layer.out_features for layer in rnd.target.model if hasattr(layer, "out_features")] == [6, 4]


def test_loss_trains_predictor_only():
    rnd, states = make(state_normalization=True), torch.randn(2, 7, 3)
    rnd.get_intrinsic_reward(5 + 2 * torch.randn(100, 3))
    statistics = {key: value.clone() for key, value in rnd.state_normalizer.state_dict().items()}
    loss = rnd.predictor_loss(states)
    mean, std = rnd.state_normalizer.mean.double().numpy(), rnd.state_normalizer.std.double().numpy()
    expected = (difference(rnd, (states.double().numpy() - mean) / (std + 1e-2)) ** 2).mean()
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    loss.backward()
    assert all(parameter.grad is not None for parameter in rnd.predictor.parameters())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in rnd.target.parameters())
    assert all(torch.equal(value, statistics[key]) for key, value in rnd.state_normalizer.state_dict().items())


def test_reward_decreases_on_trained_states():
    rnd = make()
    optimizer = torch.optim.Adam(rnd.predictor.parameters(), lr=1e-2)
    known, unknown = torch.rand(64, 3), 6 + torch.rand(64, 3)
    before = rnd.get_intrinsic_reward(known).mean()
    for _ in range(100):
        optimizer.zero_grad()
        rnd.predictor_loss(known).backward()
        optimizer.step()
    after = rnd.get_intrinsic_reward(known).mean()
    assert after < 0.2 * before
    assert rnd.get_intrinsic_reward(unknown).mean() > 5 * after


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_infinite_sum_of_rewards_recovers(bad):
    scaling = DiscountedRewardScaling()
    rewards = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    for reward in rewards[:20]:
        scaling(reward)
    scaling(torch.tensor([0.5, bad, 0.5, 0.5]))
    count = int(scaling.statistics.count)
    for reward in rewards[20:]:
        assert torch.isfinite(scaling(reward)).all()
    assert int(scaling.statistics.count) == count + 30 * 4
    assert torch.isfinite(scaling.discounted_sum).all()


def test_reward_of_a_huge_state_is_finite():
    rnd = RandomNetworkDistillation(3, 4, [8], [8], weight=1.0, state_normalization=True, reward_normalization=True)
    states = torch.randn(40, 6, 3, generator=torch.Generator().manual_seed(0))
    for state in states:
        rnd.get_intrinsic_reward(state)
    states[0, 2] = 1e30
    reward = rnd.get_intrinsic_reward(states[0])
    assert reward[2] == 0
    assert torch.isfinite(reward).all()
    assert torch.isfinite(rnd.get_intrinsic_reward(states[1])).all()


def test_reward_is_divided_by_std_of_discounted_return():
    rnd, plain = make(reward_normalization=True), make()
    sums, seen = np.zeros(6), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        states = torch.randn(6, 3, generator=generator)
        raw = plain.get_intrinsic_reward(states).double().numpy() / 0.5
        sums = 0.99 * sums + raw
        seen.append(sums)
        expected = 0.5 * raw / np.concatenate(seen).std()
        np.testing.assert_allclose(rnd.get_intrinsic_reward(states).numpy(), expected, rtol=1e-4)


def test_one_env_has_no_initial_variance():
    states = torch.randn(1, 3)
    torch.testing.assert_close(
        make(reward_normalization=True).get_intrinsic_reward(states), make().get_intrinsic_reward(states)
    )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (None, [2.0] * 8),
        ({"mode": "constant"}, [2.0] * 8),
        ({"mode": "step", "final_step": 4, "final_value": 0.5}, [2.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.5, 0.5]),
        (
            {"mode": "linear", "initial_step": 2, "final_step": 6, "final_value": 0.0},
            [2.0, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0, 0.0],
        ),
        ({"mode": "linear", "final_step": 4, "final_value": 4.0}, [2.5, 3.0, 3.5, 4.0, 4.0, 4.0, 4.0, 4.0]),
    ],
)
def test_weight_follows_schedule(schedule, expected):
    rnd, unweighted = make(weight=2.0, weight_schedule=schedule), make(weight=1.0)
    states = torch.randn(3, 3)
    assert float(rnd.weight) == 2.0
    for weight in expected:
        reward = rnd.get_intrinsic_reward(states)
        assert float(rnd.weight) == pytest.approx(weight)
        torch.testing.assert_close(reward, weight * unweighted.get_intrinsic_reward(states))
    assert rnd.weight.shape == ()
    assert int(rnd.call_count) == len(expected)


def test_eval_mode_does_not_update():
    rnd = make(state_normalization=True, reward_normalization=True)
    rnd.get_intrinsic_reward(torch.randn(5, 3))
    before = {key: value.clone() for key, value in rnd.state_dict().items()}
    rnd.eval()
    rnd.get_intrinsic_reward(torch.randn(9, 3))
    assert all(torch.equal(value, before[key]) for key, value in rnd.state_dict().items())
    assert not rnd.train().target.training
    assert rnd.predictor.training


def test_state_round_trip_continues_exactly():
    options = {
        "state_normalization": True,
        "reward_normalization": True,
        "weight_schedule": {"mode": "linear", "final_step": 9, "final_value": 0.0},
    }
    rnd = make(**options)
    with torch.inference_mode():
        for _ in range(4):
            rnd.get_intrinsic_reward(torch.randn(5, 3))
    buffer = io.BytesIO()
    torch.save(rnd.state_dict(), buffer)
    buffer.seek(0)
    other = RandomNetworkDistillation(3, 4, [8, -1], [6], activation="relu", weight=0.5, **options)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for _ in range(3):
        states = torch.randn(5, 3)
        assert torch.equal(rnd.get_intrinsic_reward(states), other.get_intrinsic_reward(states))
    # resumed with another number of environments: the discounted sums restart
    assert other.get_intrinsic_reward(torch.randn(7, 3)).isfinite().all()


def test_writes_in_place_without_host_sync():
    schedule = {"mode": "linear", "final_step": 9, "final_value": 0.0}
    rnd = make(state_normalization=True, reward_normalization=True, weight_schedule=schedule)
    with torch.inference_mode():
        rnd.get_intrinsic_reward(torch.randn(5, 3))
    pointers = {key: value.data_ptr() for key, value in rnd.named_buffers()}
    with NoHostSync():
        rnd.get_intrinsic_reward(torch.randn(5, 3))
        rnd.predictor_loss(torch.randn(5, 3)).backward()
    assert {key: value.data_ptr() for key, value in rnd.named_buffers()} == pointers
    assert not any(value.is_inference() for value in rnd.buffers())


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"mode": "cosine"}, r"'cosine'.*constant, step, linear"),
        ({"mode": "step", "final_step": 3}, "final_value"),
        ({"mode": "linear", "initial_step": 5, "final_step": 5, "final_value": 0.0}, "5 and 5"),
    ],
)
def test_rejects_invalid_schedules(schedule, message):
    with pytest.raises(ValueError, match=message):
        make(weight_schedule=schedule)


def test_rejects_unknown_activation():
    with pytest.raises(ValueError, match="swoosh"):
        make(activation="swoosh")
