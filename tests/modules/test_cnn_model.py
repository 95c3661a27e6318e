"""`CnnModel` has the layers of rsl_rl's `CNN`; its latent width is that of the flattened convolution output."""

import pytest
import torch
import torch.nn.functional as F

from st_rl.export import export_onnx
from st_rl.modules import EncoderActorCritic, build_actor_critic
from st_rl.modules.networks.cnn import CnnModel, SpatialSoftmax
from st_rl.modules.networks.encoders import latent_size
from st_rl.modules.policy.build import EnvSpec

SETTINGS = {"output_channels": [4, 6], "kernel_size": [5, 3], "stride": [2, 2], "padding": "zeros", "activation": "elu"}
SEGMENTS = {"joints": 3, "camera": (1, 16, 12)}
CRITIC_SEGMENTS = {"camera": (1, 16, 12), "joints": 3, "height": 1}


def make_policy(**settings):
    torch.manual_seed(0)
    spec = EnvSpec(195, 196, 2, SEGMENTS, CRITIC_SEGMENTS)
    cnn = {"encoder_class_name": "CnnModel", "encoder_kwargs": SETTINGS, "encoder_component_names": ["images"]}
    cfg = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], **cnn, **settings}
    return build_actor_critic(spec, "EncoderActorCritic", cfg)


def test_layers_are_convolutions_and_activations():
    torch.manual_seed(0)
    model = CnnModel((1, 16, 12), **SETTINGS)
    first, second = (layer for layer in model.layers if isinstance(layer, torch.nn.Conv2d))
    images = torch.rand(5, 1, 16, 12)
    # Padding 2 and 1: each layer halves the image, as the padding of rsl_rl does.
    hidden = F.elu(F.conv2d(images, first.weight, first.bias, stride=2, padding=2))
    expected = F.elu(F.conv2d(hidden, second.weight, second.bias, stride=2, padding=1))
    assert expected.shape == (5, 6, 4, 3)
    assert torch.allclose(model(images), expected.flatten(1), atol=1e-6)
    assert model.output_size == 72


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"padding": "none"}, 6 * 2 * 1),
        ({"global_pool": "max"}, 6),
        ({"global_pool": "avg", "norm": "layer"}, 6),
        ({"max_pool": True, "norm": ["batch", "none"]}, 6 * 1 * 1),
        ({"max_pool": [True, False], "dilation": 2, "padding": "replicate"}, 6 * 2 * 1),
        ({"spatial_softmax": True}, 12),
    ],
)
def test_output_size_equals_output_width(settings, size):
    model = CnnModel((3, 16, 12), **{**SETTINGS, **settings})
    assert model(torch.rand(2, 3, 16, 12)).shape == (2, model.output_size) == (2, size)


def test_spatial_softmax_finds_the_brightest_pixel():
    image = torch.zeros(1, 2, 5, 9)
    image[0, 0, 0, 8] = image[0, 1, 4, 2] = 100.0
    # Row -1 to 1, column -1 to 1, for each channel.
    expected = torch.tensor([[-1.0, 1.0, 1.0, -0.5]])
    assert torch.allclose(SpatialSoftmax(5, 9)(image), expected, atol=1e-5)
    flat = SpatialSoftmax(5, 9, temperature=1e6)(image)
    assert torch.allclose(flat, torch.zeros(1, 4), atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding": "same"}, "padding='same'; use one of: none, zeros"),
        ({"norm": "group"}, "norm='group'; use one of: none, batch, layer"),
        ({"global_pool": "mean"}, "global_pool='mean'; use one of: none, max, avg"),
        ({"flatten": False}, "flatten=False"),
        ({"padding": "none", "kernel_size": 9}, "too small for these layers"),
    ],
)
def test_rejects_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        CnnModel((1, 16, 12), **{**SETTINGS, **settings})


def test_policy_encodes_all_images_at_flattened_width():
    policy = make_policy()
    assert isinstance(policy, EncoderActorCritic)
    assert policy.encoder_component_names == ["camera"]
    assert policy.actor[0].in_features == 3 + 72
    # The critic has no encoders unless they are configured.
    assert policy.critic[0].in_features == 196
    obs = torch.rand(4, 195)
    latent = policy.encoders[0](obs[:, 3:].reshape(-1, 1, 16, 12))
    expected = policy.actor(torch.cat([obs[:, :3], latent], dim=1))
    assert torch.allclose(policy.act_inference(obs), expected, atol=1e-6)


def test_critic_has_own_or_shared_encoder():
    own = make_policy(
        critic_encoder_component_names=["images"], critic_encoder_kwargs={**SETTINGS, "spatial_softmax": True}
    )
    assert own.critic[0].in_features == 4 + 12
    shared = make_policy(critic_encoder_component_names="shared")
    assert shared.critic[0].in_features == 4 + 72
    assert len(shared.critic_encoders) == 0
    critic_obs = torch.rand(4, 196)
    latent = shared.encoders[0](critic_obs[:, :192].reshape(-1, 1, 16, 12))
    expected = shared.critic(torch.cat([latent, critic_obs[:, 192:]], dim=1))
    assert torch.allclose(shared.evaluate(critic_obs), expected, atol=1e-6)


def test_output_size_draws_no_random_numbers():
    state = torch.get_rng_state()
    assert latent_size("camera", "CnnModel", (1, 16, 12), 64, SETTINGS) == 72
    assert latent_size("joints", "MlpModel", 3, 64, {}) == 64
    assert torch.equal(torch.get_rng_state(), state)


def test_rejects_components_without_image():
    spec = EnvSpec(3, 3, 2, {"joints": 3})
    with pytest.raises(ValueError, match=r"encoder_component_names=\['images'\]: no component has the shape"):
        build_actor_critic(spec, "EncoderActorCritic", {"encoder_component_names": ["images"]})


def test_exports_to_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    policy = make_policy(encoder_kwargs={**SETTINGS, "spatial_softmax": True})
    export_onnx(policy.eval(), torch.nn.Identity(), tmp_path / "policy.onnx", {})
    assert (tmp_path / "policy.onnx").stat().st_size > 0
