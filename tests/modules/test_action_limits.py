"""Action bounds and standard-deviation limits."""

import pytest
import torch

from st_rl.algorithms import PPO
from st_rl.modules import ActorCritic, ActorCriticRecurrent, DeterministicPolicyMixin
from st_rl.modules.networks.gaussian import SquashedGaussian
from st_rl.runners import OnPolicyRunner
from tests.fakes import EchoEnv

SMALL = {"actor_hidden_dims": [8], "critic_hidden_dims": [8]}


@pytest.mark.parametrize("policy_class", [ActorCritic, ActorCriticRecurrent])
def test_actions_stay_within_bounds(policy_class):
    torch.manual_seed(0)
    bound = torch.tensor([0.5, 2.0])
    policy = policy_class(4, 4, 2, action_bound=bound.tolist(), init_noise_std=3.0, **SMALL)
    obs = 5.0 * torch.randn(200, 4)
    actions = policy.act(obs)
    assert bool((actions.abs() <= bound).all())
    assert bool((actions.abs() > 0.9 * bound).any()), "the whole range is in reach"
    policy.clear_hidden_states()
    raw = policy.actor(policy.actor_input(obs))
    policy.clear_hidden_states()
    torch.testing.assert_close(policy.act_inference(obs), bound * torch.tanh(raw))
    assert "action_bound" not in policy.state_dict()


def test_deterministic_actions_stay_within_bounds():
    class Deterministic(DeterministicPolicyMixin, ActorCritic):
        """Acts with the mean."""

    policy = Deterministic(4, 4, 2, action_bound=0.3, **SMALL)
    actions = policy.act(10.0 * torch.randn(20, 4))
    assert torch.equal(actions, policy.bounded(policy.action_mean))
    assert bool((actions.abs() <= 0.3).all())


@pytest.mark.parametrize("bound", [0.0, -1.0, [1.0, 0.0]])
def test_rejects_non_positive_bound(bound):
    with pytest.raises(ValueError, match="must be positive"):
        ActorCritic(4, 4, 2, action_bound=bound, **SMALL)


def test_bound_is_scalar_or_per_action():
    with pytest.raises(ValueError, match=r"action_bound=\[1.0, 2.0, 3.0\] has 3 numbers for 2 actions"):
        ActorCritic(4, 4, 2, action_bound=[1.0, 2.0, 3.0], **SMALL)


@pytest.mark.parametrize(
    "settings", [{"init_noise_std": -0.5}, {"max_noise_std": 0.0, "min_noise_std": 0.1}, {"max_noise_std": -1.0}]
)
def test_rejects_invalid_std_limits(settings):
    with pytest.raises(ValueError, match="give a deviation that is not negative, and a minimum below"):
        ActorCritic(4, 4, 2, **settings, **SMALL)


def test_ratio_of_unchanged_bounded_policy_is_one():
    torch.manual_seed(0)
    policy = ActorCritic(4, 4, 2, action_bound=1.0, init_noise_std=2.0, **SMALL)
    learner = PPO(policy, num_mini_batches=1)
    learner.init_storage(16, 5, [4], [None], [2])
    for _ in range(5):
        learner.act(*(torch.randn(16, 4),) * 2)
        learner.process_env_step(torch.randn(16), torch.zeros(16), {})
    learner.compute_returns(torch.randn(16, 4))
    (minibatch,) = learner.storage.mini_batch_generator(1, 1)
    _, inter_vars, _ = learner.compute_losses(minibatch)
    torch.testing.assert_close(inter_vars["ratio"], torch.ones(80), rtol=1e-4, atol=1e-4)


def test_log_prob_is_finite_at_bound():
    distribution = SquashedGaussian(torch.zeros(2), torch.ones(2), torch.tensor([1.0, 3.0]))
    assert distribution.log_prob(torch.tensor([[1.0, -3.0]])).isfinite().all()


def test_bounded_policy_learns():
    torch.manual_seed(0)
    env = EchoEnv(num_envs=64)
    config = {
        "num_steps_per_env": 8,
        "policy": {
            "class_name": "ActorCritic",
            "action_bound": 1.5,
            "init_noise_std": 0.5,
            **SMALL,
            "actor_hidden_dims": [32],
        },
        "algorithm": {"num_learning_epochs": 4, "num_mini_batches": 2, "learning_rate": 1e-2, "entropy_coef": 1e-3},
    }
    runner = OnPolicyRunner(env, config)
    runner.learn(60)
    with torch.inference_mode():
        error = (runner.get_inference_policy()(env.obs) - env.target).square().mean()
    assert float(error) < 0.05, "a blind policy is at 1/3"


def test_std_is_clamped_to_its_limits():
    policy = ActorCritic(4, 4, 2, init_noise_std=5.0, min_noise_std=0.1, max_noise_std=0.8, **SMALL)
    assert policy.std.tolist() == pytest.approx([0.8, 0.8])
    policy.std.data = torch.tensor([0.01, 3.0])
    policy.clip_std(min=1e-15)
    assert policy.std.tolist() == pytest.approx([0.1, 0.8])
    policy.std.data = torch.tensor([0.01, 0.7])
    policy.clip_std(min=torch.tensor([0.2, 0.3]), max=0.5)
    assert policy.std.tolist() == pytest.approx([0.2, 0.5]), "the tighter limit holds"


def test_training_respects_std_limits():
    torch.manual_seed(0)
    runner = OnPolicyRunner(
        EchoEnv(num_envs=16),
        {
            "num_steps_per_env": 4,
            "policy": {"max_noise_std": 0.5, "min_noise_std": 0.49, **SMALL},
            "algorithm": {"learning_rate": 0.1, "entropy_coef": 1.0},
        },
    )
    runner.learn(3)
    std = runner.alg.actor_critic.std
    assert bool(((std >= 0.49) & (std <= 0.5)).all())


def test_bounded_losses_trace_to_one_graph():
    torch.manual_seed(0)
    policy = ActorCritic(4, 4, 2, action_bound=1.5, **SMALL)
    obs, actions = torch.randn(6, 4), torch.rand(6, 2)

    def measure(obs):
        policy.act(obs)
        return policy.get_actions_log_prob(actions).sum() + policy.entropy.sum()

    traced = torch.compile(measure, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(traced(obs), measure(obs))
