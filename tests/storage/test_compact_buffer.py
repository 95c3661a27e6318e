"""`CompactBuffer`: observations in their native dtypes, less memory, equal mini-batches."""

import pytest
import torch

from st_rl.algorithms import PPO
from st_rl.modules import EncoderActorCritic, EncoderActorCriticRecurrent
from st_rl.storage import ActionLabelRollout, QueueRolloutStorage, RolloutStorage, SarsaRolloutStorage
from st_rl.storage.compact_buffer import CompactBuffer

SEGMENTS = {"pose": 3, "depth": (1, 4, 6), "contact": 2, "mask": (1, 2, 2)}
NUM_OBS, ROBOTS, STEPS = 33, 4, 5


def fill(storage, seed: int = 0) -> torch.Tensor:
    """Add random steps; images are multiples of 1/255, like those of a camera."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(STEPS, ROBOTS, NUM_OBS, generator=generator)
    obs[..., 3:27] = torch.randint(256, (STEPS, ROBOTS, 24), generator=generator) / 255.0
    obs[..., 29:] = torch.rand(STEPS, ROBOTS, 4, generator=generator)
    for step in range(STEPS):
        transition = storage.Transition()
        transition.observations, transition.critic_observations = obs[step], obs[step] + 1.0
        transition.actions = transition.action_mean = transition.action_sigma = torch.zeros(ROBOTS, 2)
        transition.rewards = transition.values = transition.actions_log_prob = torch.zeros(ROBOTS)
        transition.dones = torch.tensor([0, step == 2, 0, step == 3])
        if hasattr(transition, "action_labels"):
            transition.action_labels = torch.zeros(ROBOTS, 2)
        storage.add_transitions(transition)
    return obs


def make(storage_class=RolloutStorage, **dtypes: str):
    return storage_class(ROBOTS, STEPS, [NUM_OBS], [None], [2], obs_segments=SEGMENTS, obs_dtypes=dtypes or None)


@pytest.mark.parametrize("storage_class", [RolloutStorage, QueueRolloutStorage, ActionLabelRollout])
@pytest.mark.parametrize("is_recurrent", [False, True])
def test_mini_batches_equal_float32_storage(storage_class, is_recurrent):
    compact, plain = make(storage_class, depth="uint8", mask="float16"), make(storage_class)
    fill(compact)
    fill(plain)
    for first, second in zip(*(batches(storage, is_recurrent) for storage in (compact, plain)), strict=True):
        assert first.obs.dtype == torch.float32
        assert first.obs.shape == second.obs.shape
        torch.testing.assert_close(first.obs[..., :29], second.obs[..., :29], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(first.obs[..., 29:], second.obs[..., 29:], rtol=1e-3, atol=1e-3)
        assert torch.equal(first.critic_obs, first.obs)


def batches(storage, is_recurrent: bool) -> list:
    torch.manual_seed(0)
    generator = storage.recurrent_mini_batch_generator if is_recurrent else storage.mini_batch_generator
    return list(generator(2, 3))


def test_components_keep_their_dtype_and_memory_shrinks():
    storage = make(depth="uint8", mask="float16")
    assert isinstance(storage.observations, CompactBuffer)
    assert [part.dtype for part in storage.observations.parts] == [
        torch.float32, torch.uint8, torch.float32, torch.float16,
    ]  # fmt: skip
    assert storage.observations.shape == (STEPS, ROBOTS, NUM_OBS)
    assert storage.observations.num_bytes == STEPS * ROBOTS * (5 * 4 + 24 + 4 * 2)
    assert isinstance(make().observations, torch.Tensor)


def test_critic_observations_use_their_own_segments():
    storage = RolloutStorage(
        ROBOTS, STEPS, [NUM_OBS], [NUM_OBS], [2], obs_dtypes={"depth": "float16", "scan": "bfloat16"},
        obs_segments=SEGMENTS, critic_obs_segments={"scan": 30, "pose": 3},
    )  # fmt: skip
    obs = fill(storage)
    assert [part.dtype for part in storage.critic_observations.parts] == [torch.bfloat16, torch.float32]
    (batch,) = storage.mini_batch_generator(1, 1)
    expected = (obs + 1.0).flatten(0, 1)
    order = (batch.critic_obs[:, None, 30:] - expected[None, :, 30:]).abs().sum(-1).argmin(dim=1)
    torch.testing.assert_close(batch.critic_obs[:, :30], expected[order][:, :30], rtol=1e-2, atol=1e-2)


def test_uint8_clips_to_unit_interval():
    storage = make(depth="uint8")
    obs = torch.full((ROBOTS, NUM_OBS), 3.0)
    storage.observations.write(0, obs)
    storage.observations.write(1, -obs)
    assert bool((storage.observations[0][:, 3:27] == 1.0).all())
    assert bool((storage.observations[1][:, 3:27] == 0.0).all())


@pytest.mark.parametrize("policy_class", [EncoderActorCritic, EncoderActorCriticRecurrent])
def test_training_matches_float32_within_dtype_precision(policy_class):
    def train(obs_dtypes):
        torch.manual_seed(0)
        recurrent = {"rnn_hidden_size": 6} if policy_class.is_recurrent else {}
        policy = policy_class(
            NUM_OBS, NUM_OBS, 2, actor_hidden_dims=[8], critic_hidden_dims=[8], obs_segments=SEGMENTS,
            encoder_component_names=["depth"], encoder_class_name="Conv2dHeadModel", encoder_output_size=4,
            encoder_kwargs={"channels": [3], "kernel_sizes": [3], "strides": [1], "hidden_sizes": [8]}, **recurrent,
        )  # fmt: skip
        learner = PPO(policy, num_learning_epochs=2, num_mini_batches=2)
        learner.init_storage(ROBOTS, STEPS, [NUM_OBS], [None], [2], obs_dtypes=obs_dtypes)
        generator = torch.Generator().manual_seed(1)
        for _ in range(STEPS):
            obs = torch.rand(ROBOTS, NUM_OBS, generator=generator)
            learner.act(obs, obs)
            learner.process_env_step(torch.rand(ROBOTS, generator=generator), torch.zeros(ROBOTS), {})
        learner.compute_returns(obs)
        return {key: float(value) for key, value in learner.update(0)[0].items()}

    assert train({"depth": "float16"}) == pytest.approx(train(None), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize(
    ("make_storage", "message"),
    [
        (lambda: make(image="uint8"), r"obs_dtypes names \['image'\], which no observation has; there are \['contact'"),
        (lambda: make(depth="int4"), r"obs_dtypes has {'depth': 'int4'}; use one of: float16, bfloat16, uint8"),
        (lambda: make(SarsaRolloutStorage, depth="uint8"), "remove obs_dtypes"),
        (
            lambda: QueueRolloutStorage(
                2, 2, [33], [None], [2], obs_segments=SEGMENTS, obs_dtypes={"depth": "uint8"}, buffer_dilation_ratio=2.0
            ),
            "not supported with buffer_dilation_ratio=2.0",
        ),
    ],
)
def test_rejects_unsupported_dtypes_and_storages(make_storage, message):
    with pytest.raises(ValueError, match=message):
        make_storage()


def test_rejects_uint8_with_normalized_observations():
    policy = EncoderActorCritic(NUM_OBS, NUM_OBS, 2, obs_segments=SEGMENTS)
    learner = PPO(policy, empirical_normalization=True)
    with pytest.raises(ValueError, match="uint8 stores values from 0 to 1, normalized observations are larger"):
        learner.init_storage(ROBOTS, STEPS, [NUM_OBS], [None], [2], obs_dtypes={"depth": "uint8"})
