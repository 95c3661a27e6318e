"""Small algorithms and synthetic rollouts for the tests of algorithms."""

import torch

from st_rl.algorithms import PPO
from st_rl.modules import ActorCritic, ActorCriticRecurrent

OBS_DIM, CRITIC_DIM, NUM_ACTIONS, HIDDEN = 4, 5, 2, 6

POLICIES = {
    "mlp": (ActorCritic, {}),
    "gru": (ActorCriticRecurrent, {"rnn_type": "gru", "rnn_hidden_size": HIDDEN}),
    "lstm": (ActorCriticRecurrent, {"rnn_type": "lstm", "rnn_hidden_size": HIDDEN}),
    "lstm2": (ActorCriticRecurrent, {"rnn_type": "lstm", "rnn_hidden_size": HIDDEN, "rnn_num_layers": 2}),
}


def make_policy(kind="mlp", num_critic_obs=CRITIC_DIM, **kwargs):
    cls, settings = POLICIES[kind]
    settings = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "init_noise_std": 0.7, **settings, **kwargs}
    return cls(OBS_DIM, num_critic_obs, NUM_ACTIONS, **settings)


def make_ppo(kind="mlp", num_envs=6, num_steps=5, separate_critic=True, policy=None, algorithm=PPO, **kwargs):
    """Build an algorithm with storage and normalizers, in training mode."""
    num_critic_obs = CRITIC_DIM if separate_critic else OBS_DIM
    policy = make_policy(kind, num_critic_obs) if policy is None else policy
    alg = algorithm(policy, **kwargs)
    alg.init_obs_norm(OBS_DIM, num_critic_obs)
    critic_shape = [CRITIC_DIM] if separate_critic else [None]
    alg.init_storage(num_envs, num_steps, [OBS_DIM], critic_shape, [NUM_ACTIONS])
    alg.train_mode()
    return alg


def random_steps(num_envs, num_steps, seed=0, done_prob=0.25, critic_dim=CRITIC_DIM):
    """`num_steps + 1` random environment steps; only the observation of the last one is used (after the rollout)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    return [
        {
            "obs": normal(num_envs, OBS_DIM),
            "critic_obs": normal(num_envs, critic_dim),
            "rewards": normal(num_envs),
            "dones": (torch.rand(num_envs, generator=generator) < done_prob).to(torch.int64),
        }
        for _ in range(num_steps + 1)
    ]


def collect(alg, steps, infos=None, on_step=None):
    """Collect one rollout of the given steps in inference mode and compute returns; calls `on_step(step, actions)`."""
    with torch.inference_mode():
        for number, step in enumerate(steps[:-1]):
            actions = alg.act(step["obs"], step["critic_obs"])
            if on_step is not None:
                on_step(step, actions)
            alg.process_env_step(step["rewards"], step["dones"], {} if infos is None else infos[number])
        alg.compute_returns(steps[-1]["critic_obs"])


def parameters_of(alg):
    return {name: value.detach().clone() for name, value in alg.actor_critic.named_parameters()}


def assert_same_parameters(first, second, **tolerance):
    assert first.keys() == second.keys()
    for name in first:
        if tolerance:
            torch.testing.assert_close(
                first[name], second[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}"
            )
        else:
            assert torch.equal(first[name], second[name]), name
