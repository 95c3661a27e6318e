"""Adapter for environments of Isaac Lab and mjlab."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from st_rl.env.vec_env import VecEnv
from st_rl.utils.config import unknown_name_message
from st_rl.utils.files import load_arrays
from st_rl.utils.tensors.obs_groups import ACTOR_GROUPS, join_groups, join_segments


@runtime_checkable
class ManagedEnv(Protocol):
    """What the adapter reads from the managers of Isaac Lab and mjlab."""

    action_manager: Any
    observation_manager: Any


class ManagerBasedVecEnv(VecEnv):
    """An environment of Isaac Lab or mjlab as a `VecEnv`.

    Any batched environment with `reset() -> (observations, extras)` and `step(actions) -> (observations, rewards,
    terminated, truncated, extras)`, where observations are groups by name. The terms of a group become `obs_segments`,
    so that encoders, estimators and symmetry find them by name. Truncated episodes are time-outs, unless
    `cfg.is_finite_horizon`.

    Args:
        env: the environment, with or without gymnasium wrappers; `close()` closes it.
        clip_actions: clip actions to `[-clip_actions, clip_actions]`; `None`: no clipping.
        actor_group: observation group of the actor, or several, which are joined; `policy` or `actor` by default.
        critic_group: the same of the critic; if the environment has no group of one name, the critic reads the actor
            observation.
    """

    # Name and settings by which the commands of `st-rl` build it again; set by `make_mjlab`.
    task_id: str | None = None
    task_config: Mapping[str, Any] | None = None

    def __init__(
        self,
        env: Any,
        clip_actions: float | None = None,
        actor_group: str | Sequence[str] | None = None,
        critic_group: str | Sequence[str] = "critic",
    ) -> None:
        self.env = env
        self.clip_actions = clip_actions
        inner = self.unwrapped
        self.num_envs = int(inner.num_envs)
        self.device = torch.device(inner.device)
        self.max_episode_length = int(inner.max_episode_length)
        if isinstance(inner, ManagedEnv):
            self.num_actions = int(inner.action_manager.total_action_dim)
        else:
            self.num_actions = math.prod(inner.single_action_space.shape)
        observation = self._reset()
        self._actor_groups = _find_actor_groups(observation, actor_group)
        names = (critic_group,) if isinstance(critic_group, str) else tuple(critic_group)
        is_missing = len(names) == 1 and names[0] not in list(observation.keys())
        self._critic_groups = () if is_missing or names == self._actor_groups else names
        self._groups = self._read(observation)
        self.num_obs = self._groups["policy"].shape[1]
        self.num_privileged_obs = self._groups["critic"].shape[1] if self._critic_groups else None
        self.obs_segments = _find_segments(inner, self._actor_groups, observation)
        if self._critic_groups:
            self.critic_obs_segments = _find_segments(inner, self._critic_groups, observation)
        self.extras: dict[str, Any] = {}

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    @property
    def cfg(self) -> Any:
        """The configuration of the environment."""
        return getattr(self.unwrapped, "cfg", None)

    @property
    def render_mode(self) -> str | None:
        """The render mode of the environment."""
        return getattr(self.env, "render_mode", None)

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Steps of each running episode `(N,)`; reads and sets the buffer of the environment."""
        return self.unwrapped.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.unwrapped.episode_length_buf = value

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the observation `(N, O)` of the last step or reset, and its groups."""
        return self._groups["policy"], {"observations": self._groups}

    def reset(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """Reset all environments."""
        self._groups = self._read(self._reset(*args, **kwargs))
        return self.get_observations()

    def _reset(self, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        with _normal_tensors():
            return self.env.reset(*args, **kwargs)[0]

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)` and return `(obs (N, O), rewards (N,), dones (N,) bool, infos)`."""
        with _normal_tensors():
            bound = self.clip_actions
            actions = actions.clone() if bound is None else actions.clamp(-bound, bound)
            observation, rewards, terminated, truncated, extras = self.env.step(actions)
        terminated, truncated = terminated.bool(), truncated.bool()
        self._groups = self._read(observation)
        obs, infos = self.get_observations()
        infos = {**extras, **infos}
        if not getattr(self.cfg, "is_finite_horizon", False):
            infos["time_outs"] = truncated & ~terminated
        self.extras = infos
        return obs, rewards, terminated | truncated, infos

    def render(self) -> Any:
        """Return the rendered frames of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _read(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """The observation groups, with the joined ones of actor and critic as `policy` and `critic`, `(N, O)`."""
        groups = {**observation, "policy": join_groups(observation, self._actor_groups)}
        if self._critic_groups:
            groups["critic"] = join_groups(observation, self._critic_groups)
        return groups


def make_mjlab(
    task_id: str,
    num_envs: int | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    motion_file: str | Path | None = None,
    **kwargs: Any,
) -> ManagerBasedVecEnv:
    """Make an mjlab task by its id, such as `"Mjlab-Velocity-Flat-Unitree-Go1"`, with its groups and action clipping.

    Args:
        task_id: a registered mjlab task.
        num_envs: number of environments; by default as in the task.
        device: device of the simulation.
        seed: seed of the environment.
        motion_file: reference motion of a tracking task, an npz file of mjlab.
        kwargs: further arguments of mjlab's environment, such as `render_mode`.
    """
    task = find_mjlab_task(task_id)
    if num_envs is not None:
        task.env_cfg.scene.num_envs = num_envs
    if seed is not None:
        task.env_cfg.seed = seed
    _set_motion_file(task_id, task.env_cfg, motion_file)
    from mjlab.envs import ManagerBasedRlEnv  # pyright: ignore[reportMissingImports]

    env = ManagerBasedRlEnv(cfg=task.env_cfg, device=str(device), **kwargs)
    groups = task.rl_cfg.obs_groups
    made = ManagerBasedVecEnv(env, task.rl_cfg.clip_actions, groups.get("actor"), groups.get("critic", "critic"))
    if not kwargs:
        made.task_id = f"mjlab:{task_id}"
        made.task_config = {"num_envs": made.num_envs, "motion_file": None if motion_file is None else str(motion_file)}
    return made


class MotionFileError(ValueError):
    """A task needs a reference motion, or has none, or the file is missing."""


def _set_motion_file(task_id: str, env_cfg: Any, motion_file: str | Path | None) -> None:
    """Set the reference motion of a tracking task; MotionFileError if it is missing, or the task has none."""
    commands = [command for command in (env_cfg.commands or {}).values() if "motion_file" in vars(command)]
    if not commands:
        if motion_file is not None:
            raise MotionFileError(f"{task_id} tracks no motion: leave motion_file='{motion_file}' out")
        return
    for command in commands:
        path = str(motion_file or command.motion_file or "")
        if not Path(path).is_file():
            found = f"there is no file '{path}'" if path else "motion_file is not set"
            raise MotionFileError(f"{task_id} tracks a reference motion, but {found}; name an npz file of mjlab")
        needed = len(vars(command).get("body_names", ()))
        count = load_arrays(path).get("body_pos_w", np.empty((0, 0, 3))).shape[1] if needed else 0
        if count < needed:
            raise MotionFileError(
                f"{task_id} tracks {needed} bodies, but {path} has {count}: write it with `st-rl motion convert ... "
                "--format mjlab --robot ROBOT.xml`, which adds all bodies of the robot"
            )
        command.motion_file = path


class MjlabTaskCfg(NamedTuple):
    """Copies of the configurations of an mjlab task."""

    env_cfg: Any
    """The environment configuration."""
    rl_cfg: Any
    """The rsl_rl runner configuration."""


def find_mjlab_task(task_id: str) -> MjlabTaskCfg:
    """Look up the configurations of an mjlab task; ValueError with all ids for an unknown one."""
    try:
        import mjlab.tasks  # noqa: F401  # pyright: ignore[reportMissingImports]  # registers its tasks
        from mjlab.tasks import registry  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError('tasks of mjlab need the package: pip install "st_rl[mjlab]"') from error
    if task_id not in registry.list_tasks():
        raise ValueError(unknown_name_message("task of mjlab", task_id, registry.list_tasks()))
    return MjlabTaskCfg(registry.load_env_cfg(task_id), registry.load_rl_cfg(task_id))


@contextmanager
def _normal_tensors() -> Iterator[None]:
    """Leave inference mode: tensors that the environment creates inside can be written in place outside, too."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _find_actor_groups(observation: object, requested: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the actor's observation groups; ValueError or TypeError that lists what there is."""
    if not isinstance(observation, Mapping):
        raise TypeError(
            f"reset() returned a {type(observation).__name__} instead of observation groups by name; wrap it in "
            "GymnasiumVecEnv, or derive it from VecEnv"
        )
    # `keys()`, because iterating over a TensorDict yields its rows.
    known = list(observation.keys())
    wanted = ACTOR_GROUPS if requested is None else (requested,) if isinstance(requested, str) else tuple(requested)
    found = tuple(name for name in wanted if name in known)
    if requested is None and found:
        return found[:1]
    if found == wanted:
        return found
    known, wanted = ", ".join(map(str, known)), " or ".join(f"'{name}'" for name in wanted if name not in known)
    raise ValueError(f"the environment has no observation group {wanted}; set actor_group to one of: {known}")


def _find_segments(env: object, groups: Sequence[str], observation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Components of joined groups in order, name -> shape: their terms, or a group of several axes as a whole.

    None for a flat group with unknown terms.
    """
    terms = {group: _find_terms(env, group, observation[group]) for group in groups}
    is_flat = len(groups) == 1 and not isinstance(observation[groups[0]], Mapping) and observation[groups[0]].dim() == 2
    return None if is_flat and terms[groups[0]] is None else join_segments(observation, groups, terms)


def _find_terms(env: object, group: str, delivered: torch.Tensor | Mapping[str, Any]) -> dict[str, Any] | None:
    """Terms of a group, name -> shape; None if they are unknown, or joined along other axes, as channels of images."""
    if not isinstance(env, ManagedEnv) or (not isinstance(delivered, Mapping) and delivered.dim() > 2):
        return None
    shapes = [tuple(map(int, shape)) for shape in env.observation_manager.group_obs_term_dim[group]]
    names = env.observation_manager.active_terms[group]
    return {name: shape if len(shape) > 1 else math.prod(shape) for name, shape in zip(names, shapes)}
