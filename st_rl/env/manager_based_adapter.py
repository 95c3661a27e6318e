"""Adapter for environments of Isaac Lab and mjlab."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from st_rl.env.vec_env import VecEnv
from st_rl.utils.config import unknown_name_message
from st_rl.utils.log import logger

ACTOR_GROUPS = ("policy", "actor")
"""Names of the actor's observation group in Isaac Lab and mjlab."""


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
        actor_group: observation group of the actor; `policy` or `actor` by default.
        critic_group: observation group of the critic; if the environment has none of this name, the critic reads the
            actor observation.
    """

    def __init__(
        self,
        env: Any,
        clip_actions: float | None = None,
        actor_group: str | None = None,
        critic_group: str = "critic",
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
        observation, _ = env.reset()
        self._actor_group = _find_actor_group(observation, actor_group)
        self._critic_group = critic_group if critic_group in list(observation.keys()) else None
        self._groups = self._read(observation)
        self.num_obs = self._groups["policy"].shape[1]
        self.num_privileged_obs = self._groups["critic"].shape[1] if self._critic_group else None
        self.obs_segments = _find_segments(inner, self._actor_group, observation)
        if self._critic_group:
            self.critic_obs_segments = _find_segments(inner, self._critic_group, observation)
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
        observation, _ = self.env.reset(*args, **kwargs)
        self._groups = self._read(observation)
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)` and return `(obs (N, O), rewards (N,), dones (N,) bool, infos)`."""
        if self.clip_actions is not None:
            actions = actions.clamp(-self.clip_actions, self.clip_actions)
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
        """The observation groups, with those of actor and critic as `policy` and `critic`, `(N, O)` each."""
        groups = {**observation, "policy": _as_rows(observation[self._actor_group])}
        if self._critic_group:
            groups["critic"] = _as_rows(observation[self._critic_group])
        return groups


def make_mjlab(
    task_id: str,
    num_envs: int | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    **kwargs: Any,
) -> ManagerBasedVecEnv:
    """Make an mjlab task by its id, such as `"Mjlab-Velocity-Flat-Unitree-Go1"`, with its action clipping.

    Args:
        task_id: a registered mjlab task.
        num_envs: number of environments; that of the task by default.
        device: device of the simulation.
        seed: seed of the environment.
        kwargs: further arguments of mjlab's environment, such as `render_mode`.
    """
    task = find_mjlab_task(task_id)
    if num_envs is not None:
        task.env_cfg.scene.num_envs = num_envs
    if seed is not None:
        task.env_cfg.seed = seed
    from mjlab.envs import ManagerBasedRlEnv  # pyright: ignore[reportMissingImports]

    env = ManagerBasedRlEnv(cfg=task.env_cfg, device=str(device), **kwargs)
    return ManagerBasedVecEnv(env, clip_actions=task.rl_cfg.clip_actions)


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


def _find_actor_group(observation: object, requested: str | None) -> str:
    """Name of the actor's observation group; ValueError or TypeError that lists what there is."""
    if not isinstance(observation, Mapping):
        raise TypeError(
            f"reset() returned a {type(observation).__name__} instead of observation groups by name; wrap it in "
            "GymnasiumVecEnv, or derive it from VecEnv"
        )
    # `keys()`, because iterating over a TensorDict yields its rows.
    known, wanted = list(observation.keys()), ACTOR_GROUPS if requested is None else (requested,)
    for name in wanted:
        if name in known:
            return name
    known = ", ".join(map(str, known))
    wanted = " or ".join(f"'{name}'" for name in wanted)
    raise ValueError(f"the environment has no observation group {wanted}; set actor_group to one of: {known}")


def _as_rows(group: torch.Tensor | Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Flatten a group `(N, ...)`, or concatenate its terms, to `(N, O)`."""
    if isinstance(group, Mapping):
        return torch.cat([term.flatten(1) for term in group.values()], dim=1)
    return group.flatten(1)


def _find_segments(env: object, group: str, observation: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]] | None:
    """Terms of a group in order, name -> shape; None if they are unknown or not contiguous in the observation."""
    if not isinstance(env, ManagedEnv):
        return None
    manager, delivered = env.observation_manager, observation[group]
    names = manager.active_terms[group]
    shapes = [tuple(map(int, shape)) for shape in manager.group_obs_term_dim[group]]
    # Terms of several axes, concatenated along the last one, are interleaved in a flat row.
    is_interleaved = not isinstance(delivered, Mapping) and delivered.dim() > 2 and len(names) > 1
    if is_interleaved or sum(math.prod(shape) for shape in shapes) != _as_rows(delivered).shape[1]:
        logger.info(f"the terms of the observation group '{group}' are not contiguous: no obs_segments")
        return None
    return {name: shape if len(shape) > 1 else math.prod(shape) for name, shape in zip(names, shapes)}
