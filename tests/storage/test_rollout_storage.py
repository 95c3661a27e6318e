import pickle
from collections import namedtuple

import pytest
import torch

import st_rl.storage
import st_rl.storage.rollout_storage as rollout_storage
from st_rl.storage.fields import BufferField
from st_rl.storage.rollout_storage import AmpRolloutStorage, RolloutStorage
from tests.storage.rollouts import CRITIC_DIM, NUM_ACTIONS, NUM_ENVS, NUM_STEPS, OBS_DIM, fill, random_transition


def make_storage(critic=(CRITIC_DIM,), num_envs=NUM_ENVS, num_steps=NUM_STEPS, **kwargs):
    return RolloutStorage(num_envs, num_steps, [OBS_DIM], critic, [NUM_ACTIONS], **kwargs)


def stacked(transitions, name):
    return torch.stack([getattr(transition, name) for transition in transitions])


def test_public_names():
    names = ["RolloutStorage", "QueueRolloutStorage", "ActionLabelRollout", "SarsaRolloutStorage", "AmpRolloutStorage"]
    for name in names:
        assert getattr(st_rl.storage, name) is getattr(rollout_storage, name)


def test_buffers_have_the_documented_shapes():
    storage = make_storage()
    shapes = {
        "observations": (OBS_DIM,),
        "privileged_observations": (CRITIC_DIM,),
        "actions": (NUM_ACTIONS,),
        "mu": (NUM_ACTIONS,),
        "sigma": (NUM_ACTIONS,),
        **dict.fromkeys(("rewards", "dones", "values", "actions_log_prob", "returns", "advantages"), (1,)),
    }
    for name, shape in shapes.items():
        assert getattr(storage, name).shape == (NUM_STEPS, NUM_ENVS, *shape)
    assert storage.dones.dtype == torch.uint8
    assert storage.critic_observations is storage.privileged_observations
    assert storage.saved_hidden_states is None
    assert storage.rnd_state is None
    assert (storage.step, storage.num_envs, storage.num_transitions_per_env) == (0, NUM_ENVS, NUM_STEPS)


@pytest.mark.parametrize("shape", [None, [None], (None,), 0, [0]])
def test_all_forms_of_missing_critic_shape(shape):
    assert make_storage(critic=shape).privileged_observations is None


def test_settings_of_other_storages_are_ignored():
    storage = make_storage(amp_obs_shape=(42,), buffer_dilation_ratio=2.0, rnd_state_shape=None)
    assert storage.num_transitions_per_env == NUM_STEPS


def test_transition_and_mini_batch_fields():
    transition = RolloutStorage.Transition()
    names = ["observations", "critic_observations", "actions", "rewards", "dones", "values", "actions_log_prob"]
    names += ["action_mean", "action_sigma", "hidden_states", "rnd_state"]
    for name in names:
        assert getattr(transition, name) is None
        setattr(transition, name, torch.ones(1))
    transition.clear()
    assert all(getattr(transition, name) is None for name in names)
    assert " ".join(RolloutStorage.MiniBatch._fields) == (
        "obs critic_obs actions values advantages returns old_actions_log_prob old_mu old_sigma hidden_states masks "
        "rnd_state"
    )
    assert RolloutStorage.MiniBatch(*range(11)).rnd_state is None


def test_transition_subclass_may_set_fields_in_constructor():
    class Extended(RolloutStorage.Transition):
        def __init__(self):
            super().__init__()
            self.extra = None

    transition = Extended()
    transition.extra = 3
    transition.clear()
    assert transition.extra is None


def test_transitions_are_copied_in_order():
    storage = make_storage(rnd_state_shape=3)
    transitions = fill(storage, NUM_STEPS, extra=lambda step: {"rnd_state": torch.full((NUM_ENVS, 3), float(step))})
    assert storage.step == NUM_STEPS
    for name, source in [
        ("observations", "observations"),
        ("privileged_observations", "critic_observations"),
        ("actions", "actions"),
        ("mu", "action_mean"),
        ("sigma", "action_sigma"),
        ("values", "values"),
        ("rnd_state", "rnd_state"),
    ]:
        assert torch.equal(getattr(storage, name), stacked(transitions, source))
    for name in ("rewards", "actions_log_prob"):
        assert torch.equal(getattr(storage, name)[..., 0], stacked(transitions, name))
    assert torch.equal(storage.dones[..., 0], stacked(transitions, "dones").to(torch.uint8))
    kept = storage.observations[0].clone()
    transitions[0].observations.zero_()
    assert torch.equal(storage.observations[0], kept)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(NUM_ENVS,), (NUM_ENVS, 1)])
def test_dones_of_any_dtype_and_shape_are_stored_as_uint8(dtype, shape):
    dones = torch.tensor([True, False, False, True, True])
    storage = make_storage()
    transition = random_transition(storage, torch.Generator(), dones=dones.to(dtype).view(shape))
    storage.add_transitions(transition)
    assert torch.equal(storage.dones[0, :, 0], dones.to(torch.uint8))
    transition.dones = dones.to(dtype).view(shape) * 3
    storage.add_transitions(transition)
    assert torch.equal(storage.dones[1, :, 0], dones.to(torch.uint8))


def test_buffers_have_the_default_precision_of_torch():
    torch.set_default_dtype(torch.float64)
    try:
        storage = make_storage()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (storage.observations.dtype, storage.returns.dtype) == (torch.float64, torch.float64)
    assert storage.dones.dtype == torch.uint8
    assert make_storage().observations.dtype == torch.float32


def test_overflow_and_clear():
    storage = make_storage()
    transition = fill(storage, NUM_STEPS)[0]
    before = storage.observations.clone()
    with pytest.raises(AssertionError, match="Rollout buffer overflow"):
        storage.add_transitions(transition)
    storage.clear()
    assert storage.step == 0
    assert torch.equal(storage.observations, before)


def test_rejects_invalid_input():
    storage = make_storage()
    transition = random_transition(storage, torch.Generator())
    transition.values = None
    with pytest.raises(ValueError, match=r"transition\.values is None"):
        storage.add_transitions(transition)
    transition.values = torch.zeros(NUM_ENVS + 1, 1)
    with pytest.raises(ValueError, match=r"transition\.values has shape \(6, 1\); the storage expects \(5, 1\)"):
        storage.add_transitions(transition)
    transition.values = torch.zeros(NUM_ENVS, 1)
    transition.observations = torch.zeros(1, OBS_DIM)
    with pytest.raises(ValueError, match=r"transition\.observations has shape \(1, 3\)"):
        storage.add_transitions(transition)
    transition.observations = torch.zeros(OBS_DIM, NUM_ENVS)
    with pytest.raises(ValueError, match=r"transition\.observations has shape \(3, 5\)"):
        storage.add_transitions(transition)
    assert storage.step == 0
    with pytest.raises(ValueError, match=r"last_values has shape \(1, 1\); give one value per environment, \(5, 1\)"):
        storage.compute_returns(torch.zeros(1, 1), 0.99, 0.95)
    with pytest.raises(ValueError, match="num_envs is 0"):
        make_storage(num_envs=0)
    with pytest.raises(ValueError, match="actions_shape is None"):
        RolloutStorage(2, 3, [4], None, None)


def test_steps_of_inference_mode_are_usable_in_autograd():
    with torch.inference_mode():
        storage = make_storage()
        fill(storage, NUM_STEPS, hidden_states=lambda step: torch.full((1, NUM_ENVS, 2), float(step)))
        storage.compute_returns(torch.zeros(NUM_ENVS, 1), 0.99, 0.95)
    weight = torch.ones(OBS_DIM, requires_grad=True)
    for batch in [*storage.mini_batch_generator(2, 1), *storage.recurrent_mini_batch_generator(2, 1)]:
        loss = (batch.obs * weight).sum() + (batch.returns * batch.advantages * weight.sum()).sum()
        loss.backward()
    assert weight.grad is not None
    assert not storage.returns.is_inference()
    assert not storage.saved_hidden_states.is_inference()


def test_stored_values_are_detached():
    storage = make_storage()
    transition = random_transition(storage, torch.Generator())
    transition.values = torch.zeros(NUM_ENVS, 1, requires_grad=True) * 2
    storage.add_transitions(transition)
    assert not storage.values.requires_grad


def test_statistics_count_trajectories_without_changing_dones():
    for seed in range(5):
        storage = make_storage()
        fill(storage, NUM_STEPS, seed=seed)
        before = storage.dones.clone()
        lengths = []
        for env in range(NUM_ENVS):
            length = 0
            for step in range(NUM_STEPS):
                length += 1
                if before[step, env, 0] or step == NUM_STEPS - 1:
                    lengths.append(length)
                    length = 0
        mean_length, mean_reward = storage.get_statistics()
        assert mean_length.item() == pytest.approx(sum(lengths) / len(lengths))
        assert mean_length.is_floating_point()
        assert mean_reward.item() == pytest.approx(storage.rewards.mean().item())
        assert torch.equal(storage.dones, before)


class CommandStorage(RolloutStorage):
    """Declares one extra field."""

    fields = (
        *RolloutStorage.fields,
        BufferField("commands", "command", source="commands", batch="commands", dtype=torch.float16, padded=True),
    )


def test_subclass_declares_only_its_extra_field():
    storage = CommandStorage(NUM_ENVS, NUM_STEPS, [OBS_DIM], None, [NUM_ACTIONS], command_shape=(2,))
    assert storage.Transition().commands is None
    fill(storage, NUM_STEPS, extra=lambda step: {"commands": torch.full((NUM_ENVS, 2), float(step))})
    assert storage.commands.dtype == torch.float16
    assert torch.equal(storage.commands[3], torch.full((NUM_ENVS, 2), 3.0, dtype=torch.float16))
    batch = next(storage.mini_batch_generator(1, 1))
    assert batch._fields[-1] == "commands"
    assert batch.commands.shape == (NUM_STEPS * NUM_ENVS, 2)
    batch = next(storage.recurrent_mini_batch_generator(1, 1))
    assert batch.commands.shape == (*batch.masks.shape, 2)
    assert not hasattr(RolloutStorage.Transition(), "commands")


class AgeStorage(RolloutStorage):
    """The same without field declarations, as in older client code: own types and an overridden hook."""

    class Transition(RolloutStorage.Transition):
        def __init__(self):
            super().__init__()
            self.ages = None

    MiniBatch = namedtuple("MiniBatch", [*RolloutStorage.MiniBatch._fields, "ages"])

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ages = torch.zeros(self.num_transitions_per_env, self.num_envs, 1)

    def add_transitions(self, transition):
        self.ages[self.step].copy_(transition.ages)
        super().add_transitions(transition)

    def get_minibatch_from_indices(self, T_slice, B_slice, padded_B_slice=None, prev_done_mask=None):
        batch = super().get_minibatch_from_indices(T_slice, B_slice, padded_B_slice, prev_done_mask)
        return self.MiniBatch(*batch, self.ages[T_slice, B_slice])


def test_subclass_may_extend_mini_batch_in_get_minibatch_from_indices():
    storage = AgeStorage(NUM_ENVS, NUM_STEPS, [OBS_DIM], None, [NUM_ACTIONS])
    fill(storage, NUM_STEPS, extra=lambda step: {"ages": torch.full((NUM_ENVS, 1), float(step))})
    batch = next(storage.mini_batch_generator(1, 1))
    assert sorted(batch.ages[:, 0].tolist()) == sorted([*range(NUM_STEPS)] * NUM_ENVS)
    batch = next(storage.recurrent_mini_batch_generator(1, 1))
    assert torch.equal(batch.ages, storage.ages)


@pytest.mark.parametrize("cls", [RolloutStorage, AmpRolloutStorage, CommandStorage])
def test_transition_and_mini_batch_can_be_pickled(cls):
    batch = cls.MiniBatch(*range(11))
    assert pickle.loads(pickle.dumps(batch)) == batch
    transition = cls.Transition()
    transition.rewards = 3
    assert pickle.loads(pickle.dumps(transition)).rewards == 3
