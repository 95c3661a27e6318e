"""`EstimatorMixin` and `PrivilegeEstimatorMixin`: inputs, targets and replacement of components by estimates."""

import copy
from unittest.mock import Mock

import pytest
import torch

from st_rl.modules import (
    ActorCritic,
    ActorCriticRecurrent,
    EstimatorMixin,
    PrivilegeEstimatorMixin,
    PrivilegeStateAc,
    StateAc,
    StateAcRecurrent,
)
from tests.modules.policy_matrix import make_policy, observations, width

OBS = {"velocity": 2, "pose": 3, "contact": 1}
CRITIC = {"friction": 1, "contact": 1, "velocity": 2, "mass": 2}
SMALL = {"actor_hidden_dims": [10], "critic_hidden_dims": [10], "obs_segments": OBS, "critic_obs_segments": CRITIC}
NUM_OBS, NUM_CRITIC = 6, 6


def make(policy_class=StateAc, **settings):
    torch.manual_seed(0)
    if policy_class is StateAcRecurrent:
        settings |= {"rnn_hidden_size": 7}
    return policy_class(NUM_OBS, NUM_CRITIC, 2, **{**SMALL, "estimator_target_components": ["velocity"], **settings})


def test_estimator_reads_named_components_in_segment_order():
    policy = make(estimator_obs_components=["contact", "pose"])
    obs = torch.randn(5, NUM_OBS)
    policy.act(obs)
    torch.testing.assert_close(policy.get_estimated_state(), policy.state_estimator(obs[:, 2:6]))
    assert policy.get_estimated_state() is policy.estimated_state_


def test_estimator_reads_all_but_targets_by_default():
    policy = make()
    assert policy.estimator_obs_components == ["pose", "contact"]
    obs = torch.randn(5, NUM_OBS)
    policy.act(obs)
    torch.testing.assert_close(policy.get_estimated_state(), policy.state_estimator(obs[:, 2:6]))


def test_target_of_critic_only():
    policy = make(estimator_target_components=["mass", "friction"])
    policy.act(torch.randn(5, NUM_OBS))
    assert policy.get_estimated_state().shape == (5, 3)


def test_no_hidden_sizes_give_linear_estimator():
    assert [type(layer).__name__ for layer in make().state_estimator.model] == ["Linear"]
    layers = make(estimator_kwargs={"hidden_sizes": [4], "nonlinearity": "ELU"}).state_estimator.model
    assert [type(layer).__name__ for layer in layers] == ["Linear", "ELU", "Linear"]


@pytest.mark.parametrize("policy_class", [StateAc, StateAcRecurrent])
def test_estimates_are_placed_in_actor_segment_order(policy_class):
    """The order of contact and velocity differs between critic and actor."""
    policy = make(
        policy_class,
        estimator_target_components=["contact", "velocity"],
        estimator_obs_components=["pose"],
        replace_state_prob=1.0,
    )
    obs = torch.randn(5, NUM_OBS)
    policy.act(obs)
    contact, velocity = policy.get_estimated_state().split([1, 2], dim=-1)
    replaced = torch.cat([velocity, obs[:, 2:5], contact], dim=-1)
    seen = replaced if policy_class is StateAc else policy.memory_a(replaced[None]).squeeze(0)
    torch.testing.assert_close(policy.action_mean, policy.actor(seen))


@pytest.mark.parametrize("policy_class", [StateAc, StateAcRecurrent])
def test_always_replaced_components_do_not_reach_actor(policy_class):
    policy = make(policy_class, replace_state_prob=1.0)
    obs = torch.randn(5, NUM_OBS)
    hidden = obs.clone()
    hidden[:, :2] = 1e6
    first = policy.act_inference(obs)
    policy.clear_hidden_states()
    assert torch.equal(policy.act_inference(hidden), first)


def test_replacement_is_sampled_per_row():
    policy = make(replace_state_prob=0.25)
    obs = torch.randn(1, NUM_OBS).expand(20, 1000, NUM_OBS)
    policy.act(obs)
    policy.replace_state_prob = 0.0
    is_replaced = (policy.action_mean - policy.act_inference(obs)).abs().sum(-1) > 1e-6
    assert float(is_replaced.float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(is_replaced.float().mean(dim=1).min()) > 0.15, "independent of the time step"
    assert len(is_replaced[:, :10].unique(dim=1).T) == 10, "and of the robot"


@pytest.mark.parametrize("first", [0.0, 0.25])
def test_replacement_probability_can_change(first):
    policy = make(PrivilegeStateAc, replace_state_prob=first, adaptor_target_components=["contact"])
    obs = torch.randn(1, NUM_OBS).expand(20_000, NUM_OBS)

    def replaced(component):
        """Fraction of rows in which the actor receives a replaced component."""
        seen = []
        hook = policy.actor.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        policy.act(obs)
        hook.remove()
        return float(((seen[0] - obs)[:, component].abs().sum(-1) > 1e-6).float().mean())

    assert replaced(slice(0, 2)) == pytest.approx(first, abs=0.02)
    policy.replace_state_prob, policy.privilege_replace_state_prob = 0.75, 0.5
    assert replaced(slice(0, 2)) == pytest.approx(0.75, abs=0.02)
    assert replaced(slice(5, 6)) == pytest.approx(0.5, abs=0.02)
    policy.replace_state_prob = policy.privilege_replace_state_prob = 0.0
    assert replaced(slice(0, 6)) == 0.0
    with pytest.raises(ValueError, match="a probability from 0 to 1; got 2"):
        policy.replace_state_prob = 2


def test_subclass_may_override_networks_and_act():
    class Own(PrivilegeStateAc):
        def build_estimator(self, **kwargs):
            self.state_estimator = torch.nn.Linear(self.estimation.input_size, self.estimation.output_size)

        def build_adaptor(self, **kwargs):
            self.state_adaptor = torch.nn.Linear(self.adaptation.input_size, self.adaptation.output_size)

        def act(self, observations, **kwargs):
            return super().act(observations.clamp(-1.0, 1.0), **kwargs)

    policy = make(Own, adaptor_target_components=["friction"])
    obs = 5.0 * torch.randn(4, NUM_OBS)
    policy.act(obs)
    policy.reset(torch.ones(4))
    assert torch.equal(policy.act_inference(obs), policy.act_inference(obs.clamp(-1.0, 1.0)))


def test_noise_of_failed_act_is_discarded(monkeypatch):
    """Noise of a failed `act` must not select the rows that a later call replaces."""
    policy, obs, critic_obs = make(replace_state_prob=0.5), torch.randn(7, NUM_OBS), torch.randn(7, NUM_CRITIC)

    def evaluate():
        torch.manual_seed(3)
        return policy.evaluate_actions(obs, torch.zeros(7, 2), critic_obs)

    expected = evaluate()
    for num_samples in (5, 7):
        with monkeypatch.context() as broken:
            broken.setattr(policy, "update_distribution", Mock(side_effect=RuntimeError("no memory left")))
            with pytest.raises(RuntimeError, match="no memory left"):
                policy.act(torch.randn(num_samples, NUM_OBS))
        assert copy.deepcopy(policy).noise_column(0) is None
        for mine, other in zip(evaluate(), expected):
            torch.testing.assert_close(mine, other)


def test_inference_replaces_all_rows():
    policy = make(replace_state_prob=0.25)
    always = make(replace_state_prob=1.0)
    obs = torch.randn(50, NUM_OBS)
    assert torch.equal(policy.act_inference(obs), always.act_inference(obs))


@pytest.mark.parametrize("policy_class", [StateAc, StateAcRecurrent])
def test_policy_loss_does_not_train_estimator(policy_class):
    policy = make(policy_class, replace_state_prob=1.0)
    policy.act(torch.randn(5, NUM_OBS))
    policy.get_actions_log_prob(torch.zeros(5, 2)).sum().backward()
    trained = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert not [name for name in trained if name.startswith(("state_estimator", "memory_s"))]
    assert "actor.0.weight" in trained
    policy.zero_grad()
    policy.clear_hidden_states()
    policy.act(torch.randn(5, NUM_OBS))
    policy.get_estimated_state().sum().backward()
    trained = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert trained
    assert all(name.startswith(("state_estimator", "memory_s")) for name in trained)


def test_networks_feed_forward_own_and_shared_rnn():
    assert make().memory_s is None
    own = make(StateAcRecurrent, rnn_type="gru", rnn_num_layers=2)
    assert (own.memory_s.rnn.input_size, own.memory_s.rnn.hidden_size, own.memory_s.rnn.num_layers) == (4, 7, 2)
    assert isinstance(own.memory_s.rnn, torch.nn.GRU)
    assert {"memory_s.rnn.weight_ih_l0", "state_estimator.model.0.weight"} <= set(own.state_dict())
    shared = make(StateAcRecurrent, use_actor_rnn=True)
    assert shared.memory_s is None
    assert shared.state_estimator.model[0].in_features == 7
    assert not [key for key in shared.state_dict() if key.startswith("memory_s")]


def test_estimate_with_actor_rnn_is_unpadded_and_trains_rnn():
    policy = make(StateAcRecurrent, use_actor_rnn=True)
    masks = torch.tensor(
        [[True, True, True], [True, False, True], [True, False, False]]
    )  # two environments of three steps
    policy.act(torch.randn(3, 3, NUM_OBS), masks=masks, hidden_states=None)
    assert policy.get_estimated_state().shape == (3, 2, 2)
    policy.get_estimated_state().sum().backward()
    assert policy.memory_a.rnn.weight_ih_l0.grad is not None
    own = make(StateAcRecurrent)
    own.act(torch.randn(3, 3, NUM_OBS), masks=masks, hidden_states=None)
    assert own.get_estimated_state().shape == (3, 3, 2), "its own memory leaves it padded"


@pytest.mark.parametrize(
    ("policy_class", "settings", "message"),
    [
        (StateAc, {"use_actor_rnn": True}, "use_actor_rnn has no effect: StateAc has no memory"),
        (
            StateAcRecurrent,
            {"use_actor_rnn": True, "estimator_obs_components": ["pose"]},
            "the actor's memory sees all",
        ),
    ],
)
def test_warns_about_settings_without_effect(caplog, policy_class, settings, message):
    make(policy_class)
    assert caplog.text == ""
    make(policy_class, **settings)
    assert message in caplog.text


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"replace_state_prob": 0.5, "use_actor_rnn": True}, AssertionError, "use one of them"),
        ({"estimator_target_components": None}, ValueError, "must name what the estimator estimates; the critic obser"),
        ({"estimator_target_components": ["speed"]}, ValueError, r"\(of the critic\) names \['speed'\]"),
        ({"estimator_obs_components": ["mass"]}, ValueError, r"estimator_obs_components names \['mass'\]"),
        ({"estimator_target_components": ["mass"], "replace_state_prob": 0.1}, ValueError, r"names \['mass'\], which"),
        ({"obs_segments": None, "critic_obs_segments": None}, ValueError, "needs obs_segments"),
        ({"replace_state_prob": 2.0}, ValueError, "a probability from 0 to 1; got 2.0"),
        (
            {"estimator_kwargs": {"hidden_size": [3]}},
            ValueError,
            "key in estimator_kwargs 'hidden_size'; did you mean 'h",
        ),
        ({"estimator_kwargs": {"output_size": 3}}, ValueError, "unknown key in estimator_kwargs 'output_size'"),
        (
            {"critic_obs_segments": {"velocity": 3, "rest": 3}, "replace_state_prob": 0.1},
            ValueError,
            "'velocity' is 2 wide for the actor and 3 for the critic: it cannot be replaced",
        ),
    ],
)
def test_rejects_invalid_settings(settings, error, message):
    with pytest.raises(error, match=message):
        make(**settings)


class TestAdaptor:
    def make(self, **settings):
        return make(
            PrivilegeStateAc,
            adaptor_target_components=["friction", "mass"],
            adaptor_obs_components=["pose"],
            **settings,
        )

    def test_replaces_components_with_estimator(self):
        policy = self.make()
        obs = torch.randn(5, NUM_OBS)
        policy.act(obs)
        torch.testing.assert_close(policy.get_adapted_state(), policy.state_adaptor(obs[:, 2:5]))
        torch.testing.assert_close(policy.get_estimated_state(), policy.state_estimator(obs[:, 2:6]))

    def test_estimator_reads_adapted_components(self):
        policy = make(
            PrivilegeStateAc,
            adaptor_target_components=["contact"],
            adaptor_obs_components=["pose"],
            privilege_replace_state_prob=1.0,
            estimator_obs_components=["pose", "contact"],
            replace_state_prob=1.0,
        )
        obs = torch.randn(5, NUM_OBS)
        policy.act(obs)
        adapted = policy.state_adaptor(obs[:, 2:5])
        estimate = policy.state_estimator(torch.cat([obs[:, 2:5], adapted], dim=-1))
        torch.testing.assert_close(policy.get_estimated_state(), estimate)
        torch.testing.assert_close(policy.action_mean, policy.actor(torch.cat([estimate, obs[:, 2:5], adapted], -1)))

    def test_excludes_estimator_targets_by_default(self):
        unused, replaced = (
            make(PrivilegeStateAc, adaptor_target_components=["mass"], replace_state_prob=p) for p in (0.0, 0.5)
        )
        assert unused.adaptor_obs_components == ["velocity", "pose", "contact"]
        assert replaced.adaptor_obs_components == ["pose", "contact"]
        obs = torch.randn(5, NUM_OBS)
        other = obs.clone()
        other[:, :2] = 100.0
        torch.testing.assert_close(replaced.act_inference(obs), replaced.act_inference(other))
        torch.testing.assert_close(*(self.adapted(replaced, seen) for seen in (obs, other)))

    @staticmethod
    def adapted(policy, obs):
        policy.act_inference(obs)
        return policy.get_adapted_state()

    def test_targets_of_critic_only_cannot_be_replaced(self):
        assert self.make().get_adapted_state() is None
        with pytest.raises(ValueError, match="adaptor_target_components, to be replaced, names"):
            self.make(privilege_replace_state_prob=0.1)

    def test_networks_of_recurrent_policy(self):
        policy = make_policy("PrivilegeStateAcRecurrent", "adapts; estimates")
        assert policy.memory_p.rnn.input_size == width((2,)) + 5 + 24 + 4
        assert policy.state_adaptor.output_size == 3
        assert {"memory_p.rnn.weight_ih_l0", "state_adaptor.model.0.weight"} <= set(policy.state_dict())

    @pytest.mark.parametrize("base", [ActorCritic, ActorCriticRecurrent])
    def test_estimate_is_adaptor_output_without_estimator(self, base):
        policy_class = type("AdaptorAlone", (PrivilegeEstimatorMixin, base), {})
        policy = policy_class(NUM_OBS, NUM_CRITIC, 2, adaptor_target_components=["mass"], **SMALL)
        policy.act(torch.randn(5, NUM_OBS))
        assert policy.get_estimated_state() is policy.get_adapted_state()
        assert policy.get_estimated_state().shape == (5, 2)


@pytest.mark.parametrize("settings", [None, {}, {"hidden_sizes": None, "nonlinearity": None}])
def test_none_means_default(settings):
    policy = make(
        PrivilegeStateAc, estimator_kwargs=settings, adaptor_target_components=["mass"], adaptor_kwargs=settings
    )
    assert [type(layer) for layer in policy.state_estimator.model] == [torch.nn.Linear]
    assert [type(layer) for layer in policy.state_adaptor.model] == [torch.nn.Linear]


def test_overridden_get_estimated_state_is_used():
    class Halved(StateAc):
        def get_estimated_state(self):
            return 0.5 * self.estimated_state_

    policy_class = type("AdaptedHalved", (PrivilegeEstimatorMixin, Halved), {})
    policy = make(policy_class, adaptor_target_components=["mass"])
    policy.act(torch.randn(5, NUM_OBS))
    assert torch.equal(policy.get_estimated_state(), 0.5 * policy.estimated_state_)


@pytest.mark.parametrize("use_actor_rnn", [False, True])
def test_user_defined_mixin_after_estimator(use_actor_rnn):
    """The mixin accepts unused keywords, as the guide shows."""

    class Scaled:
        def actor_input(self, observations, **kwargs):
            return super().actor_input(0.5 * observations, **kwargs)

    policy_class = type("EstimatorScaled", (EstimatorMixin, Scaled, ActorCriticRecurrent), {})
    policy = make(policy_class, use_actor_rnn=use_actor_rnn, rnn_hidden_size=7)
    obs = torch.randn(5, NUM_OBS)
    torch.testing.assert_close(policy.act_inference(obs), policy.actor(policy.memory_a(0.5 * obs[None])[0]))


def test_estimator_reads_raw_and_actor_reads_encoded_observation():
    policy = make_policy("EncoderStateAc", "cnn and mlp, shared; replaces")
    obs, _ = observations(6)
    policy.act(obs)
    # forward: pose 5, velocity 2, depth 24, contact 4; the estimator reads pose and depth
    torch.testing.assert_close(
        policy.get_estimated_state(), policy.state_estimator(torch.cat([obs[:, :5], obs[:, 7:31]], dim=-1))
    )
    velocity, contact = policy.get_estimated_state().split([2, 4], dim=-1)
    pose, depth = policy.encoders[0](obs[:, :5]), policy.encoders[1](obs[:, 7:31].reshape(-1, 1, 4, 6))
    expected = policy.actor(torch.cat([pose, velocity, depth, contact], dim=-1))
    torch.testing.assert_close(policy.action_mean, expected)
