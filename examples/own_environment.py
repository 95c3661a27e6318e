"""Train PPO on your own environment: a point mass reaches a target and stays there.

    python examples/own_environment.py

The environment is all torch: N points move together, a step is a few lines.
"""

import argparse

import torch

from st_rl.env import VecEnv, check_env
from st_rl.runners import build_runner


class ReachEnv(VecEnv):
    """Push a point of mass 1 kg over a plane to a target: 4 s, 50 ms a step."""

    def __init__(self, num_envs: int, seed: int = 0):
        self.num_envs, self.num_obs, self.num_actions = num_envs, 4, 2
        self.num_privileged_obs = None  # the critic sees what the actor sees
        self.max_episode_length = 80
        self.device = "cpu"
        self.generator = torch.Generator().manual_seed(seed)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.to_target = torch.zeros(num_envs, 2)  # m
        self.velocity = torch.zeros(num_envs, 2)  # m/s
        self.extras = {}
        self.reset()

    def get_observations(self):
        """Where the target is and how fast the point moves, `(N, 4)`."""
        return torch.cat([self.to_target, self.velocity], dim=-1), self.extras

    def reset(self, *args, **kwargs):
        """Start new episodes in all environments."""
        self._reset(torch.ones(self.num_envs, dtype=torch.bool))
        return self.get_observations()

    def step(self, actions):
        """Push with `actions (N, 2)` newtons for 50 ms."""
        self.velocity = self.velocity + 0.05 * actions.clamp(-4.0, 4.0)
        self.to_target = self.to_target - 0.05 * self.velocity
        self.episode_length_buf = self.episode_length_buf + 1
        distance = self.to_target.norm(dim=-1)
        rewards = torch.exp(-4.0 * distance) - 0.01 * actions.square().sum(-1)
        lost = distance > 4.0
        time_outs = (self.episode_length_buf >= self.max_episode_length) & ~lost
        dones = lost | time_outs
        final_obs, _ = self.get_observations()
        infos = {
            # With these two the critic bootstraps the value of a time-out.
            "time_outs": time_outs,
            "final_observations": {"policy": final_obs},
            "log": {"distance": distance},
        }
        self._reset(dones)
        return self.get_observations()[0], rewards, dones, infos

    def _reset(self, which):
        """Put the points `which (N,)` on new places, at rest."""
        places = torch.rand(self.num_envs, 2, generator=self.generator) * 4.0 - 2.0
        self.to_target = torch.where(which[:, None], places, self.to_target)
        self.velocity = torch.where(which[:, None], 0.0, self.velocity)
        self.episode_length_buf = torch.where(which, 0, self.episode_length_buf)


CONFIG = {
    "num_steps_per_env": 24,
    "empirical_normalization": True,
    "policy": {"class_name": "ActorCritic", "actor_hidden_dims": [64, 64], "critic_hidden_dims": [64, 64]},
    "algorithm": {
        "class_name": "PPO",
        "num_learning_epochs": 5,
        "num_mini_batches": 4,
        "learning_rate": 1e-3,
        "schedule": "adaptive",
        "gamma": 0.98,
    },
}


def mean_final_distance(policy, num_envs: int = 64) -> float:
    """How far from the target the points are after 3 s, in metres, without exploration noise."""
    env = ReachEnv(num_envs, seed=1)
    obs, _ = env.get_observations()
    with torch.inference_mode():
        for _ in range(60):
            obs, *_ = env.step(policy(obs))
    return env.to_target.norm(dim=-1).mean().item()


def main(iterations: int = 80, log_dir: str = "runs/reach") -> tuple[float, float]:
    torch.manual_seed(0)
    env = ReachEnv(num_envs=256)
    for violation in check_env(env):
        print("check_env:", violation)
    runner = build_runner("OnPolicyRunner", env, CONFIG, log_dir=log_dir, device="cpu")
    before = mean_final_distance(runner.get_inference_policy())
    runner.learn(iterations, init_at_random_ep_len=True)
    after = mean_final_distance(runner.get_inference_policy())
    print(f"distance to the target after 3 s: {before:.2f} m before, {after:.2f} m after training ({log_dir})")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=80, help="rollouts and updates")
    parser.add_argument("--log-dir", default="runs/reach", help="folder of the run")
    main(**vars(parser.parse_args()))
