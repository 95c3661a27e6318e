"""Adapter for gymnasium environments."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from st_rl.env.contract_checks import equal_with_nan
from st_rl.env.gymnasium_spaces import ActionMapper, ObservationFlattener
from st_rl.env.vec_env import VecEnv
from st_rl.utils.log import logger

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import VectorEnv

DEFAULT_EPISODE_LENGTH = 1000
"""`max_episode_length` of an environment without a time limit."""


class GymnasiumVecEnv(VecEnv):
    """A gymnasium vector environment as a `VecEnv`.

    Every step returns the observation of the running episode, `time_outs` (truncated and not terminated) and
    `final_observations`, the last observations of finished episodes. The autoreset mode of the environment decides how:

    - `SAME_STEP`: gymnasium delivers them.
    - `NEXT_STEP` with partial resets (`SyncVectorEnv`, `AsyncVectorEnv`): finished environments are reset immediately,
      which avoids the additional reset step.
    - `NEXT_STEP` otherwise: an episode ends one step later, with a step without reward in its last state, as if that
      state were absorbing. Returns and bootstrap values are not affected.
    - `DISABLED` is rejected.

    Args:
        env: a `gymnasium.vector.VectorEnv`; `close()` closes it.
        device: device of the returned tensors.
        seed: seed of the first reset; `None`: not reproducible.
        clip_actions: clip actions to the bounds of the action space.
        rescale_actions: map actions in [-1, 1] linearly to the bounds of the action space instead.
        max_episode_length: steps of the longest episode, if the environment's spec does not define it.
        partial_reset: whether `reset(options={"reset_mask": ...})` resets only the environments of the mask; `None`:
            only for `SyncVectorEnv` and `AsyncVectorEnv`. Used in mode `NEXT_STEP` only.
    """

    # Name and settings by which the commands of `st-rl` build it again; set by `make_gymnasium`.
    task_id: str | None = None
    task_config: Mapping[str, Any] | None = None

    def __init__(
        self,
        env: "VectorEnv[Any, Any, Any]",
        device: torch.device | str = "cpu",
        seed: int | None = None,
        clip_actions: bool = True,
        rescale_actions: bool = False,
        max_episode_length: int | None = None,
        partial_reset: bool | None = None,
    ) -> None:
        gymnasium = _import_gymnasium()
        if not isinstance(env, gymnasium.vector.VectorEnv):
            raise TypeError(
                f"{type(env).__name__} is not a gymnasium vector environment; call make_gymnasium(env) instead"
            )
        self.env: Any = env
        self.device = device
        self._reset_mode = self._select_reset_mode(partial_reset)
        self._flattener = ObservationFlattener(env.single_observation_space)
        self._action_mapper = ActionMapper(env.single_action_space, clip_actions, rescale_actions)
        self.num_envs = int(env.num_envs)
        self.num_obs = self._flattener.width
        self.num_privileged_obs = None
        self.num_actions = self._action_mapper.width
        self.obs_segments = self._flattener.segments
        time_limit = _find_time_limit(env)
        self._has_time_limit = time_limit is not None and _has_separate_envs(env)
        if max_episode_length is None and time_limit is None:
            logger.info(f"{env} has no time limit; max_episode_length is {DEFAULT_EPISODE_LENGTH}")
        self.max_episode_length = max_episode_length or time_limit or DEFAULT_EPISODE_LENGTH
        self.extras: dict[str, Any] = {}
        self._takes_tensors = False
        self._source_device = torch.device("cpu")
        self._warned_of_final_obs = False
        self.reset(seed=seed)

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Steps of each running episode `(N,)`; setting it also sets the counter of gymnasium's `TimeLimit`."""
        return self._episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._episode_length = value.to(device=self.device, dtype=torch.int64, copy=True)
        if self._has_time_limit:
            self.env.unwrapped.set_attr("_elapsed_steps", self._episode_length.tolist())

    @property
    def unwrapped(self) -> Any:
        """The innermost vector environment."""
        return self.env.unwrapped

    @property
    def render_mode(self) -> str | None:
        """The render mode of the wrapped environment."""
        return self.env.render_mode

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the latest observation `(N, O)` and its groups."""
        obs = self._obs.to(self.device)
        return obs, {"observations": {"policy": obs}}

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Reset all environments, with a seed if one is given."""
        observation, _ = self.env.reset(seed=seed, options=options)
        leaf = observation
        while isinstance(leaf, dict | tuple):
            leaf = next(iter(leaf.values())) if isinstance(leaf, dict) else leaf[0]
        self._takes_tensors = isinstance(leaf, torch.Tensor)
        self._source_device = leaf.device if isinstance(leaf, torch.Tensor) else torch.device("cpu")
        self._obs = self._flatten(observation)
        self._return_sum = torch.zeros(self.num_envs, device=self._source_device)
        self._num_steps = torch.zeros(self.num_envs, device=self._source_device)
        not_ended = torch.zeros(self.num_envs, dtype=torch.bool, device=self._source_device)
        # Mode "next step": the episodes that gymnasium has ended, by any cause and by time-out.
        self._ended = (not_ended, not_ended)
        self._episode_length = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)` and return `(obs (N, O), rewards (N,), dones (N,) bool, infos)`."""
        env_actions = self._action_mapper(actions, self._source_device)
        result = self.env.step(env_actions if self._takes_tensors else env_actions.numpy())
        observation, rewards, terminated, truncated, env_infos = result
        rewards = torch.as_tensor(rewards).to(device=self._source_device, dtype=torch.float32, copy=True)
        terminated = torch.as_tensor(terminated, device=self._source_device).bool()
        truncated = torch.as_tensor(truncated, device=self._source_device).bool()
        dones, time_outs = terminated | truncated, truncated & ~terminated
        if self._reset_mode == "next step":
            # The episodes that gymnasium ended one step ago end now, when it has reset them.
            ended, ended_by_time_out = self._ended
            self._ended = (dones & ~ended, time_outs & ~ended)
            dones, time_outs = ended, ended_by_time_out
        self._obs, final_obs = self._end_episodes(self._flatten(observation), dones, env_infos)

        obs, extras = self.get_observations()
        extras["log"] = self._episode_statistics(rewards, dones, time_outs)
        dones = dones.to(self.device)
        self._episode_length = torch.where(dones, 0, self._episode_length + 1)
        extras["time_outs"] = time_outs.to(self.device)
        if final_obs is not None:
            extras["final_observations"] = {"policy": final_obs.to(self.device)}
        extras["gymnasium"] = env_infos
        self.extras = extras
        return obs, rewards.to(self.device), dones, extras

    def render(self) -> Any:
        """Return the rendered frames of the wrapped environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the wrapped environment."""
        self.env.close()

    def _flatten(self, observation: object) -> torch.Tensor:
        """Return a batch of observations as a new tensor `(N, O)`."""
        return self._flattener.batch(observation, self.num_envs, self._source_device)

    def _episode_statistics(
        self, rewards: torch.Tensor, dones: torch.Tensor, time_outs: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return, length and time-out flag of the finished episodes, each `(number done,)`."""
        self._return_sum = self._return_sum + rewards
        self._num_steps = self._num_steps + 1.0
        if not dones.any():
            return {}
        statistics = {
            "return": self._return_sum[dones],
            "length": self._num_steps[dones],
            "time_out": time_outs[dones].float(),
        }
        self._return_sum = torch.where(dones, 0.0, self._return_sum)
        self._num_steps = torch.where(dones, 0.0, self._num_steps)
        return statistics

    def _select_reset_mode(self, partial_reset: bool | None) -> str:
        """Return `"same step"`, `"partial reset"` or `"next step"` for the environment's autoreset mode."""
        from gymnasium.vector import AutoresetMode

        mode = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
        if mode == AutoresetMode.SAME_STEP:
            return "same step"
        if mode == AutoresetMode.DISABLED:
            raise ValueError(
                f"{self.env} has autoreset_mode DISABLED, so finished episodes would never be reset; make it with "
                "autoreset_mode=AutoresetMode.SAME_STEP"
            )
        if _can_reset_partially(self.env) if partial_reset is None else partial_reset:
            return "partial reset"
        logger.warning(
            f"{self.env} resets in the step after the last (NEXT_STEP) without partial reset: every episode gets one "
            "more step, without reward, in its last state; prefer autoreset_mode=AutoresetMode.SAME_STEP"
        )
        return "next step"

    def _end_episodes(
        self, obs: torch.Tensor, dones: torch.Tensor, infos: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the observations of the running episodes and the last ones of finished episodes, `(N, O)` each."""
        if not dones.any():
            return obs, obs
        if self._reset_mode == "next step":
            return obs, torch.where(dones[:, None], self._obs, obs)
        if self._reset_mode == "same step":
            return obs, self._read_final_obs(obs, dones, infos)
        observation, _ = self.env.reset(options={"reset_mask": dones.cpu().numpy()})
        next_obs = self._flatten(observation)
        if not equal_with_nan(obs[~dones], next_obs[~dones]):
            raise RuntimeError(
                f"reset(options={{'reset_mask': ...}}) of {self.env} also changed environments outside the mask; pass "
                "partial_reset=False, or make it with autoreset_mode=AutoresetMode.SAME_STEP"
            )
        return next_obs, obs

    def _read_final_obs(self, obs: torch.Tensor, dones: torch.Tensor, infos: dict[str, Any]) -> torch.Tensor | None:
        """Return `infos["final_obs"]` as a tensor `(N, O)`, `obs` where not done; None if it is missing."""
        delivered = infos.get("final_obs")
        if delivered is None:
            if not self._warned_of_final_obs:
                logger.warning(
                    f"{self.env} returns no infos['final_obs']; time-outs are bootstrapped from the step before"
                )
                self._warned_of_final_obs = True
            return None
        if not isinstance(delivered, np.ndarray) or delivered.dtype.kind != "O":
            return torch.where(dones[:, None], self._flatten(delivered), obs)
        final_obs = obs.clone()
        for index in dones.nonzero().flatten().tolist():
            self._flattener.write(final_obs[index], delivered[index])
        return final_obs


def make_gymnasium(
    env: "str | EnvSpec | Callable[[], gymnasium.Env[Any, Any]] | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]",
    num_envs: int | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
    vectorization: str = "sync",
    clip_actions: bool = True,
    rescale_actions: bool = False,
    max_episode_length: int | None = None,
    **kwargs: Any,
) -> GymnasiumVecEnv:
    """Make a `GymnasiumVecEnv` from a task id, a factory, an environment or a vector environment.

    Args:
        env: an id such as `"Pendulum-v1"` or an `EnvSpec`; a function without arguments that returns a
            `gymnasium.Env`; a `gymnasium.Env`; or a `gymnasium.vector.VectorEnv`, used unchanged.
        num_envs: number of environments, 1 by default.
        device: device of the returned tensors.
        seed: seed of the first reset; environment `i` gets `seed + i`.
        vectorization: `"sync"` steps the environments sequentially, `"async"` each in its own process.
        clip_actions: clip actions to the bounds of the action space.
        rescale_actions: map actions in [-1, 1] linearly to the bounds of the action space instead.
        max_episode_length: steps of the longest episode, if the environment's spec does not define it.
        kwargs: further arguments of `gymnasium.make`, with an id only.
    """
    _import_gymnasium()
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

    if kwargs and not isinstance(env, str | EnvSpec):
        raise TypeError(f"{sorted(kwargs)} cannot be applied to {env}; pass the id of a task instead")
    if vectorization not in ("sync", "async"):
        raise ValueError(f"vectorization={vectorization!r} is unknown; choose 'sync' or 'async'")
    if isinstance(env, VectorEnv):
        if num_envs not in (None, env.num_envs):
            raise ValueError(f"num_envs={num_envs}, but the vector environment has {env.num_envs}; leave num_envs out")
        vector_env = env
    else:
        factories = _factories(env, num_envs or 1, vectorization, kwargs)
        make = SyncVectorEnv if vectorization == "sync" else AsyncVectorEnv
        vector_env = make(factories, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    made = GymnasiumVecEnv(vector_env, device, seed, clip_actions, rescale_actions, max_episode_length)
    if isinstance(env, str) and clip_actions and not kwargs:
        made.task_id = f"gym:{env}"
        made.task_config = {"num_envs": made.num_envs, "vectorization": vectorization}
        made.task_config |= {"rescale_actions": rescale_actions, "max_episode_length": max_episode_length}
    return made


def _factories(env: object, num_envs: int, vectorization: str, kwargs: dict[str, Any]) -> list[Callable[[], Any]]:
    """Return one factory for each environment."""
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    if isinstance(env, str | EnvSpec):
        return [lambda: gymnasium.make(env, **kwargs)] * num_envs
    if not isinstance(env, gymnasium.Env):
        if not callable(env):
            raise TypeError(
                f"cannot make an environment of {env!r}; pass an id, a function, a gymnasium.Env or a VectorEnv"
            )
        return [env] * num_envs
    if vectorization == "async":
        raise ValueError(
            "an environment that is already made cannot move into another process; pass its id or a function"
        )
    spec = env.spec
    if num_envs == 1:
        return [lambda: env]
    if spec is None:
        raise ValueError(f"cannot make {num_envs} of {env}, which has no spec; pass a function that makes one")
    return [lambda: env] + [lambda: gymnasium.make(spec)] * (num_envs - 1)


def _import_gymnasium() -> Any:
    """Return the package `gymnasium`; ImportError with the install command if it is missing or too old."""
    try:
        import gymnasium
        from gymnasium.vector import AutoresetMode  # noqa: F401  (new in gymnasium 1.1)
    except ImportError as error:
        raise ImportError('the adapter needs gymnasium 1.1 or later: pip install "st_rl[gym]"') from error
    return gymnasium


def _has_separate_envs(env: "VectorEnv[Any, Any, Any]") -> bool:
    """Whether a vector environment steps separate `gymnasium.Env`s and can read and set their attributes."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    return isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def _can_reset_partially(env: "VectorEnv[Any, Any, Any]") -> bool:
    """Whether `reset_mask` is known to work through all wrappers of a vector environment."""
    from gymnasium.vector import AsyncVectorEnv
    from gymnasium.wrappers.vector import NormalizeObservation

    wrapper: Any = env
    while wrapper is not env.unwrapped:
        if isinstance(wrapper, NormalizeObservation):
            return False
        wrapper = wrapper.env
    # Without shared memory a worker does not record the reset, and resets again in the next step.
    resets_twice = isinstance(wrapper, AsyncVectorEnv) and not wrapper.shared_memory
    return _has_separate_envs(env) and not resets_twice


def _find_time_limit(env: Any) -> int | None:
    """Return the number of steps after which a vector environment truncates an episode, `None` if it has no limit."""
    from gymnasium.vector import SyncVectorEnv

    specs = [env.spec]
    if _has_separate_envs(env):
        specs.insert(0, env.unwrapped.get_attr("spec")[0])
    for spec in specs:
        steps = None if spec is None else spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
        if steps is not None and steps > 0:
            return int(steps)
    if isinstance(env.unwrapped, SyncVectorEnv):
        try:
            # Set by the wrapper TimeLimit, also on an environment without a spec.
            return int(env.unwrapped.get_attr("_max_episode_steps")[0])
        except AttributeError:
            return None
    return None
