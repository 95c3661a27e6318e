"""`EncoderActorCriticMixin`: latents replace their components."""

import pytest
import torch

from st_rl.modules import (
    ActorCritic,
    ActorCriticRecurrent,
    EncoderActorCritic,
    EncoderActorCriticRecurrent,
    MlpModel,
)
from tests.modules.policy_matrix import (
    CONVOLUTION,
    ENCODERS,
    MLP,
    NUM_ACTIONS,
    NUM_CRITIC_OBS,
    NUM_OBS,
    critic_segments,
    make_policy,
    observations,
    segments,
)

SMALL = {"actor_hidden_dims": [10], "critic_hidden_dims": [10]}


def parts(obs: torch.Tensor, mapping) -> dict[str, torch.Tensor]:
    """Components of an observation, by explicit slices."""
    sizes = [shape if isinstance(shape, int) else int(torch.tensor(shape).prod()) for shape in mapping.values()]
    return dict(zip(mapping, obs.split(sizes, dim=-1)))


@pytest.mark.parametrize("leading", [(6,), (3, 4), ()])
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_latents_replace_their_components(order, leading):
    policy = make_policy("EncoderActorCritic", "cnn and mlp, shared", order)
    obs, critic_obs = observations(*leading)
    seen = parts(obs, policy.obs_segments)
    seen["pose"] = policy.encoders[0](seen["pose"])
    images = seen["depth"].reshape(-1, 1, 4, 6)
    seen["depth"] = policy.encoders[1](images).reshape(*leading, 6)
    torch.testing.assert_close(policy.act_inference(obs), policy.actor(torch.cat(list(seen.values()), dim=-1)))
    critic_parts = parts(critic_obs, policy.critic_obs_segments)
    critic_parts["pose"] = policy.encoders[0](critic_parts["pose"])
    critic_parts["depth"] = policy.encoders[1](critic_parts["depth"].reshape(-1, 1, 4, 6)).reshape(*leading, 6)
    torch.testing.assert_close(
        policy.evaluate(critic_obs), policy.critic(torch.cat(list(critic_parts.values()), dim=-1))
    )
    for component, latent in (("pose", seen["pose"]), ("depth", seen["depth"])):
        torch.testing.assert_close(policy.get_encoder_latent(obs, component), latent)
        torch.testing.assert_close(
            policy.get_encoder_latent(critic_obs, component, critic=True), critic_parts[component]
        )


@pytest.mark.parametrize("names", [["mass", "pose"], ["pose", "mass"]])
def test_critic_with_own_encoders(names):
    policy = make_policy("EncoderActorCritic", "cnn, critic its own", critic_encoder_component_names=names)
    _, critic_obs = observations(6)
    critic_parts = parts(critic_obs, critic_segments())
    critic_parts |= {name: encoder(critic_parts[name]) for name, encoder in zip(names, policy.critic_encoders)}
    torch.testing.assert_close(
        policy.evaluate(critic_obs), policy.critic(torch.cat(list(critic_parts.values()), dim=-1))
    )
    torch.testing.assert_close(policy.get_encoder_latent(critic_obs, "pose", critic=True), critic_parts["pose"])
    with pytest.raises(ValueError, match=r"the actor has no encoder for 'pose'; it has encoders for \['depth'\]"):
        policy.get_encoder_latent(critic_obs, "pose")
    with pytest.raises(ValueError, match="the critic has no encoder for 'depth'"):
        policy.get_encoder_latent(critic_obs, "depth", critic=True)


def test_critic_encoders_default_to_actor_settings():
    own = {"critic_encoder_class_name": None, "critic_encoder_kwargs": None, "critic_encoder_component_names": "depth"}
    policy = make_policy("EncoderActorCritic", "cnn, critic its own", **own)
    assert repr(policy.critic_encoders) == repr(policy.encoders)
    assert not torch.equal(policy.critic_encoders[0].head.model[0].weight, policy.encoders[0].head.model[0].weight)


@pytest.mark.parametrize("names", [["pose", "depth"], ["depth", "pose"], ["depth"], ["pose"]])
def test_default_critic_encoders_match_actor_by_component(names):
    policy = make_policy("EncoderActorCritic", "cnn and mlp, shared", critic_encoder_component_names=names)
    actors = policy.encoders_by_component()
    for name, encoder in policy.encoders_by_component(critic=True).items():
        assert encoder is not actors[name]
        shapes = [[value.shape for value in module.state_dict().values()] for module in (encoder, actors[name])]
        assert shapes[0] == shapes[1]


def test_critic_without_encoders_gets_raw_observation():
    policy = make_policy("EncoderActorCritic", "mlp")
    _, critic_obs = observations(6)
    assert policy.critic[0].in_features == NUM_CRITIC_OBS
    assert torch.equal(policy.evaluate(critic_obs), policy.critic(critic_obs))


def test_encoder_slices_and_latent_order():
    policy = make_policy("EncoderActorCritic", "mlp", "backward")
    # backward: contact 4, depth 24, velocity 2, pose 5; the names come as contact, pose
    assert policy.encoder_obs_slices == [(slice(0, 4), [2, 2]), (slice(30, 35), 5)]
    assert policy.latents_order == [0, 1]
    assert make_policy("EncoderActorCritic", "mlp").latents_order == [1, 0]
    assert all(type(where.start) is int for where, _ in policy.encoder_obs_slices)
    own = make_policy("EncoderActorCritic", "cnn, critic its own")
    assert own.critic_encoder_obs_slices == [(slice(0, 2), 2), (slice(4, 9), 5)]
    assert own.critic_latents_order == [0, 1]


def test_shared_component_missing_in_critic_uses_actor_slice():
    settings = {**SMALL, "encoder_component_names": ["b"], "encoder_kwargs": MLP, "encoder_output_size": 3}
    policy = EncoderActorCritic(
        5,
        6,
        2,
        obs_segments={"a": 3, "b": 2},
        critic_obs_segments={"all": 6},
        critic_encoder_component_names="shared",
        **settings,
    )
    critic_obs = torch.randn(4, 6)
    expected = torch.cat([critic_obs[:, :3], policy.encoders[0](critic_obs[:, 3:5]), critic_obs[:, 5:]], dim=-1)
    assert torch.equal(policy.evaluate(critic_obs), policy.critic(expected))


def test_shared_image_may_be_flat_in_critic_segments():
    settings = {
        "obs_segments": {"a": 2, "depth": (1, 4, 6)}, "critic_obs_segments": {"depth": 24, "x": 1},
        "encoder_component_names": ["depth"], "encoder_class_name": "Conv2dHeadModel", "encoder_kwargs": CONVOLUTION,
    }  # fmt: skip
    policy = EncoderActorCritic(26, 25, 2, critic_encoder_component_names="shared", **settings)
    critic_obs = torch.randn(3, 25)
    latent = policy.encoders[0](critic_obs[:, :24].reshape(3, 1, 4, 6))
    assert torch.equal(policy.get_encoder_latent(critic_obs, "depth", critic=True), latent)
    assert torch.equal(policy.evaluate(critic_obs), policy.critic(torch.cat([latent, critic_obs[:, 24:]], dim=-1)))


def test_default_encoder_layers():
    policy = EncoderActorCritic(NUM_OBS, NUM_OBS, 2, obs_segments=segments(), encoder_component_names=["pose"])
    sizes = [layer.out_features for layer in policy.encoders[0].model if isinstance(layer, torch.nn.Linear)]
    assert sizes == [256, 128, 64]
    assert policy.encoders[0].output_size == policy.encoder_output_size == 64
    assert isinstance(policy.encoders[0].model[-1], torch.nn.ReLU), "the latent comes after the nonlinearity"
    image = EncoderActorCritic(
        24, 24, 2, obs_segments={"d": (1, 4, 6)}, encoder_component_names="d", encoder_class_name="Conv2dHeadModel",
        encoder_kwargs={"channels": [2], "kernel_sizes": [3], "strides": [1]},
    )  # fmt: skip
    assert [layer.out_features for layer in image.encoders[0].head.model if hasattr(layer, "out_features")] == [
        256,
        128,
        64,
    ]


@pytest.mark.parametrize("settings", [None, [None], {"hidden_sizes": None, "nonlinearity": None}])
def test_none_means_default(settings):
    arguments = {"obs_segments": segments(), "encoder_component_names": ["pose"]}
    policy = EncoderActorCritic(NUM_OBS, NUM_OBS, 2, encoder_kwargs=settings, **arguments)
    assert repr(policy.encoders) == repr(EncoderActorCritic(NUM_OBS, NUM_OBS, 2, **arguments).encoders)


@pytest.mark.parametrize("names", [None, []])
@pytest.mark.parametrize(
    ("encoder_class", "base"),
    [(EncoderActorCritic, ActorCritic), (EncoderActorCriticRecurrent, ActorCriticRecurrent)],
)
def test_equals_base_class_without_encoders(encoder_class, base, names):
    torch.manual_seed(0)
    policy = encoder_class(6, 6, 2, encoder_component_names=names, **SMALL)
    torch.manual_seed(0)
    plain = base(6, 6, 2, **SMALL)
    assert list(policy.state_dict()) == list(plain.state_dict())
    obs = torch.randn(4, 6)
    assert torch.equal(policy.act_inference(obs), plain.act_inference(obs))
    assert torch.equal(policy.evaluate(obs), plain.evaluate(obs))


def test_state_keys():
    keys = set(make_policy("EncoderActorCritic", "cnn, critic its own").state_dict())
    encoder = {"encoders.0.conv.conv.0.weight", "encoders.0.head.model.0.weight", "encoders.0.head.model.2.bias"}
    critic = {"critic_encoders.0.model.0.weight", "critic_encoders.1.model.2.bias"}
    assert encoder | critic <= keys
    shared = set(make_policy("EncoderActorCriticRecurrent", "cnn and mlp, shared").state_dict())
    assert {"encoders.0.model.0.weight", "encoders.1.conv.conv.0.bias", "memory_a.rnn.weight_ih_l0"} <= shared
    assert not [key for key in shared if key.startswith("critic_encoders")]


def test_shared_encoders_receive_both_gradients():
    policy = make_policy("EncoderActorCritic", "cnn and mlp, shared")
    obs, critic_obs = observations(6)
    for output in (policy.act_inference(obs).sum(), policy.evaluate(critic_obs).sum()):
        policy.zero_grad()
        output.backward()
        for encoder in policy.encoders:
            assert all(parameter.grad.abs().sum() > 0 for parameter in encoder.parameters())


def test_actor_and_critic_train_own_encoders():
    policy = make_policy("EncoderActorCritic", "cnn, critic its own")
    obs, critic_obs = observations(6)
    policy.evaluate(critic_obs).sum().backward()
    assert all(parameter.grad is None for parameter in policy.encoders.parameters())
    assert all(parameter.grad is not None for parameter in policy.critic_encoders.parameters())
    policy.zero_grad()
    policy.act_inference(obs).sum().backward()
    assert all(parameter.grad is None for parameter in policy.critic_encoders.parameters())
    assert all(parameter.grad is not None for parameter in policy.encoders.parameters())


def test_build_encoders_standalone():
    policy = make_policy("EncoderActorCritic", "mlp")
    (encoder,) = policy.build_encoders(["x"], "MlpModel", [(slice(0, 4), (2, 2))], {"hidden_sizes": []}, 3)
    assert isinstance(encoder, MlpModel)
    assert encoder(torch.zeros(1, 4)).shape == (1, 3)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"obs_segments": None}, ValueError, r"encoder_component_names=\['pose'\] needs obs_segments"),
        ({"encoder_component_names": ["pos"]}, ValueError, r"names \['pos'\], which the observation does not have; it"),
        ({"encoder_component_names": ["pose", "pose"]}, ValueError, "named twice"),
        ({"encoder_class_name": ["MlpModel"] * 2}, ValueError, "encoder_class_name has 2 entries for the 1 components"),
        ({"encoder_class_name": "Conv2dHeadModel"}, ValueError, r"'pose' has shape 5, a convolution needs an image"),
        ({"encoder_class_name": "Transformer"}, NotImplementedError, "unknown encoder class 'Transformer' for 'pose'"),
        ({"encoder_kwargs": {"hidden": [3]}}, ValueError, "key in encoder_kwargs of 'pose' 'hidden'; did you mean"),
        ({"encoder_output_size": 0}, ValueError, "encoder_output_size is 0: give a latent at least one number"),
        ({"obs_segments": {"x": NUM_OBS, "pose": 5}}, ValueError, f"is {NUM_OBS} wide, but .* ends at {NUM_OBS + 5}"),
        ({"critic_encoder_component_names": ["x"]}, ValueError, r"critic_encoder_component_names names \['x'\]"),
        (
            {"critic_encoder_component_names": "shared", "critic_obs_segments": {"pose": 4, "x": NUM_CRITIC_OBS - 4}},
            ValueError,
            "'pose' has shape 5 for the actor and 4 for the critic",
        ),
    ],
)  # fmt: skip
def test_rejects_invalid_settings(settings, error, message):
    arguments = {"obs_segments": segments(), "encoder_component_names": ["pose"], **SMALL, **settings}
    with pytest.raises(error, match=message):
        EncoderActorCritic(NUM_OBS, NUM_CRITIC_OBS, NUM_ACTIONS, **arguments)


def test_warns_if_encoder_kwargs_repeat_output_size(caplog):
    settings = {"encoder_component_names": ["pose"], "encoder_kwargs": {"output_size": 3}, "encoder_output_size": 7}
    policy = EncoderActorCritic(NUM_OBS, NUM_CRITIC_OBS, NUM_ACTIONS, obs_segments=segments(), **settings, **SMALL)
    assert policy.encoders[0].output_size == 7
    assert "encoder_kwargs.output_size of 'pose' has no effect: encoder_output_size" in caplog.text


def test_rejects_image_too_small_for_layers():
    with pytest.raises(ValueError, match="an image of 4 x 6 is too small for these layers"):
        make_policy(
            "EncoderActorCritic", "none", encoder_component_names=["depth"], encoder_class_name="Conv2dHeadModel"
        )


def test_configuration_is_not_modified():
    settings = {"encoder_kwargs": {"hidden_sizes": [4]}, "encoder_component_names": ["pose"]}
    EncoderActorCritic(NUM_OBS, NUM_OBS, 2, obs_segments=segments(), **settings, **SMALL)
    assert settings == {"encoder_kwargs": {"hidden_sizes": [4]}, "encoder_component_names": ["pose"]}
    assert ENCODERS["cnn, critic its own"]["encoder_kwargs"] is CONVOLUTION


def test_observation_history_can_be_encoded():
    """The last four joint positions as one segment `(4, 3)`, encoded."""
    policy = EncoderActorCritic(
        17,
        17,
        2,
        obs_segments={"now": 5, "history": (4, 3)},
        encoder_component_names=["history"],
        encoder_kwargs=MLP,
        encoder_output_size=6,
        **SMALL,
    )
    obs = torch.randn(8, 17)
    expected = policy.actor(torch.cat([obs[:, :5], policy.encoders[0](obs[:, 5:])], dim=-1))
    assert torch.equal(policy.act_inference(obs), expected)


def test_rejects_weights_of_other_encoders_with_hint():
    policy = make_policy("EncoderActorCritic", "mlp")
    other = make_policy("EncoderActorCritic", "mlp", encoder_output_size=9)
    with pytest.raises(RuntimeError, match="latents of 6: set encoder_kwargs") as refusal:
        policy.load_state_dict(other.state_dict())
    assert "size mismatch for encoders.0" in str(refusal.value)
    with pytest.raises(RuntimeError, match="size mismatch for std") as refusal:
        policy.load_state_dict({**policy.state_dict(), "std": torch.zeros(5)})
    assert "encoder_kwargs" not in str(refusal.value)
