"""Small AMP algorithms and synthetic motion features for the tests of APPO."""

import torch

from st_rl.algorithms import APPO
from st_rl.modules import AmpActorCritic, AmpActorCriticRecurrent
from tests.algorithms.rollouts import CRITIC_DIM, HIDDEN, NUM_ACTIONS, OBS_DIM, make_ppo, random_steps

WIDTH = 6
DISCRIMINATOR = {
    "input_dim": WIDTH,
    "style_reward_coef": 0.7,
    "hidden_dims": [8, 5],
    "task_reward_lerp": 0.3,
    "discriminator_grad_pen": 2.0,
}
POLICIES = {
    "mlp": (AmpActorCritic, {}),
    "lstm": (AmpActorCriticRecurrent, {"rnn_type": "lstm", "rnn_hidden_size": HIDDEN}),
}


def make_amp_policy(kind="mlp", **discriminator):
    cls, settings = POLICIES[kind]
    config = {**DISCRIMINATOR, **discriminator}
    sizes = {"actor_hidden_dims": [8], "critic_hidden_dims": [8], "init_noise_std": 0.7}
    return cls(OBS_DIM, CRITIC_DIM, NUM_ACTIONS, amp_discriminator=config, **sizes, **settings)


def make_appo(kind="mlp", discriminator=None, algorithm=APPO, seed=0, **kwargs):
    """Build APPO with seeded weights, storage and normalizers, in training mode."""
    torch.manual_seed(seed)
    return make_ppo(kind, policy=make_amp_policy(kind, **(discriminator or {})), algorithm=algorithm, **kwargs)


def motion_infos(num_envs, num_steps, seed=0, shift=1.5):
    """Infos with motion features for every step; the reference differs from the policy by `shift`."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "observations": {"ref_obs": torch.randn(num_envs, 2, WIDTH // 2, generator=generator)},
            "ref_motion": shift + 0.5 * torch.randn(num_envs, WIDTH, generator=generator),
        }
        for _ in range(num_steps)
    ]


def rollout(num_envs=6, num_steps=5, seed=0, **kwargs):
    """Steps and infos of one rollout."""
    return random_steps(num_envs, num_steps, seed), motion_infos(num_envs, num_steps, seed, **kwargs)
