"""Symmetry augmentation and mirror loss in PPO; the mirror maps are tested in tests/modules/test_symmetry.py."""

import copy

import pytest
import torch

from st_rl.algorithms import PPO
from st_rl.modules import ActorCritic, ActorCriticRecurrent

JOINTS = ["left_hip_roll", "right_hip_roll", "waist_yaw"]
SEGMENTS = {"velocity": 3, "joints": 3}
CRITIC_SEGMENTS = {"joints": (3,), "height": 1, "velocity": 3}
KINDS = {"velocity": "vector", "joints": "joints", "height": "scalar"}
CFG = {
    "joint_names": JOINTS,
    "obs": {name: KINDS[name] for name in SEGMENTS},
    "critic_obs": {name: KINDS[name] for name in CRITIC_SEGMENTS},
}

# Explicit mirror: roll and yaw joints flip signs, left and right swap, lateral velocity flips its sign.
MIRROR_JOINTS = -torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 1]])
MIRROR_VELOCITY = torch.diag(torch.tensor([1.0, -1, 1]))
MIRROR_OBS = torch.block_diag(MIRROR_VELOCITY, MIRROR_JOINTS)
MIRROR_CRITIC = torch.block_diag(MIRROR_JOINTS, torch.ones(1, 1), MIRROR_VELOCITY)


def make(normalised=False, **symmetry):
    policy = ActorCritic(6, 7, 3, [8], [8], obs_segments=SEGMENTS, critic_obs_segments=CRITIC_SEGMENTS)
    alg = PPO(policy, symmetry_cfg={**CFG, **symmetry}, empirical_normalization=normalised, schedule="adaptive")
    alg.init_obs_norm(6, 7)
    alg.init_storage(8, 4, [6], [7], [3])
    if normalised:
        # Asymmetric statistics, so that mirroring and normalizing do not commute.
        alg.obs_normalizer(torch.arange(6.0) + torch.randn(64, 6) * torch.linspace(0.5, 3.0, 6))
        alg.critic_obs_normalizer(-torch.arange(7.0) + torch.randn(64, 7) * torch.linspace(3.0, 0.5, 7))
    with torch.inference_mode():
        for _ in range(4):
            alg.act(torch.randn(8, 6), torch.randn(8, 7))
            alg.process_env_step(torch.randn(8), torch.rand(8) < 0.2, {})
        alg.compute_returns(torch.randn(8, 7))
    return alg


def mirrored(tensor, matrix, normalizer):
    """Mirror image of normalized rows."""
    if not isinstance(normalizer, torch.nn.Identity):
        scale, mean = normalizer.std + 1e-2, normalizer.mean
        return ((tensor * scale + mean) @ matrix.T - mean) / scale
    return tensor @ matrix.T


def mirror_image(alg, batch):
    return batch._replace(
        obs=mirrored(batch.obs, MIRROR_OBS, alg.obs_normalizer),
        critic_obs=mirrored(batch.critic_obs, MIRROR_CRITIC, alg.critic_obs_normalizer),
        actions=batch.actions @ MIRROR_JOINTS.T,
    )


def gradient(alg, batch):
    alg.optimizer.zero_grad()
    losses, _, _ = alg.compute_losses(batch)
    (losses["surrogate_loss"] + losses["value_loss"]).backward()
    return losses, [parameter.grad.clone() for parameter in alg.actor_critic.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("normalised", [False, True])
def test_augmented_gradient_is_equal_for_mirror_image(normalised):
    alg = make(normalised)
    (batch,) = alg.storage.mini_batch_generator(1, 1)
    losses, gradients = gradient(alg, batch)
    mirror_losses, mirror_gradients = gradient(alg, mirror_image(alg, batch))
    for name in losses:
        torch.testing.assert_close(losses[name], mirror_losses[name], atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(gradients, mirror_gradients):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("normalised", [False, True])
def test_critic_of_actor_observation_gets_its_mirror_image(normalised):
    policy = ActorCritic(6, 6, 3, [8], [8], obs_segments=SEGMENTS)
    cfg = {key: value for key, value in CFG.items() if key != "critic_obs"}
    alg = PPO(policy, symmetry_cfg=cfg, empirical_normalization=normalised)
    alg.init_obs_norm(6, 6)
    alg.init_storage(8, 4, [6], [None], [3])
    alg.obs_normalizer(torch.arange(6.0) + torch.randn(64, 6) * torch.linspace(0.5, 3.0, 6))
    with torch.inference_mode():
        for _ in range(4):
            obs = torch.randn(8, 6)
            alg.act(obs, obs)
            alg.process_env_step(torch.randn(8), torch.rand(8) < 0.2, {})
        alg.compute_returns(torch.randn(8, 6))
    (batch,) = alg.storage.mini_batch_generator(1, 1)
    image = batch._replace(obs=mirrored(batch.obs, MIRROR_OBS, alg.obs_normalizer))
    image = image._replace(critic_obs=image.obs, actions=batch.actions @ MIRROR_JOINTS.T)
    losses, image_losses = alg.compute_losses(batch)[0], alg.compute_losses(image)[0]
    for name in losses:
        torch.testing.assert_close(losses[name], image_losses[name], atol=1e-5, rtol=1e-4)


def test_gradient_differs_for_mirror_image_without_augmentation():
    alg = make(use_data_augmentation=False)
    (batch,) = alg.storage.mini_batch_generator(1, 1)
    losses, gradients = gradient(alg, batch)
    mirror_losses, mirror_gradients = gradient(alg, mirror_image(alg, batch))
    assert (losses["surrogate_loss"] - mirror_losses["surrogate_loss"]).abs() > 1e-3
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(gradients, mirror_gradients))


@pytest.mark.parametrize("normalised", [False, True])
def test_augmented_loss_is_mean_of_both_images(normalised):
    alg = make(normalised)
    plain = PPO(copy.deepcopy(alg.actor_critic))
    (batch,) = alg.storage.mini_batch_generator(1, 1)
    losses, inter_vars, _ = alg.compute_losses(batch)
    one, _, _ = plain.compute_losses(batch)
    other, _, _ = plain.compute_losses(mirror_image(alg, batch))
    for name in ("surrogate_loss", "value_loss", "entropy"):
        torch.testing.assert_close(losses[name], (one[name] + other[name]) / 2, atol=1e-5, rtol=1e-4)
    assert inter_vars["ratio"].shape == (64,)
    # KL of the recorded samples only, for an unchanged policy; the formula adds 1e-5 per action.
    assert inter_vars["kl"].shape == (32,)
    assert inter_vars["kl"].abs().max() < 1e-4


def symmetric_policy():
    """A linear actor with W M = N W and b = N b for the mirrors M and N."""
    policy = ActorCritic(6, 7, 3, [], [8], obs_segments=SEGMENTS, critic_obs_segments=CRITIC_SEGMENTS)
    with torch.no_grad():
        layer = policy.actor[0]
        layer.weight.copy_((layer.weight + MIRROR_JOINTS @ layer.weight @ MIRROR_OBS) / 2)
        layer.bias.copy_((layer.bias + MIRROR_JOINTS @ layer.bias) / 2)
    return policy


def test_mirror_loss_is_zero_only_for_symmetric_policy():
    alg = make(mirror_loss_coef=0.5, use_data_augmentation=False)
    (batch,) = alg.storage.mini_batch_generator(1, 1)
    loss = alg.compute_losses(batch)[0]["mirror_loss"]
    policy = alg.actor_critic
    difference = policy.act_inference(batch.obs @ MIRROR_OBS.T) - policy.act_inference(batch.obs) @ MIRROR_JOINTS.T
    torch.testing.assert_close(loss, difference.square().mean())
    assert loss > 1e-4

    symmetric = PPO(symmetric_policy(), symmetry_cfg={**CFG, "mirror_loss_coef": 0.5})
    assert symmetric.compute_losses(batch)[0]["mirror_loss"].item() == pytest.approx(0.0, abs=1e-10)


def test_mirror_loss_is_weighted_and_reduces_asymmetry():
    alg = make(mirror_loss_coef=0.5, use_data_augmentation=False)
    alg.schedule, alg.num_learning_epochs = "fixed", 50
    alg.learning_rate = 1e-2
    alg.value_loss_coef = alg.surrogate_loss_coef = 0.0
    (batch,) = alg.storage.mini_batch_generator(1, 1)
    before = alg.compute_losses(batch)[0]["mirror_loss"].item()
    losses, _ = alg.update(0)
    assert set(losses) == {"surrogate_loss", "value_loss", "entropy", "mirror_loss", "total_loss"}
    torch.testing.assert_close(losses["total_loss"], 0.5 * losses["mirror_loss"])
    assert alg.compute_losses(batch)[0]["mirror_loss"].item() < 0.3 * before


def test_no_mirror_loss_without_coefficient():
    alg = make()
    (batch,) = alg.storage.mini_batch_generator(1, 1)
    assert "mirror_loss" not in alg.compute_losses(batch)[0]
    assert PPO(ActorCritic(6, 7, 3, [8], [8])).symmetry is None


def test_none_means_default():
    cfg = {**CFG, "use_data_augmentation": None, "mirror_loss_coef": None, "joint_signs": None, "unpaired_joints": None}
    policy = ActorCritic(6, 7, 3, [8], [8], obs_segments=SEGMENTS, critic_obs_segments=CRITIC_SEGMENTS)
    before = copy.deepcopy(cfg)
    alg = PPO(policy, symmetry_cfg=cfg)
    assert alg.symmetry.use_data_augmentation is True
    assert alg.mirror_loss_coef == 0.0
    assert cfg == before


@pytest.mark.parametrize(
    ("policy", "change", "message"),
    [
        (ActorCriticRecurrent(6, 7, 3, [8], [8], obs_segments=SEGMENTS), {}, "feed-forward.*ActorCriticRecurrent"),
        (ActorCritic(6, 7, 3, [8], [8]), {}, "obs_segments"),
        (symmetric_policy(), {"joint_names": None}, "joint_names"),
        (symmetric_policy(), {"obs": None}, "'obs'"),
        (symmetric_policy(), {"obs": {"velocity": "vector"}}, "joints"),
        (symmetric_policy(), {"joint_signs": {"left_hip_roll": 1}}, "not a mirror"),
        (symmetric_policy(), {"mirror_los_coef": 1.0}, "mirror_los_coef.*did you mean 'mirror_loss_coef'"),
    ],
)
def test_rejects_unsupported_symmetry_settings(policy, change, message):
    with pytest.raises(ValueError, match=message):
        PPO(policy, symmetry_cfg={**CFG, **change})
