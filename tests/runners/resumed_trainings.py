"""Trainings that one process starts and another, `python -m` of this module, resumes."""

import sys
from pathlib import Path
from typing import Any

import torch

from st_rl.runners import OnPolicyRunner
from tests.runners.training import RND, NoveltyEnv, recurrent, small_config

POLICIES: dict[str, dict[str, Any]] = {
    "feed_forward": {"class_name": "ActorCritic"},
    "lstm": recurrent("lstm"),
    "gru": {**recurrent("gru"), "rnn_num_layers": 2},
}


def make_training(name: str, folder: Path, seed: int) -> OnPolicyRunner:
    """Build a runner with every part that has a state: normalizers, learning rate, clip range, RND, critic, RNN."""
    torch.manual_seed(seed)
    env = NoveltyEnv(num_envs=5, episode_length=7, seed=seed, num_privileged_obs=6, termination_prob=0.1, memory=True)
    config = small_config(
        policy=POLICIES[name],
        algorithm={
            "schedule": "adaptive",
            "desired_kl": 0.003,
            "learning_rate": 1e-4,
            "entropy_coef": 0.01,
            "rnd_cfg": RND,
            "reward_normalization": True,
            "shuffle_every_epoch": True,
            "anneal_clip_param": True,
            "anneal_iterations": 6,
        },
        empirical_normalization=True,
        num_steps_per_env=5,
    )
    return OnPolicyRunner(env, config, log_dir=folder)


def finish(folder: Path) -> None:
    """Resume the trainings of the folder to their end, in a process with another random state."""
    for name in POLICIES:
        runner = make_training(name, folder / name, seed=77)
        runner.load(folder / name / "model_3.pt")
        runner.learn(3)
        runner.close()


if __name__ == "__main__":
    finish(Path(sys.argv[1]))
