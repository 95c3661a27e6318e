"""Sources of environments: the built-in tasks, gymnasium (`gym:ENV_ID`) and mjlab (`mjlab:TASK_ID`)."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from st_rl.cli.support.command_line import UsageError, quote
from st_rl.utils.config import unknown_name_message

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from st_rl.env import VecEnv
    from st_rl.sim.envs.cfg import TaskCfg

EnvConfig = TypeVar("EnvConfig", bound="DataclassInstance")
GYM_PREFIX, MJLAB_PREFIX = "gym:", "mjlab:"
EXTERNAL_TASKS = (f"{GYM_PREFIX}ENV_ID", f"{MJLAB_PREFIX}TASK_ID")
"""How a user names a task of another library."""


class TaskSource(ABC, Generic[EnvConfig]):
    """A task by name: its default configuration, its training configuration, and how to build it."""

    name: str
    default_config: EnvConfig
    """A dataclass; every field is an option of the command line."""
    training: dict[str, Any]
    """The default training configuration."""
    evaluation_envs: Mapping[str, int] = {"cpu": 8, "cuda": 8}
    """Environments that score a checkpoint without noise, on a CPU and on a GPU."""
    evaluation_steps: int = 5000
    """Steps after which the episodes that score a checkpoint end."""

    @abstractmethod
    def make(self, config: EnvConfig, num_envs: int | None, device: str, seed: int, **keywords: Any) -> VecEnv:
        """Build an environment for training; `keywords` go to the library that builds it."""

    @property
    def uses_gpu(self) -> bool:
        """Whether `--device auto` trains on a GPU."""
        return False

    def for_gpu(self, num_envs: int | None = None) -> TaskSource[EnvConfig]:
        """Return the task with the defaults of a GPU, for this number of environments (None: the default)."""
        return self

    def make_eval(
        self, config: EnvConfig, num_envs: int, seconds: float, seed: int, fine: bool = False, device: str = "cpu"
    ) -> VecEnv:
        """Build an environment for evaluation.

        Built-in tasks are not randomized, do not time out within `seconds`, and use fine physics with `fine`.
        """
        return self.make(config, num_envs, device, seed)

    def read_config(self, values: Mapping[str, Any]) -> EnvConfig:
        """Return the task configuration stored in `run.json`."""
        from st_rl.sim.envs.cfg import with_overrides

        return with_overrides(self.default_config, flatten(values))


class BuiltInTask(TaskSource["TaskCfg"]):
    """A task of `st_rl.sim`."""

    # Enough to rank checkpoints in a fraction of the training time. On a GPU many robots take no longer than a few.
    evaluation_envs: Mapping[str, int] = {"cpu": 32, "cuda": 256}

    def __init__(self, name: str):
        from st_rl.sim.tasks import TASKS

        if name not in TASKS:
            raise UsageError(
                f"{unknown_name_message('task', name, [*TASKS, *EXTERNAL_TASKS])} (st-rl tasks describes them)"
            )
        self.name = name
        self.default_config = TASKS[name].cfg()
        self.training = TASKS[name].training_config()
        self._entry = TASKS[name]

    @property
    def uses_gpu(self) -> bool:
        """Whether `--device auto` trains on a GPU: the task has settings for it, and MuJoCo Warp is installed."""
        return self._entry.gpu is not None and all(find_spec(name) for name in ("mujoco_warp", "warp"))

    def for_gpu(self, num_envs: int | None = None) -> BuiltInTask:
        """Return the task with the number of robots and the training settings of a GPU."""
        fitted = BuiltInTask(self.name)
        if self._entry.gpu is not None:
            count = num_envs or self._entry.gpu.num_envs
            fitted.default_config = dataclasses.replace(self.default_config, num_envs=count)
            fitted.training = self._entry.gpu_training_config(count)
        return fitted

    def make(self, config: TaskCfg, num_envs: int | None, device: str, seed: int, **keywords: Any) -> VecEnv:
        """Build the task; `keywords` override fields of the configuration."""
        from st_rl.sim.tasks import make_task

        return make_task(self.name, num_envs, device, seed, cfg=config, **keywords)

    def make_eval(
        self, config: TaskCfg, num_envs: int, seconds: float, seed: int, fine: bool = False, device: str = "cpu"
    ) -> VecEnv:
        """Build the task without randomization and without a time-out within `seconds`."""
        from st_rl.sim.evaluation.evaluator import make_eval_task

        return make_eval_task(self.name, config, num_envs, seconds, seed, fine, device)


@dataclass
class GymConfig:
    """How a gymnasium environment is built."""

    num_envs: int = 16
    """Number of environments stepped together, unless --num-envs is given."""
    vectorization: Literal["sync", "async"] = "sync"
    """Whether environments are stepped in turn in this process (sync) or each in its own process (async)."""
    rescale_actions: bool = False
    """Whether actions in [-1, 1] are rescaled to the action space; otherwise actions are clipped to it."""
    max_episode_length: int | None = None
    """Steps of the longest episode, if the environment does not define it."""


# Settings that solve the classic control environments and make gymnasium's MuJoCo robots walk.
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
        "noise_std_type": "log",
        "orthogonal_init": True,
    },
    "algorithm": {
        "num_learning_epochs": 10,
        "num_mini_batches": 32,
        "learning_rate": 3e-4,
        "schedule": "fixed",
        "gamma": 0.99,
        "value_loss_coef": 0.5,
        "use_clipped_value_loss": False,
        "max_grad_norm": 0.5,
        "reward_normalization": True,
        "normalize_advantage_per_mini_batch": True,
        "shuffle_every_epoch": True,
        "anneal_learning_rate": True,
        "anneal_clip_param": True,
    },
}


class GymTask(TaskSource[GymConfig]):
    """An environment of gymnasium."""

    def __init__(self, name: str):
        self.name = name
        self.env_id = name.removeprefix(GYM_PREFIX)
        if not self.env_id:
            raise UsageError("gym: needs the id of an environment, for example gym:Pendulum-v1")
        self.default_config = GymConfig()
        self.training = copy.deepcopy(_GYM_TRAINING)

    def make(self, config: GymConfig, num_envs: int | None, device: str, seed: int, **keywords: Any) -> VecEnv:
        """Build the environment; `keywords` go to `gymnasium.make`."""
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
            # gymnasium has its own error classes for unknown ids, namespaces and versions and for missing packages.
            if type(error).__module__.startswith("gymnasium"):
                raise UsageError(f"gymnasium cannot make '{self.env_id}': {error}") from error
            raise


@dataclass
class MjlabConfig:
    """How a task of mjlab is built; mjlab has all other settings."""

    num_envs: int = 4096
    """Number of robots, unless --num-envs is given."""
    motion_file: str | None = None
    """Reference motion of a tracking task, an npz file of mjlab (st-rl motion convert)."""


class MjlabTask(TaskSource[MjlabConfig]):
    """A task of mjlab, trained with the settings that mjlab has for it."""

    # Its steps are slow from Python, whatever the number of robots, and its episodes are long: five seconds of each.
    evaluation_envs: Mapping[str, int] = {"cpu": 8, "cuda": 256}
    evaluation_steps = 250

    def __init__(self, name: str):
        from st_rl.env.manager_based_adapter import find_mjlab_task
        from st_rl.runners.setup.rsl_rl_settings import translate_training

        self.name = name
        self.task_id = name.removeprefix(MJLAB_PREFIX)
        try:
            task = find_mjlab_task(self.task_id)
        except (ImportError, ValueError) as error:
            raise UsageError(str(error)) from error
        self.default_config = MjlabConfig()
        # `make_mjlab` joins the groups; of the other settings of mjlab's runner, ours has options of its own.
        keys = ("num_steps_per_env", "max_iterations", "save_interval", "actor", "critic", "algorithm")
        settings = dataclasses.asdict(task.rl_cfg)
        try:
            self.training = translate_training({key: settings[key] for key in keys})
        except ValueError as error:
            raise UsageError(f"cannot train {name} as mjlab defines it: {error}") from error

    @property
    def uses_gpu(self) -> bool:
        """True: mjlab simulates on a GPU."""
        return True

    def make(self, config: MjlabConfig, num_envs: int | None, device: str, seed: int, **keywords: Any) -> VecEnv:
        """Build the task; `keywords` go to the environment class of mjlab."""
        from st_rl.env.manager_based_adapter import MotionFileError, make_mjlab

        try:
            return make_mjlab(
                self.task_id, num_envs or config.num_envs, device, seed, motion_file=config.motion_file, **keywords
            )
        except MotionFileError as error:
            raise UsageError(f"{error} (--env.motion-file)") from error


_EXTERNAL_SOURCES = {GYM_PREFIX: GymTask, MJLAB_PREFIX: MjlabTask}


def is_external(name: str) -> bool:
    """Whether a name stands for a task of another library."""
    return name.startswith(tuple(_EXTERNAL_SOURCES))


def task_option(name: str) -> str:
    """Return ` --task ID`, which commands on a run of another library's task need; empty for a built-in task."""
    return f" --task {quote(name)}" if is_external(name) else ""


def find_source(name: str) -> TaskSource[Any]:
    """Return the task of a name; UsageError for an unknown one."""
    for prefix, source in _EXTERNAL_SOURCES.items():
        if name.startswith(prefix):
            return source(name)
    return BuiltInTask(name)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted name, lists as tuples."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _as_tuple(value)
    return flat


def _as_tuple(value: object) -> object:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value
