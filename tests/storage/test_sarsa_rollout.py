import logging

import pytest
import torch

from st_rl.storage.rollout_storage import RolloutStorage, SarsaRolloutStorage
from st_rl.utils.tensors.trajectories import unpad_trajectories
from tests.storage.rollouts import CRITIC_DIM, NUM_ACTIONS, NUM_ENVS, NUM_STEPS, OBS_DIM, fill


def make_storage(critic=(CRITIC_DIM,)):
    return SarsaRolloutStorage(NUM_ENVS, NUM_STEPS, [OBS_DIM], critic, [NUM_ACTIONS])


def last(step):
    """Next observations only at the last step."""
    if step < NUM_STEPS - 1:
        return {}
    return {
        "next_observations": torch.full((NUM_ENVS, OBS_DIM), 7.0),
        "next_critic_observations": torch.full((NUM_ENVS, CRITIC_DIM), 8.0),
    }


def test_fields_and_shared_rows():
    storage = make_storage()
    assert storage.MiniBatch._fields == (*RolloutStorage.MiniBatch._fields, "next_obs", "next_critic_obs")
    assert storage.all_observations.shape == (NUM_STEPS + 1, NUM_ENVS, OBS_DIM)
    storage.all_observations.copy_(torch.randn(storage.all_observations.shape))
    assert torch.equal(storage.observations, storage.all_observations[:-1])
    assert torch.equal(storage.next_observations, storage.all_observations[1:])
    assert storage.next_critic_observations is storage.next_privileged_observations


def test_transition_has_both_names_of_next_critic_observation():
    transition = SarsaRolloutStorage.Transition()
    assert transition.next_observations is None
    transition.next_privileged_observations = torch.ones(1)
    assert transition.next_critic_observations is transition.next_privileged_observations
    transition.clear()
    assert transition.next_privileged_observations is None


@pytest.mark.parametrize("critic", [(CRITIC_DIM,), None])
def test_next_observation_is_the_next_row_and_given_for_the_last(critic):
    storage = make_storage(critic)
    transitions = fill(storage, NUM_STEPS, extra=last)
    observations = torch.stack([transition.observations for transition in transitions])
    following = torch.cat([observations[1:], torch.full((1, NUM_ENVS, OBS_DIM), 7.0)])
    assert torch.equal(storage.next_observations, following)
    assert torch.equal(storage.observations, observations)
    if critic is None:
        assert storage.next_privileged_observations is None
    else:
        critic_observations = torch.stack([transition.critic_observations for transition in transitions])
        assert torch.equal(storage.next_privileged_observations[:-1], critic_observations[1:])
        assert storage.next_privileged_observations[-1].eq(8).all()


@pytest.mark.parametrize("critic", [(CRITIC_DIM,), None])
def test_next_observations_in_mini_batches(critic):
    storage = make_storage(critic)
    fill(storage, NUM_STEPS, extra=last)
    successor = {
        tuple(storage.observations[step, env].tolist()): storage.next_observations[step, env]
        for step in range(NUM_STEPS)
        for env in range(NUM_ENVS)
    }
    for batch in storage.mini_batch_generator(2, 1):
        assert batch.next_obs.shape == batch.obs.shape
        for observation, following in zip(batch.obs, batch.next_obs):
            assert torch.equal(following, successor[tuple(observation.tolist())])
        assert (batch.next_critic_obs is batch.next_obs) == (critic is None)
    for chunk, batch in enumerate(storage.recurrent_mini_batch_generator(2, 1)):
        assert batch.next_obs.shape == batch.obs.shape
        assert batch.next_critic_obs.shape == batch.critic_obs.shape
        envs = slice(2 * chunk, 2 * chunk + 2)
        restored = unpad_trajectories(batch.next_obs, batch.masks)
        # Also across a done, where the next observation belongs to the next episode.
        assert torch.equal(restored, storage.next_observations[:, envs])
        assert not batch.next_obs[~batch.masks].any()


def test_missing_last_next_observation_repeats_and_warns_once(caplog):
    storage = make_storage()
    with caplog.at_level(logging.WARNING, logger="st_rl"):
        transitions = fill(storage, NUM_STEPS)
        assert torch.equal(storage.next_observations[-1], transitions[-1].observations)
        assert torch.equal(storage.next_privileged_observations[-1], transitions[-1].critic_observations)
        storage.clear()
        fill(storage, NUM_STEPS)
    assert len(caplog.records) == 1
    assert "next_observations" in caplog.text


def test_second_rollout_starts_empty():
    storage = make_storage()
    fill(storage, NUM_STEPS, extra=last)
    storage.clear()
    transitions = fill(storage, NUM_STEPS, seed=5, extra=last)
    assert torch.equal(storage.next_observations[0], transitions[1].observations)
    assert storage.next_observations[-1].eq(7).all()


def test_rejects_next_observation_of_wrong_size():
    storage = make_storage(None)
    with pytest.raises(ValueError, match=r"transition\.next_observations has shape \(5, 9\)"):
        fill(storage, NUM_STEPS, extra=lambda step: {"next_observations": torch.zeros(NUM_ENVS, 9)})
