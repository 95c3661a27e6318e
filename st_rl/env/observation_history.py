"""Shows a policy the past as one more component of its observation."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from st_rl.env.utils import observe, split_step
from st_rl.env.vec_env import VecEnv
from st_rl.utils.segments import get_subobs_by_components, get_subobs_size


class ObservationHistory(VecEnv):
    """An environment whose observation ends with the component `history`, shape `(length, D)`, oldest first.

    It holds the named components, all by default, of the last `length` observations, this one included; an episode
    starts with its first observation repeated. Encode it like any other component (`EncoderActorCritic`). The critic's
    own observation stays as it is. Everything else of the environment is reached through this one.
    """

    def __init__(self, env: Any, length: int, components: Sequence[str] | None = None):
        if length < 1:
            raise ValueError(f"length={length}: a history needs at least one observation")
        segments = getattr(env, "obs_segments", None)
        if segments is None:
            raise ValueError("a history needs obs_segments: the environment must name the parts of its observation")
        self.env = env
        self.components = list(segments) if components is None else list(components)
        self.width = get_subobs_size(segments, self.components)
        self.num_envs, self.num_actions, self.device = env.num_envs, env.num_actions, env.device
        self.num_obs = env.num_obs + length * self.width
        self.num_privileged_obs = getattr(env, "num_privileged_obs", None)
        self.max_episode_length = env.max_episode_length
        self.obs_segments = {**segments, "history": (length, self.width)}
        critic_segments = getattr(env, "critic_obs_segments", getattr(env, "privileged_obs_segments", None))
        # A critic without an observation of its own sees what the actor sees.
        self.critic_obs_segments = critic_segments if self.num_privileged_obs else self.obs_segments
        self.privileged_obs_segments = self.critic_obs_segments
        with torch.inference_mode(False):
            self._history = torch.zeros(self.num_envs, length, self.width, device=self.device)
        self._start_over(self._observe()[0])

    def __getattr__(self, name: str) -> Any:
        # Only for what this object has not; without `env` there is nothing to ask, as while it is being copied.
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def episode_length_buf(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Steps of the running episodes; setting it sets those of the environment."""
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.env.episode_length_buf = value

    @property
    def state_dict(self) -> Any:
        """What gives the state of environment and history; missing where the environment has none to give."""
        inner = self.env.state_dict
        return lambda: {"env": inner(), "history": self._history.clone()}

    @property
    def load_state_dict(self) -> Any:
        """What takes the state back; missing where the environment has none to take."""
        inner = self.env.load_state_dict

        def load(state: Mapping[str, Any]) -> None:
            inner(state["env"])
            self._history.copy_(state["history"])

        return load

    def get_observations(self) -> tuple[Tensor, dict[str, Any]]:
        """The newest observation `(N, O + length * D)` and its groups."""
        return self._deliver(*self._observe())

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """Start a new episode of every robot."""
        self.env.reset(*args, **kwargs)
        obs, groups = self._observe()
        self._start_over(obs)
        return self._deliver(obs, groups)

    @torch.no_grad()
    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """A step of the environment, with the history of every robot."""
        obs, critic_obs, rewards, dones, infos = split_step(self.env.step(actions))
        new = self._seen(obs)[:, None]
        final = infos.get("final_observations")
        if isinstance(final, Mapping) and final.get("policy") is not None:
            followed = torch.cat([self._history[:, 1:], self._seen(final["policy"])[:, None]], dim=1)
            final = {**final, "policy": torch.cat([final["policy"], followed.flatten(1)], dim=1)}
            infos = {**infos, "final_observations": final}
        is_first = (dones.reshape(-1, 1, 1) > 0).to(self._history.device)
        followed = torch.cat([self._history[:, 1:], new], dim=1)
        self._history.copy_(torch.where(is_first, new.expand_as(followed), followed))
        groups = {**infos.get("observations", {}), **({} if critic_obs is None else {"critic": critic_obs})}
        obs, extras = self._deliver(obs, groups)
        return obs, rewards, dones, {**infos, **extras}

    def _observe(self) -> tuple[Tensor, dict[str, Any]]:
        obs, critic_obs, extras = observe(self.env)
        groups = dict(extras.get("observations", {}))
        return obs, groups if critic_obs is None else {**groups, "critic": critic_obs}

    def _seen(self, obs: Tensor) -> Tensor:
        return get_subobs_by_components(obs, self.components, self.env.obs_segments)

    def _start_over(self, obs: Tensor) -> None:
        self._history.copy_(self._seen(obs)[:, None].expand_as(self._history))

    def _deliver(self, obs: Tensor, groups: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        obs = torch.cat([obs, self._history.flatten(1)], dim=1)
        return obs, {"observations": {**groups, "policy": obs}}
