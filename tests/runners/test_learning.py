"""Policies learn to echo their observation, and recurrent ones the previous observation."""

import pytest
import torch

from st_rl.runners import OnPolicyRunner
from tests.fakes import BLIND_REWARD, EchoEnv

POLICIES = {
    "mlp": {"class_name": "ActorCritic"},
    "gru": {"class_name": "ActorCriticRecurrent", "rnn_type": "gru", "rnn_hidden_size": 32},
    "lstm": {"class_name": "ActorCriticRecurrent", "rnn_type": "lstm", "rnn_hidden_size": 32},
}


def trained_reward(policy, memory, num_iterations):
    """Mean reward per step of the deterministic policy on unseen targets, after a short training."""
    cfg = {
        "num_steps_per_env": 16,
        "policy": {"actor_hidden_dims": [32], "critic_hidden_dims": [32], "init_noise_std": 0.5, **POLICIES[policy]},
        "algorithm": {
            "class_name": "PPO", "num_learning_epochs": 4, "num_mini_batches": 4, "learning_rate": 3e-3, "gamma": 0.9,
            "lam": 0.9,
        },
    }  # fmt: skip
    env = EchoEnv(32, 3, 2, episode_length=20, memory=memory, termination_prob=0.02, stagger=True)
    runner = OnPolicyRunner(env, cfg)
    runner.learn(num_iterations)

    unseen = EchoEnv(64, 3, 2, episode_length=20, memory=memory, seed=99)
    act = runner.get_inference_policy()
    runner.alg.actor_critic.clear_hidden_states()  # the training had another number of environments
    rewards = []
    with torch.inference_mode():
        obs, _ = unseen.reset()
        for _ in range(40):
            obs, reward, dones, _ = unseen.step(act(obs))
            act.reset(dones)
            rewards.append(reward.mean())
    return torch.stack(rewards).mean().item()


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_learns_to_echo(policy):
    assert trained_reward(policy, memory=False, num_iterations=8) > 0.9


@pytest.mark.parametrize("policy", ["gru", "lstm"])
def test_recurrent_policy_learns_to_echo_previous_step(policy):
    assert trained_reward(policy, memory=True, num_iterations=16) > 0.87


def test_feed_forward_policy_cannot_echo_previous_step():
    # The target of the first of twenty steps is zero, the best constant action.
    best_blind = (19 * BLIND_REWARD + 1.0) / 20
    assert trained_reward("mlp", memory=True, num_iterations=16) < best_blind + 0.03
