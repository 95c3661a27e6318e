"""`VisualActorCriticMixin` and its students."""

import pytest
import torch

from st_rl.modules import ActorCritic, VisualActorCriticMixin, VisualDeterministicAC, VisualDeterministicRecurrent
from tests.modules.policy_matrix import NUM_CRITIC_OBS, NUM_OBS, make_policy, observations

SMALL = {"actor_hidden_dims": [10], "critic_hidden_dims": [10]}


@pytest.mark.parametrize("order", ["forward", "backward"])
def test_latent_replaces_image_for_actor_only(order):
    policy = make_policy("VisualDeterministicAC", "sees", order)
    obs, critic_obs = observations(6)
    where, shape = policy.visual_obs_slice
    assert shape == (1, 4, 6)
    assert where == (slice(7, 31) if order == "forward" else slice(4, 28))
    latent = policy.visual_encoder(obs[:, where].reshape(-1, 1, 4, 6))
    expected = torch.cat([obs[:, : where.start], latent, obs[:, where.stop :]], dim=-1)
    torch.testing.assert_close(policy.embed_visual_latent(obs), expected)
    assert torch.equal(policy.act_inference(obs), policy.actor(policy.embed_visual_latent(obs)))
    assert torch.equal(policy.evaluate(critic_obs), policy.critic(critic_obs))
    assert policy.critic[0].in_features == NUM_CRITIC_OBS


def test_leading_axes_are_kept():
    policy = make_policy("VisualDeterministicAC", "sees")
    obs, _ = observations(3, 4)
    assert policy.embed_visual_latent(obs).shape == (3, 4, NUM_OBS - 24 + 5)
    torch.testing.assert_close(policy.embed_visual_latent(obs)[1, 2], policy.embed_visual_latent(obs[1, 2]))


@pytest.mark.parametrize("name", ["VisualDeterministicAC", "VisualDeterministicRecurrent"])
def test_act_on_encoded_observation_skips_encoder(name):
    policy = make_policy(name, "sees")
    obs, _ = observations(6)
    embedded = policy.embed_visual_latent(obs).detach()
    expected = policy.act(obs)
    policy.clear_hidden_states()
    torch.testing.assert_close(policy.act_with_embedded_latent(embedded), expected)
    policy.clear_hidden_states()
    assert torch.equal(policy.act(obs), expected), "the next observation is embedded again"
    with pytest.raises(RuntimeError):
        policy.act_with_embedded_latent(obs)
    policy.clear_hidden_states()
    assert torch.equal(policy.act(obs), expected), "even after an error"


def test_encoded_observation_accepts_masks_and_hidden_states():
    policy = make_policy("VisualDeterministicRecurrent", "sees")
    obs, _ = observations(4, 3)
    masks, states = torch.ones(4, 3, dtype=torch.bool), torch.randn(1, 3, 8)
    expected = policy.act(obs, masks=masks, hidden_states=states)
    embedded = policy.embed_visual_latent(obs)
    torch.testing.assert_close(policy.act_with_embedded_latent(embedded, masks=masks, hidden_states=states), expected)


def test_samples_without_deterministic_mixin():
    policy_class = type("VisualAC", (VisualActorCriticMixin, ActorCritic), {})
    torch.manual_seed(0)
    policy = policy_class(36, 36, 2, obs_segments={"forward_depth": (1, 6, 6)}, **SMALL)
    obs = torch.randn(5, 36)
    assert not torch.equal(policy.act(obs), policy.act(obs))
    assert not torch.equal(policy.act_with_embedded_latent(policy.embed_visual_latent(obs)), policy.action_mean)


def test_defaults():
    policy = VisualDeterministicAC(60, 60, 2, obs_segments={"forward_depth": (1, 6, 10)}, **SMALL)
    layers = [type(layer).__name__ for layer in policy.visual_encoder.conv.conv]
    assert layers == ["Conv2d", "ReLU", "Conv2d", "ReLU"]
    assert [layer.out_channels for layer in policy.visual_encoder.conv.conv[::2]] == [64, 64]
    assert [layer.out_features for layer in policy.visual_encoder.head.model[::2]] == [256, 256]
    assert isinstance(policy.visual_encoder.head.model[-1], torch.nn.Linear), "the latent is linear"
    assert policy.actor[0].in_features == 256
    keys = set(policy.state_dict())
    assert {"visual_encoder.conv.conv.0.weight", "visual_encoder.head.model.2.bias"} <= keys


@pytest.mark.parametrize("settings", [None, {"hidden_sizes": None, "paddings": None, "nonlinearity": None}])
def test_none_means_default(settings):
    segments = {"forward_depth": (1, 6, 10)}
    policy = VisualDeterministicAC(60, 60, 2, obs_segments=segments, visual_kwargs=settings, **SMALL)
    expected = VisualDeterministicAC(60, 60, 2, obs_segments=segments, **SMALL)
    assert repr(policy.visual_encoder) == repr(expected.visual_encoder)


def test_segments_reach_base_class():
    segments, critic_segments = {"forward_depth": (1, 6, 10)}, {"all": 60}
    policy = VisualDeterministicRecurrent(
        60, 60, 2, obs_segments=segments, critic_obs_segments=critic_segments, **SMALL
    )
    assert policy.obs_segments is segments
    assert policy.critic_obs_segments is critic_segments
    assert VisualDeterministicAC(60, 60, 2, obs_segments=segments, **SMALL).critic_obs_segments is segments


@pytest.mark.parametrize("name", ["VisualDeterministicAC", "VisualDeterministicRecurrent"])
def test_mean_is_trained(name):
    policy = make_policy(name, "sees")
    obs, _ = observations(6)
    (policy.act(obs) - 1.0).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.visual_encoder.parameters())
    assert policy.actor[0].weight.grad is not None
    assert policy.std.grad is None


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (None, "visual_component_name=.* needs obs_segments"),
        (
            {"depth": (1, 6, 10)},
            r"visual_component_name names \['forward_depth'\], which the observation does not have",
        ),
        (
            {"forward_depth": 60},
            r"'forward_depth' has shape 60, a convolution needs an image: \(channels, height, widt",
        ),
        ({"forward_depth": (6, 10)}, r"'forward_depth' has shape \(6, 10\)"),
    ],
)
def test_rejects_non_image_components(segments, message):
    with pytest.raises(ValueError, match=message):
        VisualDeterministicAC(60, 60, 2, obs_segments=segments, **SMALL)


@pytest.mark.parametrize("key", ["output_size", "kernels"])
def test_rejects_unknown_encoder_settings(key):
    with pytest.raises(ValueError, match=f"unknown key in visual_kwargs '{key}'"):
        VisualDeterministicAC(60, 60, 2, obs_segments={"forward_depth": (1, 6, 10)}, visual_kwargs={key: 3}, **SMALL)
