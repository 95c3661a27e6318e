"""Style reward alone teaches a motion: points learn to move in circles like the reference."""

import math

import pytest
import torch

from st_rl.env import VecEnv
from st_rl.runners import build_runner

TURN = 0.4
"""Angle of the reference per step."""


class CircleEnv(VecEnv):
    """Points in a plane, moved by their actions; the reference moves on the unit circle. The task reward is zero."""

    def __init__(self, num_envs: int = 64, seed: int = 0):
        self.num_envs, self.num_obs, self.num_actions, self.num_privileged_obs = num_envs, 2, 2, None
        self.device, self.max_episode_length = "cpu", 40
        self.generator = torch.Generator().manual_seed(seed)
        self.episode_length_buf = torch.arange(num_envs) % self.max_episode_length
        self.position = self._random_positions()
        self.trail = self.position[:, None].repeat(1, 2, 1)

    def _random_positions(self) -> torch.Tensor:
        return 3.0 * torch.rand(self.num_envs, 2, generator=self.generator) - 1.5

    def _reference(self) -> torch.Tensor:
        """Random transitions `(N, 4)` of the reference."""
        angle = 2.0 * math.pi * torch.rand(self.num_envs, 1, generator=self.generator)
        return torch.cat([angle.cos(), angle.sin(), (angle + TURN).cos(), (angle + TURN).sin()], dim=1)

    def get_observations(self):
        return self.position, {"observations": {"ref_obs": self.trail}}

    def reset(self):
        return self.get_observations()

    def step(self, actions):
        before = self.position
        after = before + 0.5 * actions.clamp(-2.0, 2.0)
        length = self.episode_length_buf + 1
        dones = length >= self.max_episode_length
        self.episode_length_buf = torch.where(dones, 0, length)
        self.position = torch.where(dones[:, None], self._random_positions(), after)
        self.trail = torch.stack([before, self.position], dim=1)
        infos = {"observations": {"ref_obs": self.trail}, "ref_motion": self._reference(), "time_outs": dones}
        return self.position, torch.zeros(self.num_envs), dones, infos


def distance_from_reference(policy) -> float:
    """Mean distance between the next positions of the deterministic policy and of the reference."""
    env = CircleEnv(256, seed=9)
    errors = []
    with torch.inference_mode():
        obs, _ = env.get_observations()
        for step in range(30):
            radius = obs.norm(dim=1, keepdim=True)
            c, s = math.cos(TURN), math.sin(TURN)
            turned = torch.stack([c * obs[:, 0] - s * obs[:, 1], s * obs[:, 0] + c * obs[:, 1]], dim=1)
            ideal = turned / radius.clamp(min=1e-3)
            env.episode_length_buf = torch.zeros_like(env.episode_length_buf)
            obs, _, _, _ = env.step(policy(obs))
            if step >= 10:  # after it has reached the circle
                errors.append((obs - ideal).norm(dim=1).mean())
    return float(torch.stack(errors).mean())


def record_accuracy(runner) -> list[float]:
    """A list that is filled with the discriminator's accuracy on policy transitions in every iteration."""
    seen: list[float] = []
    update = runner.alg.update

    def watched(iteration):
        losses, stats = update(iteration)
        seen.append(float(stats["amp_policy_accuracy"]))
        return losses, stats

    runner.alg.update = watched
    return seen


OPTIONS = {"learning_rate": 2e-3, "replay_size": 5000, "replay_iterations": 20, "mask_resets": True}


@pytest.mark.parametrize("discriminator_cfg", [None, OPTIONS], ids=["plain", "options"])
def test_style_reward_alone_teaches_reference_motion(discriminator_cfg):
    torch.manual_seed(0)
    config = {
        "num_steps_per_env": 24,
        "policy": {
            "class_name": "AmpActorCritic",
            "actor_hidden_dims": [32, 32],
            "critic_hidden_dims": [32, 32],
            "init_noise_std": 0.5,
            "amp_discriminator": {
                "input_dim": 4,
                "style_reward_coef": 1.0,
                "hidden_dims": [64, 32],
                "discriminator_grad_pen": 0.03,
            },
        },
        "algorithm": {
            "class_name": "APPO",
            "num_learning_epochs": 4,
            "num_mini_batches": 4,
            "learning_rate": 2e-3,
            "gamma": 0.9,
            "discriminator_cfg": discriminator_cfg,
        },
    }
    runner = build_runner("AmpPolicyRunner", CircleEnv(), config, log_dir=None)
    before = distance_from_reference(runner.get_inference_policy())
    accuracy = record_accuracy(runner)
    runner.learn(60)
    after = distance_from_reference(runner.get_inference_policy())
    # A step of the reference has length 0.4: standing on the circle or moving the wrong way would exceed this.
    assert before > 0.8
    assert after < 0.2
    # The discriminator never separates the two completely.
    assert max(accuracy[20:]) < 0.97
