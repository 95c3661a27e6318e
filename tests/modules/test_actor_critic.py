"""`ActorCritic`: the feed-forward actor-critic, base class of every policy."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from st_rl.modules import Actor, ActorCritic, ActorCriticRecurrent, Critic, DeterministicPolicyMixin, get_activation
from st_rl.modules.actor_critic import make_activation
from st_rl.modules.networks.gaussian import gaussian_kl

OBS, OC, A = 5, 7, 3


def make(**kwargs):
    kwargs = {"actor_hidden_dims": [8, 6], "critic_hidden_dims": [9], **kwargs}
    policy = ActorCritic(OBS, OC, A, **kwargs)
    with torch.no_grad():
        policy.std.copy_(torch.tensor([0.3, 1.0, 2.5]))
    return policy


def manual_mlp(sequential, x):
    """The network in float64 NumPy: Linear layers with ELU between them."""
    linears = [module for module in sequential if isinstance(module, nn.Linear)]
    for number, linear in enumerate(linears):
        x = x @ linear.weight.double().T + linear.bias.double()
        if number < len(linears) - 1:
            x = torch.where(x > 0, x, torch.exp(x) - 1)
    return x


# --- structure -------------------------------------------------------------------------------------------------------


def test_module_structure_read_by_exporters():
    policy = make()
    assert isinstance(policy.actor, nn.Sequential)
    assert isinstance(policy.critic, nn.Sequential)
    assert policy.actor[0].in_features == OBS
    assert policy.critic[0].in_features == OC
    assert [type(m) for m in policy.actor] == [nn.Linear, nn.ELU, nn.Linear, nn.ELU, nn.Linear]
    assert policy.actor[-1].out_features == A
    assert policy.critic[-1].out_features == 1
    assert set(policy.state_dict()) == {
        "std",
        *(f"actor.{i}.{kind}" for i in (0, 2, 4) for kind in ("weight", "bias")),
        *(f"critic.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")),
    }
    assert ActorCritic.is_recurrent is False
    assert policy.rnn_type is None
    assert (policy.num_actor_obs, policy.num_critic_obs, policy.num_actions) == (OBS, OC, A)


def test_defaults():
    policy = ActorCritic(OBS, OC, A)
    sizes = [m.out_features for m in policy.actor if isinstance(m, nn.Linear)]
    assert sizes == [256, 256, 256, A]
    assert [m.out_features for m in policy.critic if isinstance(m, nn.Linear)] == [256, 256, 256, 1]
    assert policy.std.tolist() == [1.0] * A


def test_no_hidden_layers_give_one_linear_and_mu_activation_is_last():
    policy = ActorCritic(OBS, OC, A, [], [], mu_activation="tanh", init_noise_std=0.5)
    assert [type(m) for m in policy.actor] == [nn.Linear, nn.Tanh]
    assert [type(m) for m in policy.critic] == [nn.Linear]
    assert policy.std.tolist() == [0.5] * A
    assert policy.act_inference(100 * torch.randn(4, OBS)).abs().max() <= 1


@pytest.mark.parametrize(
    "policy",
    [
        ActorCritic(obs_dim=OBS, act_dim=A, actor_hidden_dims=[4], critic_hidden_dims=[4]),
        ActorCritic(OBS, A, actor_hidden_dims=[4], critic_hidden_dims=[4]),
        ActorCritic(OBS, OBS, A, actor_hidden_dims=[4], critic_hidden_dims=[4]),
        ActorCritic(OBS, OBS, act_dim=A, actor_hidden_dims=[4], critic_hidden_dims=[4]),
    ],
)
def test_accepts_all_forms_of_hidden_sizes(policy):
    assert (policy.num_actor_obs, policy.num_critic_obs, policy.num_actions) == (OBS, OBS, A)
    assert policy.critic[0].in_features == OBS


def test_error_names_missing_sizes():
    with pytest.raises(TypeError, match=r"num_actor_obs=5, num_critic_obs=None"):
        ActorCritic(OBS, num_actions=A)


@pytest.mark.parametrize("name", ["elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid"])
def test_short_activation_names(name):
    expected = {"crelu": nn.ReLU, "lrelu": nn.LeakyReLU}.get(name) or getattr(
        nn, {"elu": "ELU", "selu": "SELU", "relu": "ReLU", "tanh": "Tanh", "sigmoid": "Sigmoid"}[name]
    )
    assert type(get_activation(name)) is expected
    assert type(make(activation=name).actor[1]) is expected


def test_unknown_activation_is_none_and_rejected_by_policy(caplog):
    assert get_activation("eluu") is None
    assert "eluu" in caplog.text
    with pytest.raises(ValueError, match=r"eluu.*elu, selu"):
        make(activation="eluu")
    with pytest.raises(ValueError, match="tanhh"):
        make(mu_activation="tanhh")
    with pytest.raises(ValueError, match=r"Linear.*needs arguments"):
        make_activation("Linear")
    assert isinstance(make_activation("Softplus"), nn.Softplus)


def test_accepts_both_names_of_segments():
    segments, critic = {"a": 2, "b": (3,)}, {"c": 7}
    assert make().obs_segments is None
    alone = make(obs_segments=segments)
    assert alone.critic_obs_segments is segments
    assert alone.privileged_obs_segments is segments
    for key in ("critic_obs_segments", "privileged_obs_segments"):
        policy = make(obs_segments=segments, **{key: critic})
        assert policy.critic_obs_segments is critic
        assert policy.privileged_obs_segments is critic
        policy.privileged_obs_segments = other = dict(critic)
        assert policy.critic_obs_segments is policy.privileged_obs_segments is other
        assert policy.obs_segments is segments


def test_feed_forward_policy_has_rnn_type():
    assert make(rnn_type="LSTM").rnn_type == "lstm"


# --- distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (6, 2), ()])
def test_log_prob_entropy_mean_and_std_equal_torch_normal(shape):
    policy = make()
    obs, actions = torch.randn(*shape, OBS), torch.randn(*shape, A)
    sample = policy.act(obs)
    assert sample.shape == (*shape, A)
    reference = Normal(manual_mlp(policy.actor, obs.double()), policy.std.double())
    torch.testing.assert_close(policy.action_mean.double(), reference.mean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(policy.action_std.double(), reference.stddev.expand(*shape, A))
    expected = reference.log_prob(actions.double()).sum(-1)
    assert policy.get_actions_log_prob(actions).shape == shape
    torch.testing.assert_close(policy.get_actions_log_prob(actions).double(), expected, atol=1e-5, rtol=1e-5)
    expected = reference.entropy().sum(-1).expand(shape)
    torch.testing.assert_close(policy.entropy.double(), expected, atol=1e-6, rtol=1e-5)


def test_act_samples_as_torch_normal_with_same_seed():
    policy, obs = make(), torch.randn(64, OBS)
    torch.manual_seed(3)
    actions = policy.act(obs)
    torch.manual_seed(3)
    expected = Normal(policy.action_mean, policy.action_std).sample()
    torch.testing.assert_close(actions, expected)
    assert not actions.requires_grad


def test_no_sampling_updates_distribution_and_draws_no_random_numbers():
    policy, obs = make(), torch.randn(5, OBS)
    expected = policy.act_inference(obs)
    before = torch.get_rng_state()
    with policy.no_sampling():
        actions = policy.act(obs)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(actions, expected)
    assert torch.equal(policy.action_mean, expected)
    assert policy.action_mean.requires_grad
    assert not torch.equal(policy.act(obs), expected), "afterwards it draws again"


def test_kl_equals_torch_kl_divergence():
    shape = (6, 2, A)
    mean, old_mean = torch.randn(2, *shape).double()
    std, old_std = torch.rand(2, *shape).double() + 0.2
    expected = kl_divergence(Normal(old_mean, old_std), Normal(mean, std)).sum(-1)
    # The 1e-5 inside the logarithm is part of the contract and worth at most 1e-5 * old_std / std per action.
    torch.testing.assert_close(gaussian_kl(mean, std, old_mean, old_std), expected, atol=2e-4, rtol=0)
    same = gaussian_kl(mean, std, mean, std)
    torch.testing.assert_close(same, torch.full_like(same, A * 1e-5), rtol=1e-4, atol=0)


def test_argument_validation_is_off_for_own_distribution_only():
    policy = make()
    bad = torch.full((2, OBS), float("nan"))
    policy.act(bad)  # NaN is detected by the non-finite guards, without a host sync inside the distribution
    with pytest.raises(ValueError, match="loc"):
        Normal(torch.tensor(float("nan")), 1.0)


def test_nan_observation_affects_only_its_row():
    policy = make()
    obs = torch.randn(4, OBS)
    obs[1, 0] = float("nan")
    policy.act(obs)
    assert torch.isfinite(policy.action_mean).all(dim=-1).tolist() == [True, False, True, True]
    assert torch.isfinite(policy.action_std).all()


def test_act_inference_returns_mean_and_keeps_distribution():
    policy, obs = make(), torch.randn(4, OBS)
    policy.act(obs)
    before = policy.distribution
    torch.testing.assert_close(policy.act_inference(obs), policy.action_mean)
    policy.act_inference(obs + 1)
    assert policy.distribution is before


def test_error_before_first_act_has_hint():
    with pytest.raises(RuntimeError, match="call act"):
        make().action_mean


def test_evaluate_shapes_and_values():
    policy, obs = make(), torch.randn(4, 2, OC)
    values = policy.evaluate(obs, masks=None, hidden_states=None)
    assert values.shape == (4, 2, 1)
    torch.testing.assert_close(values.double(), manual_mlp(policy.critic, obs.double()), atol=1e-6, rtol=1e-5)


def test_act_and_evaluate_ignore_extra_keywords():
    policy = make()
    policy.act(torch.randn(2, OBS), masks=None, hidden_states=None, something="else")
    policy.evaluate(torch.randn(2, OC), something="else")


def test_forward_and_evaluate_actions():
    policy = ActorCritic(OBS, OBS, A, [8], [8])
    obs, actions = torch.randn(4, OBS), torch.randn(4, A)
    distribution, value = policy(obs)
    torch.testing.assert_close(distribution.mean, policy.act_inference(obs))
    torch.testing.assert_close(value, policy.evaluate(obs))
    log_probs, entropy, values = policy.evaluate_actions(obs, actions)
    torch.testing.assert_close(log_probs, distribution.log_prob(actions).sum(-1))
    torch.testing.assert_close(entropy, distribution.entropy().sum(-1))
    torch.testing.assert_close(values, value)
    assert log_probs.requires_grad
    assert values.requires_grad
    wide, critic_obs = make(), torch.randn(4, OC)
    torch.testing.assert_close(wide.evaluate_actions(obs, actions, critic_obs)[2], wide.evaluate(critic_obs))


# --- weights, copies, subclasses, export -----------------------------------------------------------------------------


def test_clip_std():
    policy = make()
    parameter = policy.std
    policy.clip_std()
    assert policy.std.tolist() == pytest.approx([0.3, 1.0, 2.5])
    policy.clip_std(min=0.5)
    assert policy.std.tolist() == pytest.approx([0.5, 1.0, 2.5])
    policy.clip_std(max=2.0)
    assert policy.std.tolist() == pytest.approx([0.5, 1.0, 2.0])
    policy.clip_std(min=torch.tensor([0.6, 1.1, 0.1]))
    assert policy.std.tolist() == pytest.approx([0.6, 1.1, 2.0])
    assert policy.std is parameter
    assert policy.std.requires_grad


def test_hidden_state_methods_are_no_ops():
    policy = make()
    policy.reset()
    policy.reset(torch.tensor([1, 0]))
    assert policy.get_hidden_states() is None
    assert policy.hidden_state_dict() == {}
    policy.load_hidden_state_dict({})
    policy.clear_hidden_states()


def test_init_weights_is_orthogonal_with_given_gains():
    policy = make()
    ActorCritic.init_weights(policy.actor, [2.0, 1.0, 0.01])
    for index, scale in ((0, 2.0), (2, 1.0), (4, 0.01)):
        weight = policy.actor[index].weight.detach().double()
        gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, scale**2 * torch.eye(len(gram)).double(), atol=1e-5, rtol=1e-4)


def test_policy_after_act_can_be_copied_and_pickled():
    policy, obs = make(), torch.randn(4, OBS)
    policy.act(obs)
    policy.get_actions_log_prob(torch.randn(4, A)).sum().backward()
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert twin.std is not policy.std
        torch.testing.assert_close(twin.act_inference(obs), policy.act_inference(obs))
    policy.action_mean  # the original keeps its distribution


def test_overridden_actor_input_reaches_all_methods():
    class Doubled(ActorCritic):
        def actor_input(self, observations, **kwargs):
            return super().actor_input(2 * observations, **kwargs)

    torch.manual_seed(0)
    doubled = Doubled(OBS, OBS, A, [8], [8])
    plain = ActorCritic(OBS, OBS, A, [8], [8])
    plain.load_state_dict(doubled.state_dict())
    obs, actions = torch.randn(4, OBS), torch.randn(4, A)
    doubled.act(obs)
    plain.act(2 * obs)
    torch.testing.assert_close(doubled.action_mean, plain.action_mean)
    torch.testing.assert_close(doubled.act_inference(obs), plain.act_inference(2 * obs))
    torch.testing.assert_close(doubled(obs)[0].mean, plain(2 * obs)[0].mean)
    torch.testing.assert_close(doubled.evaluate_actions(obs, actions)[0], plain.evaluate_actions(2 * obs, actions)[0])
    torch.testing.assert_close(doubled.evaluate(obs), plain.evaluate(obs))


def test_deterministic_mixin_acts_with_mean_and_keeps_gaussian():
    class Deterministic(DeterministicPolicyMixin, ActorCritic):
        pass

    policy, obs = Deterministic(OBS, OC, A, [8], [8]), torch.randn(4, OBS)
    torch.testing.assert_close(policy.act(obs), policy.act_inference(obs))
    torch.testing.assert_close(policy.action_std, torch.ones(4, A))
    assert policy.entropy.shape == (4,)


def test_actor_and_critic_reference_networks():
    actor, critic, obs = Actor(OBS, A), Critic(OBS), torch.randn(6, OBS)
    assert [type(m) for m in actor.fc] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh]
    assert (actor.fc[0].in_features, actor.fc[2].out_features, actor.mean.out_features) == (OBS, 64, A)
    assert actor.log_std.tolist() == [0.0] * A
    distribution = actor(obs)
    assert isinstance(distribution, Normal)
    torch.testing.assert_close(distribution.stddev, torch.ones(6, A))
    assert [type(m) for m in critic.fc] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert critic(obs).shape == (6, 1)


def test_actor_exports_to_torchscript_and_onnx(tmp_path):
    policy, obs = make().eval(), torch.randn(4, OBS)
    actor = copy.deepcopy(policy.actor).to("cpu")
    torch.testing.assert_close(torch.jit.script(actor)(obs), policy.act_inference(obs))
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "policy.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            actor, (torch.zeros(1, OBS),), str(path), opset_version=11, input_names=["obs"], output_names=["actions"],
            dynamo=False,
        )  # fmt: skip
    session = onnxruntime.InferenceSession(str(path))
    (actions,) = session.run(["actions"], {"obs": obs[:1].numpy()})
    torch.testing.assert_close(torch.from_numpy(actions), policy.act_inference(obs[:1]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("policy_class", [ActorCritic, ActorCriticRecurrent])
def test_orthogonal_start_has_small_actions(policy_class):
    policy = policy_class(40, 30, 4, actor_hidden_dims=[24, 16], critic_hidden_dims=[24, 16], orthogonal_init=True)
    for head, output_gain in ((policy.actor, 0.01), (policy.critic, 1.0)):
        layers = [layer for layer in head if isinstance(layer, torch.nn.Linear)]
        for layer, gain in zip(layers, [2.0**0.5, 2.0**0.5, output_gain]):
            weight = layer.weight.double()
            rows, columns = weight.shape
            product = weight @ weight.T if rows <= columns else weight.T @ weight
            torch.testing.assert_close(product, gain**2 * torch.eye(len(product)).double(), rtol=0, atol=1e-5)
            assert not layer.bias.any()
    assert policy.act_inference(torch.randn(50, 40)).abs().max() < 0.1
