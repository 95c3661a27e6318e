"""Tiny vectorised environments in pure torch that the whole test-suite shares.

`EchoEnv` is the task: repeat the target that the observation shows (`memory=True`: that the one before showed).
The others deliver the same task through another face of the interface: `ClientEnv` as st_gym's wrapper does,
`LegacyEnv` in the older form, `TensorDictEnv` with TensorDict observations.

Nothing is written in place, so the environments may be stepped inside and outside of inference mode by turns.
"""

from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import torch

from st_rl.env import VecEnv

BEST_REWARD = 1.0
"""Reward of a step with an action equal to the target."""
BLIND_REWARD = 2.0 / 3.0
"""Mean reward of the best action that ignores the target (zero, for targets uniform in [-1, 1])."""


class EchoEnv(VecEnv):
    """Rewards `1 - mean((action - target)^2)`; the target is the first `num_actions` numbers of the observation.

    The remaining numbers are noise. With `memory=True` the reward compares with the target of the *previous*
    observation; on the first step of an episode, which has none, with zero.

    Args:
        num_envs: number of environments `N`.
        num_obs: observation width `O`, at least `num_actions`.
        num_actions: action width `A`.
        episode_length: steps until an episode times out.
        seed: seed of the environment's own generator.
        memory: the target to repeat is the one of the previous observation.
        num_privileged_obs: width of group `critic`; `None` or 0 delivers no such group. It holds the observation, the
            target to repeat and the share of the episode done, cut or padded with zeros to the width.
        termination_prob: probability that a step ends the episode without a time-out.
        stagger: start environment `i` at step `i % episode_length` of its episode.
        time_outs: deliver `infos["time_outs"]`.
        final_observations: deliver `infos["final_observations"]`.
        dones_dtype: dtype of `dones`.
        nan_at_step: index of the call of `step()` (from 0) in which one number becomes NaN.
        inf_at_step: the same with infinity.
        inject_into: where the bad number goes: `obs`, `critic` or `rewards` (row `inject_row`).
        inject_row: environment that gets the bad number.
        device: device of all tensors.
    """

    def __init__(
        self,
        num_envs: int = 8,
        num_obs: int = 4,
        num_actions: int = 2,
        episode_length: int = 10,
        seed: int = 0,
        memory: bool = False,
        num_privileged_obs: int | None = None,
        termination_prob: float = 0.0,
        stagger: bool = False,
        time_outs: bool = True,
        final_observations: bool = True,
        dones_dtype: torch.dtype = torch.bool,
        nan_at_step: int | None = None,
        inf_at_step: int | None = None,
        inject_into: str = "obs",
        inject_row: int = 0,
        device: str = "cpu",
    ) -> None:
        if num_obs < num_actions:
            raise ValueError(f"num_obs={num_obs} cannot show a target of {num_actions} numbers")
        if inject_into not in ("obs", "critic", "rewards"):
            raise ValueError(f"inject_into={inject_into!r} must be obs, critic or rewards")
        self.num_envs, self.num_obs, self.num_actions = num_envs, num_obs, num_actions
        self.num_privileged_obs = num_privileged_obs
        self.max_episode_length = episode_length
        self.device = device
        self.memory, self.termination_prob = memory, termination_prob
        self.delivers_time_outs, self.delivers_final_observations = time_outs, final_observations
        self.dones_dtype = dones_dtype
        self.nan_at_step, self.inf_at_step = nan_at_step, inf_at_step
        self.inject_into, self.inject_row = inject_into, inject_row
        self.obs_segments = OrderedDict(target=num_actions, noise=(num_obs - num_actions,))
        self.generator = torch.Generator().manual_seed(seed)
        self.num_steps_done = 0
        self.previous_target = torch.zeros(num_envs, num_actions, device=device)
        start = torch.arange(num_envs, device=device) % episode_length
        self.start_length = start if stagger else torch.zeros_like(start)
        self.episode_length_buf = self.start_length
        self.obs = self._new_observation()

    @property
    def target(self) -> torch.Tensor:
        """The optimal action `(N, A)` of the next step."""
        return self.previous_target if self.memory else self.obs[:, : self.num_actions]

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.obs, {"observations": self._groups(self.obs, self.target, self.episode_length_buf)}

    def reset(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        self.obs = self._new_observation()
        self.previous_target = torch.zeros_like(self.previous_target)
        self.episode_length_buf = self.start_length
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        rewards = 1.0 - (actions - self.target).square().mean(dim=-1)
        length = self.episode_length_buf + 1
        time_outs = length >= self.max_episode_length
        terminated = self._uniform(self.num_envs) < self.termination_prob
        time_outs = time_outs & ~terminated
        dones = time_outs | terminated

        shown = self.obs[:, : self.num_actions]
        final_obs, first_obs = self._new_observation(), self._new_observation()
        final_groups = self._groups(final_obs, shown if self.memory else final_obs[:, : self.num_actions], length)
        self.obs = torch.where(dones[:, None], first_obs, final_obs)
        self.previous_target = torch.where(dones[:, None], 0.0, shown)
        self.episode_length_buf = torch.where(dones, 0, length)

        infos: dict[str, Any] = {"log": {"echo_error": (1.0 - rewards).mean()}}
        if self.delivers_time_outs:
            infos["time_outs"] = time_outs
        if self.delivers_final_observations:
            infos["final_observations"] = final_groups
        groups = self._groups(self.obs, self.target, self.episode_length_buf)
        obs, groups, rewards = self._inject(self.obs, groups, rewards)
        infos["observations"] = groups
        self.num_steps_done += 1
        return obs, rewards, dones.to(self.dones_dtype), infos

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as tensors and numbers."""
        return {
            "generator": self.generator.get_state(),
            "obs": self.obs.clone(),
            "previous_target": self.previous_target.clone(),
            "episode_length_buf": self.episode_length_buf.clone(),
            "num_steps_done": self.num_steps_done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state taken with `state_dict()`."""
        self.generator.set_state(state["generator"].cpu())
        self.obs = state["obs"].to(self.device, copy=True)
        self.previous_target = state["previous_target"].to(self.device, copy=True)
        self.episode_length_buf = state["episode_length_buf"].to(self.device, copy=True)
        self.num_steps_done = state["num_steps_done"]

    def _uniform(self, *size: int) -> torch.Tensor:
        """Draw from [0, 1) with the environment's own generator."""
        return torch.rand(*size, generator=self.generator).to(self.device)

    def _new_observation(self) -> torch.Tensor:
        """Draw an observation `(N, O)` uniform in [-1, 1]."""
        return 2.0 * self._uniform(self.num_envs, self.num_obs) - 1.0

    def _groups(self, obs: torch.Tensor, target: torch.Tensor, length: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the observation groups."""
        if not self.num_privileged_obs:
            return {"policy": obs}
        share_done = length[:, None] / self.max_episode_length
        padding = obs.new_zeros(self.num_envs, self.num_privileged_obs)
        critic_obs = torch.cat([obs, target, share_done, padding], dim=-1)[:, : self.num_privileged_obs]
        return {"policy": obs, "critic": critic_obs}

    def _inject(
        self, obs: torch.Tensor, groups: dict[str, torch.Tensor], rewards: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
        """Insert the planned non-finite value into the results of this step; the state stays finite."""
        bad_numbers = {self.nan_at_step: float("nan"), self.inf_at_step: float("inf")}
        if self.num_steps_done not in bad_numbers:
            return obs, groups, rewards
        delivered = {"obs": obs, "critic": groups.get("critic"), "rewards": rewards}
        tensor = delivered[self.inject_into]
        if tensor is None:
            raise ValueError("inject_into='critic' needs num_privileged_obs")
        tensor = tensor.clone()
        tensor[self.inject_row] = bad_numbers[self.num_steps_done]
        delivered[self.inject_into] = tensor
        groups = {**groups, "policy": delivered["obs"]}
        if delivered["critic"] is not None:
            groups["critic"] = delivered["critic"]
        return delivered["obs"], groups, delivered["rewards"]


class ClientEnv(VecEnv):
    """The echo task behind a wrapper like that of st_gym.

    Sizes are read-only properties, `episode_length_buf` a settable one; `extras` is one dict that lives as long as the
    environment and is mutated in place, with `log` filled before the first step; `dones` are int64; segments are plain
    ints; unused groups lie among the observations. `ref_motion` shows features near `EXPERT_FEATURE`,
    `ref_obs` the two latest actions spread over the same features, so a style reward draws actions to that number.
    """

    REF_DIM = 21
    EXPERT_FEATURE = 0.5

    def __init__(
        self,
        num_envs: int = 8,
        num_obs: int = 12,
        num_actions: int = 3,
        num_privileged_obs: int | None = 10,
        episode_length: int = 10,
        seed: int = 0,
        termination_prob: float = 0.1,
        device: str = "cpu",
        **kwargs: Any,
    ) -> None:
        self.env = EchoEnv(
            num_envs,
            num_obs,
            num_actions,
            episode_length,
            seed,
            num_privileged_obs=num_privileged_obs,
            termination_prob=termination_prob,
            final_observations=False,
            dones_dtype=torch.int64,
            device=device,
            **kwargs,
        )
        self.device = device
        self.max_episode_length = episode_length
        self.cfg = SimpleNamespace(decimation=4, seed=seed)
        self.obs_segments = OrderedDict({"obs": num_actions, "privileged_obs": num_obs - num_actions})
        self.privileged_obs_segments = OrderedDict({"critic_obs": num_privileged_obs or num_obs})
        self.obs_buf: deque[torch.Tensor] = deque(maxlen=2)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.tracking_error = torch.zeros(1, device=device)
        self.CoT = torch.zeros(1, device=device)
        self.features = torch.zeros(num_envs, 2, self.REF_DIM, device=device)
        self.extras: dict[str, Any] = {"log": {"Episode_Reward/echo": 0.0, "Metrics/velocity_error": 0.0}}
        self._refresh(*self.env.get_observations(), self._expert())

    @property
    def num_envs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.num_envs

    @property
    def num_obs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.num_obs

    @property
    def num_privileged_obs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.num_privileged_obs or 0

    @property
    def num_actions(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.num_actions

    @property
    def episode_length_buf(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.env.episode_length_buf = value

    @property
    def unwrapped(self) -> EchoEnv:
        return self.env

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        return self.obs_buf[-1], self.extras

    def reset(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        self.features = torch.zeros_like(self.features)
        self._refresh(*self.env.reset(), self._expert())
        return self.get_observations()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        error = (actions - self.env.target).square().mean(dim=-1).sqrt()
        obs, rewards, dones, infos = self.env.step(actions)
        repeats = -(-self.REF_DIM // self.num_actions)
        latest = actions.clamp(-2.0, 2.0).repeat(1, repeats)[:, : self.REF_DIM]
        self.features = torch.stack([self.features[:, 1], latest], dim=1)
        self.tracking_error, self.CoT = error.mean().reshape(1), actions.abs().mean().reshape(1)
        self._refresh(obs, infos, self._expert())
        self.extras["time_outs"] = infos["time_outs"]
        self.extras["log"]["Episode_Reward/echo"] = rewards.mean()
        self.extras["log"]["Metrics/velocity_error"] = error.mean().item()
        return obs, rewards, dones, self.extras

    def state_dict(self) -> dict[str, Any]:
        return {
            "echo": self.env.state_dict(),
            "features": self.features.clone(),
            "ref_motion": self.extras["ref_motion"].clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.env.load_state_dict(state["echo"])
        self.features = state["features"].to(self.device, copy=True)
        obs, infos = self.env.get_observations()
        self._refresh(obs, infos, state["ref_motion"].to(self.device, copy=True))

    def _refresh(self, obs: torch.Tensor, infos: dict[str, Any], ref_motion: torch.Tensor) -> None:
        """Write the new observations into the persistent `extras`."""
        self.obs_buf.append(obs)
        self.extras["observations"] = {
            **infos["observations"],
            "ref_obs": self.features,
            "commands": torch.ones(self.num_envs, 3, device=self.device),
            "camera": torch.zeros(self.num_envs, 4, 4, 3, dtype=torch.uint8, device=self.device),
        }
        self.extras["ref_motion"] = ref_motion

    def _expert(self) -> torch.Tensor:
        """Draw an expert transition `(N, 2 * REF_DIM)`."""
        return self.EXPERT_FEATURE + 0.1 * (self.env._uniform(self.num_envs, 2 * self.REF_DIM) - 0.5)


class LegacyEnv(EchoEnv):
    """The echo task in the older form: tensors from `get_observations()`, five values from `step()`."""

    def get_observations(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.obs

    def get_privileged_observations(self) -> torch.Tensor | None:
        return super().get_observations()[1]["observations"].get("critic")

    def reset(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().reset()
        return self.get_observations(), self.get_privileged_observations()

    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, dict[str, Any]]:
        obs, rewards, dones, infos = super().step(actions)
        groups = infos.pop("observations")
        infos["episode"] = infos.pop("log")
        return obs, groups.get("critic"), rewards, dones, infos


class TensorDictEnv(EchoEnv):
    """The echo task with TensorDict observations, as newer Isaac Lab delivers them."""

    def get_observations(self) -> Any:
        return self._tensordict(super().get_observations()[1]["observations"])

    def reset(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        super().reset()
        return self.get_observations(), {}

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        _, rewards, dones, infos = super().step(actions)
        return self._tensordict(infos.pop("observations")), rewards, dones, infos

    def _tensordict(self, groups: dict[str, torch.Tensor]) -> Any:
        """Pack the groups, with one unused group."""
        from tensordict import TensorDict

        extra = torch.zeros(self.num_envs, 2, device=self.device)
        return TensorDict({**groups, "debug": extra}, batch_size=[self.num_envs])
