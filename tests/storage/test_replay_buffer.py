import numpy as np
import pytest
import torch

from st_rl.storage import ReplayBuffer
from st_rl.storage.reply_buffer import ReplayBuffer as Misspelt


def test_misspelled_module_has_same_class():
    assert Misspelt is ReplayBuffer


def test_new_buffer_is_empty():
    buffer = ReplayBuffer(3, 5, "cpu")
    assert buffer.states.shape == buffer.next_states.shape == (5, 3)
    assert not buffer.states.any()
    assert (buffer.buffer_size, buffer.step, buffer.num_samples) == (5, 0, 0)


@pytest.mark.parametrize("sizes", [[3], [5], [7], [3, 3, 3], [5, 1], [4, 12, 2], [0, 2, 0, 6], [11, 11], [1] * 13])
def test_insertion_equals_one_row_at_a_time(sizes):
    buffer = ReplayBuffer(2, 5, "cpu")
    rows, next_rows = np.zeros((5, 2)), np.zeros((5, 2))
    count = 0
    for size in sizes:
        states = torch.arange(count, count + size).float().unsqueeze(-1).expand(size, 2)
        buffer.insert(states, -states)
        for value in range(count, count + size):
            rows[value % 5] = value
            next_rows[value % 5] = -value
        count += size
        assert buffer.step == count % 5
        assert buffer.num_samples == min(count, 5)
        np.testing.assert_array_equal(buffer.states.numpy(), rows)
        np.testing.assert_array_equal(buffer.next_states.numpy(), next_rows)


def test_samples_are_valid_pairs_drawn_by_numpy():
    buffer = ReplayBuffer(1, 10, "cpu")
    states = torch.arange(1.0, 5.0).unsqueeze(-1)
    buffer.insert(states, states * 10)
    np.random.seed(4)
    batches = list(buffer.feed_forward_generator(20, 8))
    np.random.seed(4)
    assert len(batches) == 20
    for current, following in batches:
        indices = np.random.choice(4, size=8)
        assert current.shape == following.shape == (8, 1)
        np.testing.assert_array_equal(current[:, 0].numpy(), indices + 1)
        assert torch.equal(following, current * 10)
    seen = {value for current, _ in batches for value in current.flatten().tolist()}
    assert seen == {1.0, 2.0, 3.0, 4.0}


def test_rows_of_inference_mode_are_usable_in_autograd():
    with torch.inference_mode():
        buffer = ReplayBuffer(2, 4, "cpu")
        buffer.insert(torch.ones(3, 2), torch.ones(3, 2))
    weight = torch.ones(2, requires_grad=True)
    current, _ = next(buffer.feed_forward_generator(1, 2))
    (current * weight).sum().backward()
    assert weight.grad is not None


def test_rejects_invalid_input():
    buffer = ReplayBuffer(2, 4, "cpu")
    with pytest.raises(ValueError, match="replay buffer is empty"):
        buffer.feed_forward_generator(1, 2)
    with pytest.raises(ValueError, match=r"next_states has shape \(3, 1\); the replay buffer expects \(3, 2\)"):
        buffer.insert(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="buffer_size is 0"):
        ReplayBuffer(2, 0, "cpu")


@pytest.mark.parametrize("inserted", [0, 3, 5, 8, 13])
def test_state_dict_round_trip(inserted):
    buffer, other = ReplayBuffer(1, 5, "cpu"), ReplayBuffer(1, 5, "cpu")
    rows = torch.arange(1.0, inserted + 1)[:, None]
    for row in rows:
        buffer.insert(row[None], -row[None])
    state = buffer.state_dict()
    assert len(state["states"]) == min(inserted, 5)
    other.insert(torch.full((4, 1), 99.0), torch.full((4, 1), 99.0))
    other.load_state_dict(state)
    assert (other.step, other.num_samples) == (buffer.step, buffer.num_samples)
    for ring in (buffer, other):
        ring.insert(torch.tensor([[50.0]]), torch.tensor([[-50.0]]))
    assert torch.equal(other.states[: other.num_samples], buffer.states[: buffer.num_samples])
    assert torch.equal(other.next_states[: other.num_samples], -other.states[: other.num_samples])


@pytest.mark.parametrize("size", [3, 9])
def test_buffer_of_another_size_keeps_the_newest_rows(size):
    buffer, other = ReplayBuffer(1, 5, "cpu"), ReplayBuffer(1, size, "cpu")
    rows = torch.arange(1.0, 8.0)[:, None]
    buffer.insert(rows, rows)
    other.load_state_dict(buffer.state_dict())
    assert sorted(other.states[: other.num_samples, 0].tolist()) == [3.0, 4.0, 5.0, 6.0, 7.0][-size:]
    other.insert(torch.tensor([[8.0]]), torch.tensor([[8.0]]))
    assert 7.0 in other.states
    assert 8.0 in other.states
