import pytest
import torch

from st_rl.storage.rollout_storage import RolloutStorage
from st_rl.utils.collections import namedarraytuple
from st_rl.utils.tensors.trajectories import unpad_trajectories
from tests.storage.rollouts import CRITIC_DIM, NUM_ACTIONS, NUM_ENVS, NUM_STEPS, OBS_DIM, fill

Pair = namedarraytuple("Pair", ["hidden", "cell"])
Nested = namedarraytuple("Nested", ["actor", "critic"])
NUM_LAYERS, HIDDEN_SIZE = 2, 3
LABELLED = ["observations", "privileged_observations", "actions", "values", "advantages", "returns"]
LABELLED += ["actions_log_prob", "mu", "sigma"]


def make_storage(critic=(CRITIC_DIM,), num_envs=NUM_ENVS, num_steps=NUM_STEPS):
    return RolloutStorage(num_envs, num_steps, [OBS_DIM], critic, [NUM_ACTIONS])


def label_rows(storage):
    """Overwrite every buffer so that each element encodes its step and environment."""
    time = torch.arange(storage.num_transitions_per_env).view(-1, 1, 1)
    env = torch.arange(storage.num_envs).view(1, -1, 1)
    for offset, name in enumerate(LABELLED):
        buffer = getattr(storage, name)
        if buffer is not None:
            buffer.copy_((1000 * time + env + 0.01 * offset).expand_as(buffer))


# Feed-forward ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", [(CRITIC_DIM,), None])
def test_samples_are_the_rows_of_one_permutation(critic):
    storage = make_storage(critic)
    label_rows(storage)
    num_samples = NUM_STEPS * NUM_ENVS
    torch.manual_seed(5)
    permutation = torch.randperm(num_samples)
    torch.manual_seed(5)
    batches = list(storage.mini_batch_generator(4, 1))
    size = num_samples // 4
    assert len(batches) == 4
    for chunk, batch in enumerate(batches):
        rows = permutation[chunk * size : (chunk + 1) * size]
        expected = (1000 * (rows // NUM_ENVS) + rows % NUM_ENVS).float().unsqueeze(-1)
        for offset, name, width in [
            (0, "obs", OBS_DIM),
            (1 if critic else 0, "critic_obs", CRITIC_DIM if critic else OBS_DIM),
            (2, "actions", NUM_ACTIONS),
            (3, "values", 1),
            (4, "advantages", 1),
            (5, "returns", 1),
            (6, "old_actions_log_prob", 1),
            (7, "old_mu", NUM_ACTIONS),
            (8, "old_sigma", NUM_ACTIONS),
        ]:
            field = getattr(batch, name)
            assert field.shape == (size, width)
            torch.testing.assert_close(field, (expected + 0.01 * offset).expand(size, width))
        assert batch.hidden_states is None
        assert batch.masks is None
        assert batch.rnd_state is None
        assert (batch.critic_obs is batch.obs) == (critic is None)


def test_every_sample_appears_once_and_every_sample_can_be_dropped():
    storage = make_storage()
    label_rows(storage)
    every = set(storage.values.flatten().tolist())
    seen_values = [value for batch in storage.mini_batch_generator(5, 1) for value in batch.values.flatten().tolist()]
    assert sorted(seen_values) == sorted(every)
    # 35 samples in 4 chunks leave 3 out; over several calls these must not be the same ones.
    dropped = set()
    for _ in range(60):
        seen = {value for batch in storage.mini_batch_generator(4, 1) for value in batch.values.flatten().tolist()}
        assert len(seen) == 32
        dropped |= every - seen
    assert len(dropped) > 25


def test_later_epochs_repeat_the_same_mini_batches():
    storage = make_storage()
    fill(storage, NUM_STEPS)
    for generator in (storage.mini_batch_generator(3, 4), storage.recurrent_mini_batch_generator(2, 4)):
        batches = list(generator)
        per_epoch = len(batches) // 4
        assert per_epoch in (2, 3)
        for position, batch in enumerate(batches):
            assert batch is batches[position % per_epoch]
    assert list(storage.mini_batch_generator(3, 0)) == []
    assert len(list(storage.mini_batch_generator(3))) == 24


def test_mini_batches_are_independent_of_later_writes():
    storage = make_storage()
    fill(storage, NUM_STEPS)
    batch = next(storage.mini_batch_generator(1, 1))
    before = batch.obs.clone()
    storage.observations.zero_()
    assert torch.equal(batch.obs, before)


@pytest.mark.parametrize("name", ["mini_batch_generator", "recurrent_mini_batch_generator"])
def test_rejects_impossible_number_of_mini_batches(name):
    generate = getattr(make_storage(), name)
    with pytest.raises(ValueError, match="num_mini_batches=36"):
        generate(36)
    with pytest.raises(ValueError, match="num_mini_batches=0"):
        generate(0)


def test_one_env_and_one_mini_batch_keep_their_axes():
    storage = make_storage(num_envs=1, num_steps=4)
    fill(storage, 4, hidden_states=lambda step: torch.full((NUM_LAYERS, 1, HIDDEN_SIZE), float(step)))
    batch = next(storage.mini_batch_generator(1, 1))
    assert batch.obs.shape == (4, OBS_DIM)
    assert batch.returns.shape == (4, 1)
    batch = next(storage.recurrent_mini_batch_generator(1, 1))
    num_pieces = batch.masks.shape[1]
    assert batch.obs.shape == (4, num_pieces, OBS_DIM)
    assert batch.returns.shape == (4, 1, 1)
    assert batch.hidden_states.shape == (NUM_LAYERS, num_pieces, HIDDEN_SIZE)


# Recurrent ------------------------------------------------------------------------------------------------------------


def pieces_of(dones):
    """`(env, first step, one past the last)` of every trajectory, environment by environment."""
    num_steps, num_envs = dones.shape
    pieces = []
    for env in range(num_envs):
        first = 0
        for step in range(num_steps):
            if dones[step, env] or step == num_steps - 1:
                pieces.append((env, first, step + 1))
                first = step + 1
    return pieces


def random_state(kind, generator):
    def leaf():
        return torch.randn(NUM_LAYERS, NUM_ENVS, HIDDEN_SIZE, generator=generator)

    return {
        "gru": lambda: Nested(leaf(), leaf()),
        "lstm": lambda: Nested(Pair(leaf(), leaf()), Pair(leaf(), leaf())),
        "nested": lambda: Nested(Nested(Pair(leaf(), leaf()), Nested(leaf(), leaf())), leaf()),
        "tensor": leaf,
    }[kind]()


def leaves(container):
    if isinstance(container, tuple):
        return [leaf for item in container for leaf in leaves(item)]
    return [container]


@pytest.mark.parametrize("kind", ["gru", "lstm", "nested", "tensor"])
def test_recurrent_mini_batches_against_a_loop(kind):
    generator = torch.Generator().manual_seed(8)
    storage = make_storage()
    states = [random_state(kind, generator) for _ in range(NUM_STEPS)]
    transitions = fill(storage, NUM_STEPS, seed=2, hidden_states=lambda step: states[step])
    storage.compute_returns(torch.zeros(NUM_ENVS, 1), 0.99, 0.95)
    dones = torch.stack([transition.dones for transition in transitions])
    assert dones[:-1].any()
    batches = list(storage.reccurent_mini_batch_generator(2, 1))
    assert len(batches) == 2
    for chunk, batch in enumerate(batches):
        first_env = chunk * 2
        pieces = pieces_of(dones[:, first_env : first_env + 2])
        assert batch.masks.dtype == torch.bool
        assert batch.masks.shape == (NUM_STEPS, len(pieces))
        assert type(batch.hidden_states) is type(states[0])
        assert [type(leaf) for leaf in leaves(batch.hidden_states)] == [torch.Tensor] * len(leaves(states[0]))
        for leaf in leaves(batch.hidden_states):
            assert leaf.shape == (NUM_LAYERS, len(pieces), HIDDEN_SIZE)
            assert leaf.is_contiguous()
        for number, (env, first, stop) in enumerate(pieces):
            length = stop - first
            assert batch.masks[:, number].tolist() == [True] * length + [False] * (NUM_STEPS - length)
            for padded, source in [(batch.obs, "observations"), (batch.critic_obs, "critic_observations")]:
                expected = [getattr(transitions[step], source)[first_env + env] for step in range(first, stop)]
                assert torch.equal(padded[:length, number], torch.stack(expected))
                assert not padded[length:, number].any()
            for leaf, source in zip(leaves(batch.hidden_states), leaves(states[first])):
                assert torch.equal(leaf[:, number], source[:, first_env + env])
        for name, buffer in [
            ("actions", storage.actions),
            ("values", storage.values),
            ("advantages", storage.advantages),
            ("returns", storage.returns),
            ("old_actions_log_prob", storage.actions_log_prob),
            ("old_mu", storage.mu),
            ("old_sigma", storage.sigma),
        ]:
            assert torch.equal(getattr(batch, name), buffer[:, first_env : first_env + 2])


def test_recurrent_without_critic_observations_and_without_states():
    storage = make_storage(critic=None)
    fill(storage, NUM_STEPS)
    batch = next(storage.recurrent_mini_batch_generator(1, 1))
    assert batch.critic_obs is batch.obs
    assert batch.hidden_states is None


def test_recurrent_generator_calls_overridden_misspelled_name():
    class Overriding(RolloutStorage):
        def reccurent_mini_batch_generator(self, num_mini_batches, num_epochs=8):
            return iter([("overridden", num_mini_batches, num_epochs)])

    storage = Overriding(2, 3, [1], None, [1])
    assert next(storage.recurrent_mini_batch_generator(4, 5)) == ("overridden", 4, 5)


def test_both_generators_call_get_minibatch_from_indices():
    class Doubling(RolloutStorage):
        def get_minibatch_from_indices(self, T_slice, B_slice, padded_B_slice=None, prev_done_mask=None):
            batch = super().get_minibatch_from_indices(T_slice, B_slice, padded_B_slice, prev_done_mask)
            return batch._replace(actions=2 * self.actions[T_slice, B_slice])

    storage = Doubling(NUM_ENVS, NUM_STEPS, [OBS_DIM], None, [NUM_ACTIONS])
    fill(storage, NUM_STEPS)
    batch = next(storage.mini_batch_generator(1, 1))
    assert batch.actions.sum().item() == pytest.approx(2 * storage.actions.sum().item(), abs=1e-4)
    batch = next(storage.recurrent_mini_batch_generator(1, 1))
    assert torch.equal(batch.actions, 2 * storage.actions)


def test_get_minibatch_from_indices_without_prev_done_mask():
    storage = make_storage()
    fill(storage, NUM_STEPS, hidden_states=lambda step: torch.full((1, NUM_ENVS, 2), float(step)))
    expected = list(storage.recurrent_mini_batch_generator(2, 1))[1]
    batch = storage.get_minibatch_from_indices(slice(None), slice(2, 4), padded_B_slice=slice(None))
    for ours, theirs in zip(batch, expected):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


def test_missing_states_read_as_zeros():
    storage = make_storage(num_steps=3)
    full = Nested(torch.ones(1, NUM_ENVS, 2), torch.ones(1, NUM_ENVS, 2))
    partial = Nested(torch.ones(1, NUM_ENVS, 2), None)
    fill(storage, 3, hidden_states=lambda step: [None, partial, full][step])
    assert [row.unique().tolist() for row in storage.saved_hidden_states.actor] == [[0.0], [0.0], [1.0]]
    storage.clear()
    fill(storage, 3, hidden_states=lambda step: [full, None, partial][step])
    for leaf in storage.saved_hidden_states:
        assert [row.unique().tolist() for row in leaf] == [[1.0], [0.0], [0.0]]


def test_stored_hidden_states_are_copies():
    storage = make_storage(num_steps=2)
    state = torch.ones(1, NUM_ENVS, 2)
    fill(storage, 1, hidden_states=lambda step: state)
    state.zero_()
    assert storage.saved_hidden_states[0].eq(1).all()


# Static shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_capacity_mode_equals_exact_mode_after_unpadding(kind):
    generator = torch.Generator().manual_seed(8)
    storage = make_storage()
    states = [random_state(kind, generator) for _ in range(NUM_STEPS)]
    fill(storage, NUM_STEPS, seed=4, hidden_states=lambda step: states[step])
    exact = list(storage.recurrent_mini_batch_generator(2, 1))
    assert storage.max_trajectories(2).shape == ()
    assert int(storage.max_trajectories(2)) == max(batch.masks.shape[1] for batch in exact)
    capacity = int(storage.max_trajectories(2)) + 3
    storage.trajectory_capacity = capacity
    for batch, reference in zip(storage.recurrent_mini_batch_generator(2, 1), exact, strict=True):
        num_pieces = reference.masks.shape[1]
        assert batch.obs.shape == (NUM_STEPS, capacity, OBS_DIM)
        assert batch.masks.dtype == torch.int64
        assert batch.masks.shape == (NUM_STEPS, 2)
        for name in ("obs", "critic_obs"):
            padded, expected = getattr(batch, name), getattr(reference, name)
            assert torch.equal(padded[:, :num_pieces], expected)
            assert not padded[:, num_pieces:].any()
            assert torch.equal(unpad_trajectories(padded, batch.masks), unpad_trajectories(expected, reference.masks))
        for leaf, expected in zip(leaves(batch.hidden_states), leaves(reference.hidden_states)):
            assert leaf.shape == (NUM_LAYERS, capacity, HIDDEN_SIZE)
            assert leaf.is_contiguous()
            assert torch.equal(leaf[:, :num_pieces], expected)
            assert not leaf[:, num_pieces:].any()
        assert torch.equal(batch.returns, reference.returns)


def test_unpadding_restores_the_chunk_for_random_dones():
    generator = torch.Generator().manual_seed(0)
    for trial in range(40):
        num_envs, num_steps = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(2))
        num_chunks = int(torch.randint(1, num_envs + 1, (), generator=generator))
        storage = RolloutStorage(num_envs, num_steps, [2], None, [1])
        storage.observations.copy_(torch.randn(num_steps, num_envs, 2, generator=generator))
        density = torch.rand((), generator=generator)
        storage.dones.copy_(torch.rand(num_steps, num_envs, 1, generator=generator) < density)
        storage.trajectory_capacity = None if trial % 2 else num_steps * num_envs
        size = num_envs // num_chunks
        for chunk, batch in enumerate(storage.recurrent_mini_batch_generator(num_chunks, 1)):
            restored = unpad_trajectories(batch.obs, batch.masks)
            assert torch.equal(restored, storage.observations[:, chunk * size : (chunk + 1) * size])


def test_mini_batches_without_host_sync():
    # Tensors on the meta device hold no data: reading a number, or a shape that depends on data, raises there.
    storage = RolloutStorage(NUM_ENVS, NUM_STEPS, [OBS_DIM], [CRITIC_DIM], [NUM_ACTIONS], device="meta")
    fill(storage, NUM_STEPS, hidden_states=lambda step: torch.zeros(NUM_LAYERS, NUM_ENVS, HIDDEN_SIZE))
    storage.compute_returns(torch.zeros(NUM_ENVS, 1, device="meta"), 0.99, 0.95)
    assert all(statistic.shape == () for statistic in storage.get_statistics())
    for batch in storage.mini_batch_generator(2, 2):
        assert batch.obs.shape == (17, OBS_DIM)
    storage.trajectory_capacity = 9
    assert storage.max_trajectories(2).shape == ()
    for batch in storage.recurrent_mini_batch_generator(2, 2):
        assert batch.obs.shape == (NUM_STEPS, 9, OBS_DIM)
        assert batch.hidden_states.shape == (NUM_LAYERS, 9, HIDDEN_SIZE)
    storage.trajectory_capacity = None
    with pytest.raises((NotImplementedError, RuntimeError)):
        storage.recurrent_mini_batch_generator(2, 2)
