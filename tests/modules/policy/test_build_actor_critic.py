"""`build_actor_critic`: settings missing in the configuration come from the environment."""

import copy
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

import st_rl.modules
from st_rl.modules import ActorCritic, ActorCriticRecurrent, build_actor_critic

SMALL = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}

# A policy dictionary as client configuration classes write it: every field, most of them null.
CLIENT_POLICY = {
    "class_name": "ActorCritic",
    "init_noise_std": 0.8,
    "actor_hidden_dims": [32, 16],
    "critic_hidden_dims": (32, 16),
    "activation": "elu",
    "rnn_type": "lstm",
    "rnn_hidden_size": 16,
    "rnn_num_layers": 1,
    "teacher_ac_path": None,
    "num_actor_obs": None,
    "num_critic_obs": None,
    "num_actions": None,
    "encoder_component_names": None,
    "critic_encoder_component_names": None,
    "obs_segments": None,
    "critic_obs_segments": None,
    "amp_discriminator": {"input_dim": 42, "hidden_dims": [8], "amp_obs_dim": {}},
    "mu_activation": None,
}


def make_env(**kwargs):
    return SimpleNamespace(**{"num_obs": 6, "num_privileged_obs": 9, "num_actions": 3, **kwargs})


@pytest.mark.parametrize(("privileged", "expected"), [(9, 9), (None, 6), (0, 6)])
def test_sizes_come_from_the_environment(privileged, expected):
    policy = build_actor_critic(make_env(num_privileged_obs=privileged), "ActorCritic", SMALL)
    assert (policy.num_actor_obs, policy.num_critic_obs, policy.num_actions) == (6, expected, 3)


def test_environment_without_privileged_observations():
    env = SimpleNamespace(num_obs=6, num_actions=3)
    assert build_actor_critic(env, "ActorCritic", SMALL).num_critic_obs == 6


def test_configured_sizes_take_precedence():
    cfg = {**SMALL, "num_actor_obs": 2, "num_critic_obs": 4, "num_actions": 1}
    policy = build_actor_critic(make_env(), "ActorCritic", cfg)
    assert (policy.num_actor_obs, policy.num_critic_obs, policy.num_actions) == (2, 4, 1)


@pytest.mark.parametrize("name", ["critic_obs_segments", "privileged_obs_segments"])
def test_segments_come_from_the_environment_under_either_name(name):
    segments, critic_segments = OrderedDict(a=2, b=4), OrderedDict(c=9)
    env = make_env(obs_segments=segments, **{name: critic_segments})
    policy = build_actor_critic(env, "ActorCritic", SMALL)
    assert policy.obs_segments == segments
    assert policy.critic_obs_segments == critic_segments
    assert policy.privileged_obs_segments is policy.critic_obs_segments


@pytest.mark.parametrize("name", ["critic_obs_segments", "privileged_obs_segments"])
def test_configured_segments_take_precedence_under_either_name(name):
    env = make_env(obs_segments={"a": 6}, critic_obs_segments={"b": 9})
    cfg = {**SMALL, "obs_segments": {"mine": 6}, name: {"own": 9}}
    policy = build_actor_critic(env, "ActorCritic", cfg)
    assert policy.obs_segments == {"mine": 6}
    assert policy.critic_obs_segments == {"own": 9}


def test_segments_are_optional():
    policy = build_actor_critic(make_env(), "ActorCritic", SMALL)
    assert policy.obs_segments is None
    assert policy.critic_obs_segments is None


@pytest.mark.parametrize("class_name", ["ActorCritic", "ActorCriticRecurrent"])
def test_client_dictionary_builds_and_is_not_modified(class_name, caplog):
    cfg = copy.deepcopy(CLIENT_POLICY)
    policy = build_actor_critic(make_env(), class_name, cfg)
    assert cfg == CLIENT_POLICY
    assert type(policy).__name__ == class_name
    assert policy.std.tolist() == pytest.approx([0.8] * 3)
    assert policy.rnn_type == "lstm"
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "amp_discriminator" in warnings[0]
    assert ("rnn_hidden_size" in warnings[0]) == (class_name == "ActorCritic")
    assert "teacher_ac_path" not in caplog.text


def test_policy_is_on_cpu_in_training_mode():
    policy = build_actor_critic(make_env(), "ActorCriticRecurrent", {**SMALL, "rnn_type": "gru"})
    assert isinstance(policy, ActorCriticRecurrent)
    assert policy.training
    assert {p.device.type for p in policy.parameters()} == {"cpu"}


def test_unknown_class_lists_known_ones():
    with pytest.raises(ValueError, match=r"'ActorCritc'.*did you mean 'ActorCritic'.*ActorCriticRecurrent"):
        build_actor_critic(make_env(), "ActorCritc", SMALL)
    for other in ("Memory", "MlpModel", "build_actor_critic"):
        with pytest.raises(ValueError, match=other):
            build_actor_critic(make_env(), other, SMALL)


def test_misspelled_key_warns_or_raises_with_nearest_name(caplog):
    cfg = {**SMALL, "init_noise_sdt": 0.5}
    build_actor_critic(make_env(), "ActorCritic", cfg)
    assert "'init_noise_sdt'" in caplog.text
    assert "'init_noise_std'" in caplog.text
    with pytest.raises(ValueError, match=r"init_noise_sdt.*init_noise_std"):
        build_actor_critic(make_env(), "ActorCritic", {**cfg, "strict": True})
    build_actor_critic(make_env(), "ActorCritic", {**SMALL, "rnn_hidden_size": 8, "strict": True})


def test_registered_policies_are_package_attributes():
    for name, cls in st_rl.modules.policy_classes().items():
        assert getattr(st_rl.modules, name) is cls
        assert issubclass(cls, ActorCritic)


def test_segments_of_environment_are_not_modified():
    segments = OrderedDict(a=2, b=(4,))
    env = make_env(obs_segments=segments)
    policy = build_actor_critic(env, "ActorCritic", SMALL)
    policy.act(torch.zeros(2, 6))
    assert segments == OrderedDict(a=2, b=(4,))


MIXED_ENV = make_env(obs_segments={"pose": 4, "velocity": 2}, critic_obs_segments={"pose": 4, "velocity": 2, "mass": 3})
MIXED = {**SMALL, "rnn_hidden_size": 4, "encoder_component_names": ["pose"], "encoder_kwargs": {"hidden_sizes": [4]}}


class TestMixins:
    def build(self, base: str, *mixins: str, **settings):
        return build_actor_critic(MIXED_ENV, base, {**MIXED, "mixins": list(mixins), **settings})

    def test_any_order_gives_declared_class(self):
        settings = {"estimator_target_components": ["velocity"]}
        policy = self.build("ActorCriticRecurrent", "EncoderActorCriticMixin", "EstimatorMixin", **settings)
        declared = st_rl.modules.EncoderStateAcRecurrent
        assert type(policy).__mro__[1:] == declared.__mro__[1:]
        assert set(policy.state_dict()) == set(
            build_actor_critic(MIXED_ENV, "EncoderStateAcRecurrent", {**MIXED, **settings}).state_dict()
        )

    def test_combine_without_declared_class(self):
        policy = self.build(
            "ActorCriticRecurrent",
            "DeterministicPolicyMixin",
            "PrivilegeEstimatorMixin",
            "EstimatorMixin",
            "EncoderActorCriticMixin",
            estimator_target_components=["velocity"],
            adaptor_target_components=["mass"],
        )
        obs = torch.randn(5, 6)
        torch.testing.assert_close(policy.act(obs), policy.action_mean)
        assert policy.get_estimated_state().shape == (5, 2)
        assert policy.get_adapted_state().shape == (5, 3)
        assert type(policy) is type(copy.deepcopy(policy))

    @pytest.mark.parametrize(
        ("base", "mixins", "message"),
        [
            ("ActorCritic", ["EncodrActorCriticMixin"], "unknown policy mixin 'EncodrActorCriticMixin'; did you mean"),
            ("ActorCritic", ["EstimatorMixin", "EstimatorMixin"], "name each once"),
            ("ActorCritic", ["VisualActorCriticMixin", "EncoderActorCriticMixin"], "either the visual or the encoder"),
            ("StateAc", ["EncoderActorCriticMixin"], "StateAc already has EstimatorMixin"),
            ("ActorCriticFieldMutex", ["EstimatorMixin"], "holds trained policies and takes no mixins"),
        ],
    )
    def test_rejects_incompatible_mixins(self, base, mixins, message):
        with pytest.raises(ValueError, match=message):
            self.build(base, *mixins)
