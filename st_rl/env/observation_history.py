"""Adds past observations as one more component of the observation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from st_rl.env.protocols import SegmentedEnv
from st_rl.env.utils import observe, split_step
from st_rl.env.vec_env import VecEnv
from st_rl.utils.tensors.segments import get_subobs_by_components, get_subobs_size


class ObservationHistory(VecEnv):
    """Appends the component `history`, shape `(length, D)`, oldest first, to the observation of an environment.

    It holds the named components (default: all) of the last `length` observations, the current one included; at the
    start of an episode its first observation is repeated. Encode it like any other component (`EncoderActorCritic`). A
    separate critic observation is unchanged. All other attributes are forwarded to the environment.
    """

    # Not forwarded: the task alone has other observations.
    task_id: str | None = None

    def __init__(self, env: VecEnv, length: int, components: Sequence[str] | None = None):
        if length < 1:
            raise ValueError(f"length={length}: a history needs at least one observation")
        if not isinstance(env, SegmentedEnv):
            raise ValueError("a history needs obs_segments: the environment must name the parts of its observation")
        segments, self.env = env.obs_segments, env
        self._env_segments = segments
        self.components = list(segments) if components is None else list(components)
        self.width = get_subobs_size(segments, self.components)
        self.num_envs, self.num_actions, self.device = env.num_envs, env.num_actions, env.device
        self.num_obs = env.num_obs + length * self.width
        self.num_privileged_obs = getattr(env, "num_privileged_obs", None)
        self.max_episode_length = env.max_episode_length
        self.obs_segments = {**segments, "history": (length, self.width)}
        critic_segments = getattr(env, "critic_obs_segments", getattr(env, "privileged_obs_segments", None))
        # Without a separate critic observation the critic reads the actor observation.
        self.critic_obs_segments = critic_segments if self.num_privileged_obs else self.obs_segments
        self.privileged_obs_segments = self.critic_obs_segments
        with torch.inference_mode(False):
            self._history = torch.zeros(self.num_envs, length, self.width, device=self.device)
        self._fill_history(self._observe()[0])

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only; `env` itself is missing while the object is being unpickled.
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def episode_length_buf(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Steps of each running episode `(N,)`; reads and sets the buffer of the environment."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.env.episode_length_buf = value

    @property
    def state_dict(self) -> Any:
        """Method that returns the state of environment and history; missing if the environment has none."""
        inner: Callable[[], Any] = self.__getattr__("state_dict")
        return lambda: {"env": inner(), "history": self._history.clone()}

    @property
    def load_state_dict(self) -> Any:
        """Method that restores a state; missing if the environment has none."""
        inner: Callable[[Any], None] = self.__getattr__("load_state_dict")

        def load(state: Mapping[str, Any]) -> None:
            inner(state["env"])
            self._history.copy_(state["history"])

        return load

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        """The newest observation `(N, O + length * D)` and its groups."""
        return self._append_history(*self._observe())

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """Reset every environment."""
        self.env.reset(*args, **kwargs)
        obs, groups = self._observe()
        self._fill_history(obs)
        return self._append_history(obs, groups)

    @torch.no_grad()
    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step the environment and append the history to its observations."""
        obs, critic_obs, rewards, dones, infos = split_step(self.env.step(actions))
        new = self._select(obs)[:, None]
        final = infos.get("final_observations")
        if isinstance(final, Mapping) and final.get("policy") is not None:
            shifted = torch.cat([self._history[:, 1:], self._select(final["policy"])[:, None]], dim=1)
            final = {**final, "policy": torch.cat([final["policy"], shifted.flatten(1)], dim=1)}
            infos = {**infos, "final_observations": final}
        is_first = (dones.reshape(-1, 1, 1) > 0).to(self._history.device)
        shifted = torch.cat([self._history[:, 1:], new], dim=1)
        self._history.copy_(torch.where(is_first, new.expand_as(shifted), shifted))
        groups = {**infos.get("observations", {}), **({} if critic_obs is None else {"critic": critic_obs})}
        obs, extras = self._append_history(obs, groups)
        return obs, rewards, dones, {**infos, **extras}

    def _observe(self) -> tuple[Tensor, dict[str, Any]]:
        obs, critic_obs, extras = observe(self.env)
        groups = dict(extras.get("observations", {}))
        return obs, groups if critic_obs is None else {**groups, "critic": critic_obs}

    def _select(self, obs: Tensor) -> Tensor:
        return get_subobs_by_components(obs, self.components, self._env_segments)

    def _fill_history(self, obs: Tensor) -> None:
        self._history.copy_(self._select(obs)[:, None].expand_as(self._history))

    def _append_history(self, obs: Tensor, groups: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        obs = torch.cat([obs, self._history.flatten(1)], dim=1)
        return obs, {"observations": {**groups, "policy": obs}}
