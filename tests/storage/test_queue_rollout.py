import copy

import numpy as np
import pytest
import torch

from st_rl.storage.rollout_storage import ActionLabelRollout, AmpRolloutStorage, QueueRolloutStorage, RolloutStorage
from tests.storage.rollouts import NUM_ACTIONS, NUM_ENVS, OBS_DIM, fill, random_transition
from tests.storage.test_returns import loop_gae

ROLLOUT = 4


def make_queue(ratio, cls=QueueRolloutStorage, **kwargs):
    return cls(NUM_ENVS, ROLLOUT, [OBS_DIM], [None], [NUM_ACTIONS], buffer_dilation_ratio=ratio, **kwargs)


def hidden(step):
    return torch.full((1, NUM_ENVS, 2), float(step))


def run(storage, num_rollouts, clear_last=False):
    """Play rollouts of `ROLLOUT` steps with hidden states that count the steps; return all transitions."""
    transitions = []
    for rollout in range(num_rollouts):
        start = len(transitions)
        transitions += fill(
            storage, ROLLOUT, seed=rollout, hidden_states=lambda step, start=start: hidden(start + step)
        )
        if clear_last or rollout < num_rollouts - 1:
            storage.clear()
    return transitions


@pytest.mark.parametrize(
    ("ratio", "lengths", "cursors"),
    [
        (1.0, [4, 4, 4, 4], [0, 0, 0, 0]),
        (2.0, [4, 8, 8, 8], [4, 0, 4, 0]),
        (1.5, [4, 6, 6, 6], [4, 2, 0, 4]),
        (2.75, [4, 8, 11, 11], [4, 8, 1, 5]),
    ],
)
def test_growth_and_wrap(ratio, lengths, cursors):
    storage = make_queue(ratio)
    assert storage.num_timesteps_each_rollout == ROLLOUT
    for rollout, (length, cursor) in enumerate(zip(lengths, cursors)):
        fill(storage, ROLLOUT, seed=rollout)
        assert storage.num_transitions_per_env == length
        assert storage.observations.shape[0] == length
        assert storage.step == cursor
        assert storage.buffer_full == (length >= int(ratio * ROLLOUT))
        storage.clear()


def test_expansion_keeps_the_data_and_appends_zeros():
    storage = make_queue(1.75)
    run(storage, 1)
    before = {field.name: getattr(storage, field.name) for field in storage.fields}
    assert storage.expand_buffer_once() == 3
    for name, buffer in before.items():
        grown = getattr(storage, name)
        if buffer is None:
            assert grown is None
            continue
        assert torch.equal(grown[:ROLLOUT], buffer)
        assert grown.shape[0] == 7
        assert grown.dtype == buffer.dtype
        assert not grown[ROLLOUT:].any()
    assert storage.saved_hidden_states.shape[0] == 7
    assert storage.expand_buffer_once() == 0
    assert storage.num_transitions_per_env == 7


def test_swap_from_cursor():
    storage = make_queue(1.0)
    rows = torch.arange(ROLLOUT)
    for step in (0, ROLLOUT):
        storage.step = step
        assert storage.swap_from_cursor(rows) is rows
    storage.step = 1
    assert storage.swap_from_cursor(rows).tolist() == [1, 2, 3, 0]


def test_untie_puts_every_buffer_in_time_order_in_place():
    storage = make_queue(1.5, AmpRolloutStorage, amp_obs_shape=3)

    def extra(step):
        return {
            name: torch.rand(NUM_ENVS, width)
            for name, width in (("action_labels", 2), ("ref_obs", 3), ("ref_motion", 3))
        }

    for rollout in range(2):
        fill(storage, ROLLOUT, seed=rollout, hidden_states=hidden, extra=extra)
        storage.clear()
    storage.returns.copy_(torch.rand(storage.returns.shape))
    storage.advantages.copy_(torch.rand(storage.advantages.shape))
    assert storage.step == 2
    names = ["observations", "rewards", "dones", "returns", "advantages", "action_labels", "ref_obs", "ref_motion"]
    names += ["saved_hidden_states"]
    expected = {name: torch.roll(getattr(storage, name), -2, 0) for name in names}
    buffers = {name: getattr(storage, name) for name in expected}
    with torch.inference_mode():
        storage.untie_buffer_loop()
    for name, rows in expected.items():
        assert getattr(storage, name) is buffers[name]
        assert torch.equal(buffers[name], rows)
        assert not buffers[name].is_inference()
    assert storage.step == 0


@pytest.mark.parametrize(("ratio", "num_rollouts"), [(1.0, 2), (2.0, 1), (2.0, 3), (1.5, 2), (2.75, 4)])
def test_returns_run_in_time_order_over_the_newest_steps(ratio, num_rollouts):
    storage = make_queue(ratio)
    transitions = run(storage, num_rollouts)[-int(ratio * ROLLOUT) :]
    last_values = torch.randn(NUM_ENVS, 1)
    storage.compute_returns(last_values, 0.97, 0.9)
    arrays = [
        np.stack([getattr(t, name).reshape(-1).double().numpy() for t in transitions])
        for name in ("rewards", "values", "dones")
    ]
    returns, advantages = loop_gae(*arrays, last_values[:, 0].double().numpy(), 0.97, 0.9)
    np.testing.assert_allclose(storage.returns[..., 0].numpy(), returns, rtol=1e-5, atol=1e-6)
    advantages = (advantages - advantages.mean()) / advantages.std(ddof=1)
    np.testing.assert_allclose(storage.advantages[..., 0].numpy(), advantages, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ratio", [1.5, 2.75])
def test_recurrent_mini_batches_run_in_time_order(ratio):
    storage = make_queue(ratio)
    transitions = run(storage, 4)
    num_kept = int(ratio * ROLLOUT)
    newest = torch.stack([transition.actions for transition in transitions[-num_kept:]])
    batch = next(storage.recurrent_mini_batch_generator(1, 1))
    assert torch.equal(batch.actions, newest)
    # The state before the first kept step of environment 0 is that of the oldest kept step.
    assert batch.hidden_states[0, 0, 0] == len(transitions) - num_kept
    assert storage.step == 0


def test_next_rollout_overwrites_oldest_steps_after_untying():
    storage = make_queue(1.5)
    run(storage, 2, clear_last=True)
    storage.compute_returns(torch.zeros(NUM_ENVS, 1), 0.99, 0.95)
    kept = storage.observations[ROLLOUT:].clone()
    newest = fill(storage, ROLLOUT, seed=9)
    storage.untie_buffer_loop()
    assert torch.equal(storage.observations[:2], kept)
    assert torch.equal(storage.observations[2:], torch.stack([transition.observations for transition in newest]))


def test_unwritten_rows_are_never_sampled():
    storage = make_queue(3.0)
    for use in (storage.mini_batch_generator, storage.recurrent_mini_batch_generator, storage.max_trajectories):
        with pytest.raises(ValueError, match="add transitions"):
            use(1)
    with pytest.raises(ValueError, match="add transitions"):
        storage.compute_returns(torch.zeros(NUM_ENVS, 1), 0.99, 0.95)
    run(storage, 1, clear_last=True)
    transition = random_transition(storage, torch.Generator().manual_seed(7))
    storage.add_transitions(transition)
    assert (storage.num_transitions_per_env, storage.step) == (8, 5)
    storage.compute_returns(torch.ones(NUM_ENVS, 1), 0.9, 0.9)
    final = transition.rewards + 0.9 * (~transition.dones).float()
    torch.testing.assert_close(storage.returns[4, :, 0], final)
    assert not storage.returns[5:].any()
    batch = next(storage.mini_batch_generator(1, 1))
    assert batch.obs.shape[0] == 5 * NUM_ENVS
    assert batch.obs.abs().sum(-1).min() > 0
    recurrent = next(storage.recurrent_mini_batch_generator(1, 1))
    assert recurrent.actions.shape[0] == 5
    mean_length, _ = storage.get_statistics()
    assert mean_length.item() == pytest.approx(5 * NUM_ENVS / recurrent.masks.shape[1])


def test_statistics_use_time_order():
    storage = make_queue(1.5)
    transitions = run(storage, 2)[-6:]
    dones = torch.stack([transition.dones for transition in transitions])
    before = storage.dones.clone()
    mean_length, mean_reward = storage.get_statistics()
    assert mean_length.item() == pytest.approx(6 * NUM_ENVS / (dones[:-1].sum().item() + NUM_ENVS))
    rewards = torch.stack([transition.rewards for transition in transitions])
    assert mean_reward.item() == pytest.approx(rewards.mean().item(), abs=1e-6)
    assert torch.equal(storage.dones, before)


def test_ratio_one_equals_rollout_storage():
    plain, queue = RolloutStorage(NUM_ENVS, ROLLOUT, [OBS_DIM], None, [NUM_ACTIONS]), make_queue(1.0)
    for rollout in range(2):
        for storage in (plain, queue):
            fill(storage, ROLLOUT, seed=rollout)
            storage.compute_returns(torch.ones(NUM_ENVS, 1), 0.99, 0.95)
        for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
            torch.manual_seed(1)
            expected = list(getattr(plain, name)(2, 2))
            torch.manual_seed(1)
            for batch, reference in zip(getattr(queue, name)(2, 2), expected, strict=True):
                for ours, theirs in zip(batch, reference):
                    assert (ours is None and theirs is None) or torch.equal(ours, theirs)
        plain.clear()
        queue.clear()


# Labels and motion features -------------------------------------------------------------------------------------------


def test_action_labels_are_in_both_kinds_of_mini_batch():
    storage = make_queue(2.0, ActionLabelRollout)
    assert storage.Transition().action_labels is None
    assert storage.MiniBatch._fields == (*RolloutStorage.MiniBatch._fields, "action_labels")
    labels = torch.randn(8, NUM_ENVS, NUM_ACTIONS)
    for rollout in range(2):
        fill(storage, ROLLOUT, extra=lambda step, rollout=rollout: {"action_labels": labels[ROLLOUT * rollout + step]})
        storage.clear()
    storage.actions.copy_(labels)
    for batch in storage.mini_batch_generator(3, 1):
        assert batch.action_labels.shape == (13, NUM_ACTIONS)
        assert torch.equal(batch.action_labels, batch.actions)
    batch = list(storage.recurrent_mini_batch_generator(2, 1))[1]
    assert torch.equal(batch.action_labels, labels[:, 2:4])


def test_rejects_missing_action_label():
    storage = make_queue(1.0, ActionLabelRollout)
    with pytest.raises(ValueError, match=r"transition\.action_labels is None"):
        storage.add_transitions(random_transition(storage, torch.Generator()))


@pytest.mark.parametrize("shape", [6, (6,), [6], (2, 3)])
def test_motion_features(shape):
    storage = make_queue(2.0, AmpRolloutStorage, amp_obs_shape=shape)
    sizes = (6,) if shape == 6 else tuple(shape)
    assert storage.MiniBatch._fields[-3:] == ("action_labels", "ref_obs", "ref_motion")
    features = torch.randn(2, ROLLOUT, NUM_ENVS, 6)

    def extra(step):
        return {
            "action_labels": torch.zeros(NUM_ENVS, NUM_ACTIONS),
            "ref_obs": features[0, step],
            "ref_motion": features[1, step],
        }

    fill(storage, ROLLOUT, extra=extra)
    assert storage.ref_obs.shape == (ROLLOUT, NUM_ENVS, *sizes)
    assert torch.equal(storage.ref_motion.flatten(2), features[1])
    storage.values.copy_(features[0, ..., :1])
    batch = next(storage.mini_batch_generator(2, 1))
    assert batch.ref_obs.shape == (10, *sizes)
    assert torch.equal(batch.ref_obs.flatten(1)[:, :1], batch.values)
    batch = next(storage.recurrent_mini_batch_generator(2, 1))
    assert torch.equal(batch.ref_motion.flatten(2), features[1, :, :2])


def test_rejects_missing_amp_obs_shape():
    with pytest.raises(TypeError, match="amp_obs_shape"):
        make_queue(1.0, AmpRolloutStorage)
    with pytest.raises(ValueError, match=r"amp_obs_shape is \{\}"):
        make_queue(1.0, AmpRolloutStorage, amp_obs_shape={})


@pytest.mark.parametrize("cleared", [True, False])
@pytest.mark.parametrize("later", [0, 1, 4])
@pytest.mark.parametrize("earlier", [1, 2, 3, 4])
def test_state_dict_restores_any_fill_level(earlier, later, cleared):
    storage, other = make_queue(2.75), make_queue(2.75)
    run(storage, earlier, clear_last=cleared)
    state = copy.deepcopy(storage.state_dict())
    run(other, later, clear_last=True)
    with torch.inference_mode():
        other.load_state_dict(state, hidden(0))
    for name in ("step", "buffer_full", "num_transitions_per_env", "num_valid_steps"):
        assert getattr(other, name) == getattr(storage, name)
    for either in (storage, other):
        either.clear()
        run(either, 3, clear_last=True)
    for field in storage.fields:
        kept, expected = getattr(other, field.name), getattr(storage, field.name)
        assert kept is expected is None or torch.equal(kept, expected)
    assert torch.equal(other.saved_hidden_states, storage.saved_hidden_states)


def test_rejects_state_of_another_buffer_size():
    storage = make_queue(3.0)
    run(storage, 3, clear_last=True)
    with pytest.raises(ValueError, match="12 saved steps do not fit a buffer of 8 for rollouts of 4; continue"):
        make_queue(2.0).load_state_dict(storage.state_dict(), hidden(0))
    longer = QueueRolloutStorage(NUM_ENVS, 3 * ROLLOUT, [OBS_DIM], [None], [NUM_ACTIONS], buffer_dilation_ratio=2.0)
    with pytest.raises(ValueError, match="12 saved steps do not fit a buffer of 24 for rollouts of 12"):
        longer.load_state_dict(storage.state_dict(), hidden(0))
