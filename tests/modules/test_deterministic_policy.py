"""`DeterministicPolicyMixin`."""

import torch

from st_rl.modules import ActorCritic, ActorCriticRecurrent, DeterministicPolicyMixin


class Deterministic(DeterministicPolicyMixin, ActorCritic):
    """Feed-forward."""


class DeterministicRecurrent(DeterministicPolicyMixin, ActorCriticRecurrent):
    """Recurrent."""


def test_act_returns_mean_and_updates_distribution():
    torch.manual_seed(0)
    policy = Deterministic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    obs = torch.randn(5, 4)
    actions = policy.act(obs)
    assert torch.equal(actions, policy.act_inference(obs))
    assert torch.equal(actions, policy.action_mean)
    # log-probability of the Gaussian at its mode
    expected = torch.distributions.Normal(actions, policy.std).log_prob(actions).sum(-1)
    torch.testing.assert_close(policy.get_actions_log_prob(actions), expected)
    # gradients reach the actor, as distillation needs
    actions.sum().backward()
    assert policy.actor[0].weight.grad is not None


def test_inference_keeps_distribution():
    policy = Deterministic(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8])
    obs, others = torch.randn(2, 5, 4)
    policy.act(others)
    mean = policy.action_mean
    for actions in (policy.act(obs, inference=True), policy.act(obs, None, None, True)):
        assert torch.equal(actions, policy.act_inference(obs))
        assert policy.action_mean is mean


def test_arguments_reach_the_parent():
    torch.manual_seed(0)
    policy = DeterministicRecurrent(4, 4, 2, actor_hidden_dims=[8], critic_hidden_dims=[8], rnn_hidden_size=6)
    obs = torch.randn(3, 5, 4)
    masks = torch.ones(3, 5, dtype=torch.bool)
    actions = policy.act(obs, masks=masks, hidden_states=None)
    stepped = torch.stack([policy.act(row) for row in obs])
    torch.testing.assert_close(actions, stepped)
