"""An AMP training captured as CUDA graphs equals eager execution."""

import numpy as np
import pytest
import torch

from st_rl.runners import build_runner
from tests.runners.test_captured_rollout import FollowEnv

pytestmark = pytest.mark.gpu

VARIANTS = {
    "plain": {},
    "options": {
        "learning_rate": 5e-4,
        "weight_decay": 1e-3,
        "update_interval": 3,
        "mask_resets": True,
        "schedules": {"task_reward_lerp": [[0, 0.0], [6, 0.6]], "discriminator_loss_coef": [[0, 1.0], [6, 0.5]]},
    },
}


class MovingEnv(FollowEnv):
    """Has motion features of the environments and of a reference that moves like the target."""

    def __init__(self):
        super().__init__()
        self.trail = self.position[:, None].repeat(1, 2)

    def step(self, actions):
        self.trail[:, 0].copy_(self.position)
        angle = self.episode_length_buf * 0.3
        reference = torch.stack([angle.sin(), (angle + 0.3).sin()], dim=1)
        obs, rewards, dones, infos = super().step(actions)
        self.trail[:, 1].copy_(self.position)
        infos |= {"observations": {"ref_obs": self.trail[:, :, None].clone()}, "ref_motion": reference}
        return obs, rewards, dones, infos


def train(policy, discriminator_cfg, engine):
    torch.manual_seed(0)
    np.random.seed(0)
    config = {
        "num_steps_per_env": 8,
        "engine": engine,
        "empirical_normalization": True,
        "policy": {
            "class_name": policy,
            "actor_hidden_dims": [32],
            "critic_hidden_dims": [32],
            "init_noise_std": 1e-3,
            "amp_discriminator": {"input_dim": 2, "hidden_dims": [16, 8], "style_reward_coef": 0.5},
        },
        "algorithm": {
            "class_name": "APPO",
            "num_learning_epochs": 2,
            "num_mini_batches": 2,
            "schedule": "adaptive",
            "learning_rate": 1e-4,
            # Small enough that both sample almost the same actions, and non-zero, so that there is something to learn.
            "clip_min_std": 1e-3,
            "discriminator_cfg": discriminator_cfg,
        },
    }
    runner = build_runner("OnPolicyRunner", MovingEnv(), config, None, "cuda")
    runner.learn(6)
    return runner


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", ["AmpActorCritic", "AmpActorCriticRecurrent"])
def test_captured_amp_training_equals_eager(policy, variant):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    eager, graph = (train(policy, VARIANTS[variant], engine) for engine in ("eager", "graph"))
    first, second = graph.alg.storage, eager.alg.storage
    for name in ("ref_obs", "ref_motion", "rewards", "actions"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=2e-2, atol=2e-2)
    for key in ("model_state_dict", "ref_obs_norm_state_dict"):
        for name, value in eager.alg.state_dict()[key].items():
            torch.testing.assert_close(graph.alg.state_dict()[key][name], value, rtol=2e-2, atol=2e-2)
    if variant == "options":
        learning = graph.alg._discriminator_trainer
        assert int(learning._num_mini_batches) == 6 * 4
        assert float(graph.alg.actor_critic.discriminator.task_reward_lerp) == pytest.approx(0.5)


@pytest.mark.parametrize("engine", ["graph", "compile"])
def test_replay_with_captured_steps(engine):
    options = {**VARIANTS["options"], "replay_size": 300, "replay_iterations": 3}
    runner = train("AmpActorCritic", options, engine)
    replay = runner.alg._discriminator_trainer.replay
    assert replay.num_samples == 300
    # The replay holds raw positions: the normalization is inverted.
    assert replay.states.abs().max() <= 2.1
    assert replay.states.std() > 0.05
    assert all(torch.isfinite(value).all() for value in runner.alg.actor_critic.state_dict().values())
