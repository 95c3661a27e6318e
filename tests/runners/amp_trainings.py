"""AMP trainings of a client that one process starts and another, `python -m` of this module, resumes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from st_rl.runners import build_runner
from tests.fakes import ClientEnv
from tests.runners.test_client import client_config

# The archived configuration of the client, and one with every option of the discriminator.
OPTIONS: dict[str, dict[str, Any] | None] = {
    "archived": None,
    "options": {
        "learning_rate": 3e-4,
        "weight_decay": 1e-3,
        "update_interval": 3,
        "replay_size": 60,
        "replay_iterations": 2,
        "mask_resets": True,
        "schedules": {"task_reward_lerp": [[0, 0.0], [6, 0.6]]},
    },
}


def archived_config(discriminator_cfg: dict[str, Any] | None = None) -> dict[str, Any]:
    """APPO with an LSTM and 42 motion features, as written by the client."""
    config = client_config("AmpActorCriticRecurrent")
    config["runner_class_name"] = "AmpPolicyRunner"
    config["algorithm"]["class_name"] = "APPO"
    if discriminator_cfg is not None:
        config["algorithm"]["discriminator_cfg"] = discriminator_cfg
    return config


def make_training(name: str, folder: Path, seed: int) -> Any:
    """Build a runner as the client does."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    config = archived_config(OPTIONS[name])
    return build_runner(config["runner_class_name"], ClientEnv(seed=seed), config, log_dir=str(folder), device="cpu")


def finish(folder: Path) -> None:
    """Resume the trainings of the folder to their end, in a process with another random state."""
    for name in OPTIONS:
        runner = make_training(name, folder / name, seed=77)
        runner.load(str(folder / name / "model_3.pt"))
        runner.learn(3)
        runner.close()


if __name__ == "__main__":
    finish(Path(sys.argv[1]))
