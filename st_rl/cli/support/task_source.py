"""Where environments come from: the built-in tasks, gymnasium by `gym:ENV_ID`, or mjlab by `mjlab:TASK_ID`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from st_rl.cli.support.command_line import UsageError, unknown_name

GYM_PREFIX, MJLAB_PREFIX = "gym:", "mjlab:"
FOREIGN_TASKS = (f"{GYM_PREFIX}ENV_ID", f"{MJLAB_PREFIX}TASK_ID")
"""How tasks of others are written."""


class TaskSource(ABC):
    """One task by name: its default configuration, how to train it, and how to build it."""

    name: str
    default_config: Any
    """A dataclass; every field of it is an option of the command line."""
    training: dict[str, Any]
    """The default training configuration."""
    has_evaluator: bool = True
    """Whether snapshots are judged by episodes without noise; otherwise by the returns of the training."""

    @abstractmethod
    def make(self, config: Any, num_envs: int | None, device: str, seed: int) -> Any:
        """An environment to train in."""

    def read_config(self, values: Mapping[str, Any]) -> Any:
        """The task's configuration from what `run.json` keeps of it."""
        from st_rl.sim.envs.cfg import with_overrides
        from st_rl.utils.old_names import OPTIONS, with_new_names

        return with_overrides(self.default_config, with_new_names(leaves(values), OPTIONS))


class BuiltInTask(TaskSource):
    """A task of `st_rl.sim`."""

    def __init__(self, name: str):
        from st_rl.sim.tasks import TASKS

        if name not in TASKS:
            raise UsageError(f"{unknown_name('task', name, [*TASKS, *FOREIGN_TASKS])} (st-rl tasks describes them)")
        self.name = name
        self.default_config = TASKS[name].cfg()
        self.training = TASKS[name].training_config()

    def make(self, config: Any, num_envs: int | None, device: str, seed: int) -> Any:
        """An environment to train in."""
        from st_rl.sim.tasks import make_task

        return make_task(self.name, num_envs, device, seed, cfg=config)


@dataclass
class GymConfig:
    """How a gymnasium environment is built."""

    num_envs: int = 16
    """Number of environments stepped together unless --num-envs says otherwise."""
    vectorization: Literal["sync", "async"] = "sync"
    """Whether environments are stepped one after the other or each in a process of its own."""
    rescale_actions: bool = False
    """Whether actions in [-1, 1] are stretched over the action space; otherwise they are clipped to it."""
    max_episode_length: int | None = None
    """Steps of the longest episode, where the environment does not say."""


# Settings that learn the classic environments; a robot's task brings better ones of its own.
_GYM_TRAINING = {
    "num_steps_per_env": 128,
    "max_iterations": 100,
    "empirical_normalization": True,
    "save_interval": 20,
    "policy": {
        "actor_hidden_dims": [64, 64],
        "critic_hidden_dims": [64, 64],
        "activation": "tanh",
        "init_noise_std": 1.0,
    },
    "algorithm": {
        "num_learning_epochs": 10,
        "num_mini_batches": 8,
        "learning_rate": 1e-3,
        "desired_kl": 0.02,
        "gamma": 0.99,
    },
}


class GymTask(TaskSource):
    """An environment of gymnasium."""

    def __init__(self, name: str):
        import copy

        self.name = name
        self.env_id = name.removeprefix(GYM_PREFIX)
        if not self.env_id:
            raise UsageError("gym: needs the id of an environment, for example gym:Pendulum-v1")
        self.default_config = GymConfig()
        self.training = copy.deepcopy(_GYM_TRAINING)

    def make(self, config: GymConfig, num_envs: int | None, device: str, seed: int, **keywords: Any) -> Any:
        """An environment to train in; `keywords` go to `gymnasium.make`."""
        from st_rl.env.gymnasium_adapter import make_gymnasium

        try:
            return make_gymnasium(
                self.env_id,
                num_envs=num_envs or config.num_envs,
                device=device,
                seed=seed,
                vectorization=config.vectorization,
                rescale_actions=config.rescale_actions,
                max_episode_length=config.max_episode_length,
                **keywords,
            )
        except Exception as error:
            # gymnasium's own classes for an unknown id, namespace or version, and for a package that is missing.
            if type(error).__module__.startswith("gymnasium"):
                raise UsageError(f"gymnasium cannot make '{self.env_id}': {error}") from error
            raise


@dataclass
class MjlabConfig:
    """How a task of mjlab is built; everything else is mjlab's own."""

    num_envs: int = 4096
    """Number of robots unless --num-envs says otherwise."""


class MjlabTask(TaskSource):
    """A task of mjlab, trained with the settings that mjlab has for it."""

    # Its episodes are long, and each of their steps is many calls from Python.
    has_evaluator = False

    def __init__(self, name: str):
        from st_rl.env.manager_based_adapter import find_mjlab_task

        self.name = name
        self.task_id = name.removeprefix(MJLAB_PREFIX)
        try:
            settings = find_mjlab_task(self.task_id).rl_cfg
        except (ImportError, ValueError) as error:
            raise UsageError(str(error)) from error
        self.default_config = MjlabConfig()
        self.training = _mjlab_training(settings)

    def make(self, config: MjlabConfig, num_envs: int | None, device: str, seed: int, **keywords: Any) -> Any:
        """An environment to train in; `keywords` go to mjlab's environment."""
        from st_rl.env.manager_based_adapter import make_mjlab

        return make_mjlab(self.task_id, num_envs or config.num_envs, device, seed, **keywords)


def _mjlab_training(settings: Any) -> dict[str, Any]:
    """Our training configuration from mjlab's: the same networks and the same PPO."""
    taken = (
        *("num_learning_epochs", "num_mini_batches", "learning_rate", "schedule", "gamma", "lam", "entropy_coef"),
        *("desired_kl", "max_grad_norm", "value_loss_coef", "use_clipped_value_loss", "clip_param"),
    )
    actor, critic = settings.actor, settings.critic
    return {
        "num_steps_per_env": settings.num_steps_per_env,
        "max_iterations": settings.max_iterations,
        "save_interval": settings.save_interval,
        "empirical_normalization": actor.obs_normalization,
        "policy": {
            "actor_hidden_dims": list(actor.hidden_dims),
            "critic_hidden_dims": list(critic.hidden_dims),
            "activation": actor.activation,
            "init_noise_std": (actor.distribution_cfg or {}).get("init_std", 1.0),
        },
        "algorithm": {name: getattr(settings.algorithm, name) for name in taken},
    }


_FOREIGN = {GYM_PREFIX: GymTask, MJLAB_PREFIX: MjlabTask}


def is_foreign(name: str) -> bool:
    """Whether a name is that of a task of another library."""
    return name.startswith(tuple(_FOREIGN))


def find_source(name: str) -> TaskSource:
    """The task of a name; UsageError for an unknown one."""
    for prefix, source in _FOREIGN.items():
        if name.startswith(prefix):
            return source(name)
    return BuiltInTask(name)


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name, lists as tuples."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= leaves(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _tuples(value)
    return flat


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
