"""Entries of the task registry, and builders of training configurations in the layout that runners take."""

import copy
import math
from typing import Any, NamedTuple

from st_rl.sim.envs.cfg import TaskCfg
from st_rl.sim.envs.task import Task


class GpuTraining(NamedTuple):
    """Training settings of a task on a GPU, where many robots need fewer iterations; as in the committed GPU runs."""

    max_iterations: int
    num_envs: int = 4096
    hidden_dims: tuple[int, ...] | None = None
    """Hidden layers of actor and critic; None keeps the layers of the CPU settings."""


class TaskEntry(NamedTuple):
    """A task by name."""

    task: type[Task]
    cfg: type[TaskCfg]
    training: dict[str, Any]
    """Default training configuration."""
    summary: str = ""
    """One line for `st-rl tasks`."""
    gpu: GpuTraining | None = None
    """Settings on a GPU; None for a task that is learned on a CPU before a GPU has started."""

    def training_config(self) -> dict[str, Any]:
        """A copy of the default training configuration."""
        return copy.deepcopy(self.training)

    def gpu_training_config(self, num_envs: int) -> dict[str, Any]:
        """A copy of the training configuration for `num_envs` robots on a GPU.

        Iterations are interpolated over the logarithm of the number of robots, between CPU and GPU settings.
        """
        config = self.training_config()
        if self.gpu is None:
            return config
        few, many = self.cfg().num_envs, self.gpu.num_envs
        fraction = math.log(min(max(num_envs, few), many) / few) / math.log(many / few)
        iterations = self.training["max_iterations"]
        config["max_iterations"] = round(iterations + fraction * (self.gpu.max_iterations - iterations))
        if self.gpu.hidden_dims is not None:
            for head in ("actor", "critic"):
                config["policy"][f"{head}_hidden_dims"] = list(self.gpu.hidden_dims)
        return config


def ppo_config(name: str, max_iterations: int, hidden_dims: tuple[int, ...], **algorithm: object) -> dict[str, Any]:
    """Return a PPO configuration with settings tuned on the built-in tasks; `algorithm` overrides its keys."""
    return {
        "runner_class_name": "OnPolicyRunner",
        "experiment_name": name,
        "num_steps_per_env": 24,
        "max_iterations": max_iterations,
        "empirical_normalization": True,
        "save_interval": 50,
        "log_interval": 1,
        "logger": "tensorboard",
        "policy": {
            "class_name": "ActorCritic",
            "init_noise_std": 0.5,
            "actor_hidden_dims": list(hidden_dims),
            "critic_hidden_dims": list(hidden_dims),
            "activation": "elu",
        },
        "algorithm": {
            "class_name": "PPO",
            "value_loss_coef": 1.0,
            "use_clipped_value_loss": True,
            "clip_param": 0.2,
            "entropy_coef": 0.0,
            "num_learning_epochs": 5,
            "num_mini_batches": 4,
            "learning_rate": 1.0e-3,
            "schedule": "adaptive",
            "gamma": 0.99,
            "lam": 0.95,
            "desired_kl": 0.02,
            "max_grad_norm": 1.0,
            **algorithm,
        },
    }


def amp_config(
    name: str,
    max_iterations: int,
    hidden_dims: tuple[int, ...],
    task_reward_lerp: float = 0.5,
    **algorithm: object,
) -> dict[str, Any]:
    """Return a configuration for motion priors; the discriminator takes the styles of whatever robot the task has."""
    config = ppo_config(name, max_iterations, hidden_dims, class_name="APPO", **algorithm)
    config["runner_class_name"] = "AmpPolicyRunner"
    config["policy"]["class_name"] = "AmpActorCritic"
    # Slower than the policy with its adaptive rate: a discriminator that is always right gives no reward.
    config["algorithm"].setdefault("discriminator_cfg", {"learning_rate": 1e-4})
    config["policy"]["amp_discriminator"] = {
        "input_dim": None,
        "hidden_dims": [128, 64],
        "style_reward_coef": 0.1,
        "task_reward_lerp": task_reward_lerp,
        "discriminator_grad_pen": 5.0,
    }
    return config
