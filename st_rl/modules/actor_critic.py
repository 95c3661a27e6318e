"""The feed-forward actor-critic, base of every policy."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from st_rl.modules.networks.gaussian import DiagonalGaussian, SquashedGaussian
from st_rl.modules.networks.memory import Memory, preserve_hidden_states
from st_rl.modules.utils import ACTIVATIONS, resolve_module
from st_rl.utils.config import Configurable, accepted_keys, report_unused_keys
from st_rl.utils.log import logger
from st_rl.utils.trajectories import unpad_trajectories

__all__ = ["Actor", "ActorCritic", "Critic", "get_activation"]


def get_activation(act_name: str) -> nn.Module | None:
    """An activation by its short name; None with a warning when the name is unknown."""
    if act_name not in ACTIVATIONS:
        logger.warning(f"unknown activation '{act_name}'; known: {', '.join(ACTIVATIONS)}")
        return None
    return ACTIVATIONS[act_name]()


def make_activation(name: str) -> nn.Module:
    """An activation by its short name or torch class name; ValueError when the name is unknown."""
    make = resolve_module(str(name), "activation")
    try:
        return make()
    except TypeError as error:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"activation '{name}' is not one that needs no arguments; use {known}") from error


def _in_place(activation: nn.Module) -> nn.Module:
    """The activation, overwriting the output of the layer before it where it can: nobody else reads that."""
    if isinstance(getattr(activation, "inplace", None), bool):
        setattr(activation, "inplace", True)  # noqa: B010  (torch types modules' attributes as tensors)
    return activation


def build_head(
    input_size: int,
    hidden_sizes: Sequence[int],
    output_size: int,
    activation: str,
    output_activation: str | None = None,
) -> nn.Sequential:
    """Alternating Linear and activation, Linear layers at the even indices."""
    layers: list[nn.Module] = []
    for hidden_size in hidden_sizes:
        layers += [nn.Linear(int(input_size), int(hidden_size)), _in_place(make_activation(activation))]
        input_size = hidden_size
    layers.append(nn.Linear(int(input_size), int(output_size)))
    if output_activation is not None:
        layers.append(make_activation(output_activation))
    return nn.Sequential(*layers)


def run_head(head: nn.Sequential, inputs: Tensor) -> Tensor:
    """The output of a head, `(..., I) -> (..., O)`; its last layer is exact where autocast computes the others in less.

    A mean rounded to bfloat16 would change the probability of an action by more than a gradient step does.
    """
    if not torch.is_autocast_enabled(inputs.device.type):
        return head(inputs)
    last = max(place for place, layer in enumerate(head) if isinstance(layer, nn.Linear))
    hidden = head[:last](inputs)
    with torch.autocast(inputs.device.type, enabled=False):
        return head[last:](hidden.to(next(head[last].parameters()).dtype))


class ActorCritic(nn.Module, Configurable):
    """A Gaussian actor and a critic, each a multi-layer perceptron.

    Every policy stands on two hooks: `actor_input` and `critic_input` say what goes into the two heads. A mixin
    overrides the hook it cares about, transforms the observation and calls `super()`; read left to right, the bases
    of a class are the order in which an observation is transformed. `act`, `act_inference` and `evaluate` are written
    once, here.
    """

    is_recurrent = False
    infers_through_act = False
    """Whether `act_inference` calls `act(inference=True)`, or `act(inference=True)` calls `act_inference`."""
    action_bound: Tensor | None

    def __init__(
        self,
        num_actor_obs: int | None = None,
        num_critic_obs: int | None = None,
        num_actions: int | None = None,
        actor_hidden_dims: Sequence[int] = [256, 256, 256],
        critic_hidden_dims: Sequence[int] = [256, 256, 256],
        activation: str = "elu",
        init_noise_std: float = 1.0,
        mu_activation: str | None = None,
        obs_segments: Mapping[str, Any] | None = None,
        critic_obs_segments: Mapping[str, Any] | None = None,
        privileged_obs_segments: Mapping[str, Any] | None = None,
        min_noise_std: float | None = None,
        max_noise_std: float | None = None,
        action_bound: float | Sequence[float] | None = None,
        **kwargs: Any,
    ):
        super().__init__()
        sizes = _resolve_sizes(num_actor_obs, num_critic_obs, num_actions, kwargs)
        self.num_actor_obs, self.num_critic_obs, self.num_actions = sizes
        rnn_type = kwargs.pop("rnn_type", None)
        self.rnn_type: str | None = rnn_type.lower() if isinstance(rnn_type, str) else None
        report_unused_keys(kwargs, type(self).__name__, accepted_keys(type(self)), bool(kwargs.pop("strict", False)))

        self.obs_segments = obs_segments
        critic_segments = critic_obs_segments if critic_obs_segments is not None else privileged_obs_segments
        self.critic_obs_segments = critic_segments if critic_segments is not None else obs_segments
        self.actor = build_head(self.num_actor_obs, actor_hidden_dims, self.num_actions, activation, mu_activation)
        self.critic = build_head(self.num_critic_obs, critic_hidden_dims, 1, activation)
        if init_noise_std < 0 or (min_noise_std or 0.0) > (math.inf if max_noise_std is None else max_noise_std):
            raise ValueError(
                f"init_noise_std={init_noise_std}, min_noise_std={min_noise_std}, max_noise_std={max_noise_std}: give "
                "a deviation that is not negative, and a floor below the ceiling"
            )
        self.std = nn.Parameter(float(init_noise_std) * torch.ones(self.num_actions))
        self.min_noise_std, self.max_noise_std = min_noise_std, max_noise_std
        self.clip_std()
        # Not in the state dict: it is a setting, and policies without it have no such key.
        bound = None if action_bound is None else _positive_bound(action_bound, self.num_actions)
        self.register_buffer("action_bound", bound, persistent=False)
        # The distribution of the last act; there is none before the first one.
        self.distribution: Normal | None = None
        # Whether `act` draws from the distribution that it updates.
        self._samples_actions = True
        # How many numbers a sample needs beside those for its action: one for each estimate that may replace the truth.
        self._num_lots = 0
        # They, `(..., L)` and normally distributed, while `act` is at work.
        self._lots: Tensor | None = None

    @property
    def privileged_obs_segments(self) -> Mapping[str, Any] | None:
        """The historical name of `critic_obs_segments`."""
        return self.critic_obs_segments

    @privileged_obs_segments.setter
    def privileged_obs_segments(self, segments: Mapping[str, Any] | None) -> None:
        self.critic_obs_segments = segments

    @property
    def acting_settings(self) -> tuple[tuple[str, Any], ...]:
        """Names and values of the numbers that acting reads and a training may change; the engine watches them."""
        return ()

    # ---- the two hooks -------------------------------------------------------------------------------------------

    def actor_input(
        self, observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, inference: bool = False
    ) -> Tensor:
        """What goes into the actor head, `(..., O) -> (..., I)`; nothing random in it for `inference`."""
        return observations

    def critic_input(
        self, critic_observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None
    ) -> Tensor:
        """What goes into the critic head, `(..., Oc) -> (..., Ic)`."""
        return critic_observations

    # ---- acting and evaluating -----------------------------------------------------------------------------------

    def update_distribution(self, observations: Tensor) -> None:
        """Set the action distribution for inputs of the actor head."""
        mean = run_head(self.actor, observations)
        bound = self.action_bound
        self.distribution = (
            DiagonalGaussian(mean, self.std) if bound is None else SquashedGaussian(mean, self.std, bound)
        )

    def act(
        self,
        observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: Any = None,
        inference: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Update the distribution and draw actions `(..., A)` from it; for `inference` the same as `act_inference`."""
        if inference:
            if masks is not None or hidden_states is not None:
                raise AssertionError("act(inference=True) is for single steps: it takes no masks and no hidden_states")
            return self._act_by_mean(observations) if self.infers_through_act else self.act_inference(observations)
        noise = self._sample_noise(observations)
        self.update_distribution(self.actor_input(observations, masks=masks, hidden_states=hidden_states))
        self._lots = None
        mean = self.action_mean.detach()
        if not self._samples_actions:
            return self.bounded(mean)
        # Not Normal.sample: it checks the standard deviation on the host, which waits for a GPU.
        if noise is None:
            noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device)
        elif masks is not None and self.is_recurrent:
            noise = unpad_trajectories(noise, masks)
        return self.bounded(mean + self.action_std.detach() * noise)

    def _sample_noise(self, observations: Tensor) -> Tensor | None:
        """Where acting on `(..., O)` needs lots, draw them and what is for the actions, `(..., A)`, which is returned.

        At once: torch before 2.13 does not keep the order of several draws in compiled code (pytorch issue 181136).
        """
        if self._num_lots == 0:
            return None
        num_actions = self.num_actions if self._samples_actions else 0
        width = self._num_lots + num_actions
        numbers = torch.randn(*observations.shape[:-1], width, dtype=observations.dtype, device=observations.device)
        self._lots = numbers[..., num_actions:]
        return numbers[..., :num_actions]

    def reserve_noise_column(self) -> int:
        """Ask for one more number a sample; the place of the number."""
        self._num_lots += 1
        return self._num_lots - 1

    def noise_column(self, place: int | None) -> Tensor | None:
        """The numbers `(...)` of a reserved place, while `act` is at work; nobody has drawn any otherwise."""
        return None if self._lots is None or place is None else self._lots[..., place]

    @contextmanager
    def no_sampling(self) -> Iterator[None]:
        """Inside, `act` returns the mean: who learns from stored actions wants the distribution and no new actions."""
        self._samples_actions = False
        try:
            yield
        finally:
            self._samples_actions = True

    def act_inference(self, observations: Tensor) -> Tensor:
        """The mean action `(..., A)`; the distribution stays as it was."""
        return self.act(observations, inference=True) if self.infers_through_act else self._act_by_mean(observations)

    def _act_by_mean(self, observations: Tensor) -> Tensor:
        return self.bounded(self.actor(self.actor_input(observations, inference=True)))

    def bounded(self, actions: Tensor) -> Tensor:
        """Actions `(..., A)` that a bounded policy squashes into its bounds; others leave them as they are."""
        return actions if self.action_bound is None else self.action_bound * torch.tanh(actions)

    def evaluate(
        self, critic_observations: Tensor, masks: Tensor | None = None, hidden_states: Any = None, **kwargs: Any
    ) -> Tensor:
        """State values `(..., 1)`."""
        return run_head(self.critic, self.critic_input(critic_observations, masks=masks, hidden_states=hidden_states))

    def forward(self, obs: Tensor) -> tuple[Normal, Tensor]:
        """The action distribution and the value of one observation that serves actor and critic alike."""
        return self._assess(obs, obs)

    def evaluate_actions(
        self, obs: Tensor, actions: Tensor, critic_obs: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities and entropies `(...)` of given actions, and values `(..., 1)`."""
        _, values = self._assess(obs, obs if critic_obs is None else critic_obs)
        return self.get_actions_log_prob(actions), self.entropy, values

    def _assess(self, obs: Tensor, critic_obs: Tensor) -> tuple[Normal, Tensor]:
        """Set the action distribution without acting; returns it and the values `(..., 1)`."""
        # An act that raised left its numbers; a try in `act` would keep the compiler from going on after a memory.
        self._lots = None
        with self.preserve_hidden_states():
            self.update_distribution(self.actor_input(obs))
            return self._distribution, self.critic(self.critic_input(critic_obs))

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of actions `(..., A) -> (...)` under the last distribution."""
        return self._distribution.log_prob(actions).sum(dim=-1)

    @property
    def _distribution(self) -> Normal:
        if self.distribution is None:
            raise RuntimeError("the policy has no action distribution yet: call act(observations) first")
        return self.distribution

    @property
    def action_mean(self) -> Tensor:
        """Mean of the last distribution, `(..., A)`; of the Gaussian before squashing where actions are bounded."""
        return self._distribution.mean

    @property
    def action_std(self) -> Tensor:
        """Standard deviation of the last distribution, `(..., A)`, before it is squashed as well."""
        return self._distribution.stddev

    @property
    def entropy(self) -> Tensor:
        """Entropy of the last distribution, summed over actions, `(...)`."""
        return self._distribution.entropy().sum(dim=-1)

    @torch.no_grad()
    def clip_std(self, min: float | Tensor | None = None, max: float | Tensor | None = None) -> None:
        """Clamp the standard deviation in place, to these limits and to those of the policy."""
        for low in (min, self.min_noise_std):
            if low is not None:
                self.std.clamp_(min=low)
        for high in (max, self.max_noise_std):
            if high is not None:
                self.std.clamp_(max=high)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy gets: all but what the last act left, whose tensors may hang on a graph that cannot be copied."""
        return {**self.__dict__, "distribution": None, "_lots": None}

    # ---- memory --------------------------------------------------------------------------------------------------

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget the memory of finished robots; a feed-forward policy has none."""

    def get_hidden_states(self) -> Any:
        """The memory's state before the next step; None for a feed-forward policy."""
        return None

    def _memories(self) -> dict[str, Memory]:
        return {name: module for name, module in self.named_modules() if isinstance(module, Memory)}

    def clear_hidden_states(self) -> None:
        """Start all memories anew, as before the first step."""
        for memory in self._memories().values():
            memory.hidden_states = None

    def pin_hidden_states(self) -> None:
        """Keep the present state of all memories where the next rollout will look for it."""
        for memory in self._memories().values():
            memory.settle()

    def hidden_state_dict(self) -> dict[str, list[Tensor]]:
        """The state of every memory as plain lists of tensors, for a checkpoint; those without a state are left out."""
        return {
            name: memory.state_leaves() for name, memory in self._memories().items() if memory.hidden_states is not None
        }

    def load_hidden_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Continue from what `hidden_state_dict` gave."""
        for name, memory in self._memories().items():
            memory.load_state_leaves(state.get(name))

    def preserve_hidden_states(self) -> AbstractContextManager[None]:
        """Whatever is evaluated inside leaves every memory of the policy as it was."""
        return preserve_hidden_states(self)

    @staticmethod
    def init_weights(sequential: nn.Sequential, scales: Sequence[float]) -> None:
        """Orthogonal initialisation of the Linear layers with the given gains."""
        linears = [module for module in sequential if isinstance(module, nn.Linear)]
        for module, scale in zip(linears, scales):
            nn.init.orthogonal_(module.weight, gain=scale)


def _resolve_sizes(
    num_actor_obs: int | None, num_critic_obs: int | None, num_actions: int | None, aliases: dict[str, Any]
) -> tuple[int, int, int]:
    """The three sizes, from the production signature or from `(obs_dim, act_dim)`; removes the aliases it used."""
    obs_dim, act_dim = aliases.pop("obs_dim", None), aliases.pop("act_dim", None)
    if num_actions is None and act_dim is None and num_actor_obs is not None and num_critic_obs is not None:
        num_actor_obs, num_critic_obs, num_actions = num_actor_obs, num_actor_obs, num_critic_obs
    num_actor_obs = obs_dim if num_actor_obs is None else num_actor_obs
    num_critic_obs = obs_dim if num_critic_obs is None else num_critic_obs
    num_actions = act_dim if num_actions is None else num_actions
    if num_actor_obs is None or num_critic_obs is None or num_actions is None:
        raise TypeError(
            "a policy needs its sizes: (num_actor_obs, num_critic_obs, num_actions), or obs_dim=... and act_dim=...; "
            f"got num_actor_obs={num_actor_obs}, num_critic_obs={num_critic_obs}, num_actions={num_actions}"
        )
    return int(num_actor_obs), int(num_critic_obs), int(num_actions)


def _positive_bound(bound: float | Sequence[float], num_actions: int) -> Tensor:
    """The largest action `(A,)`, given once for all or for each; ValueError when it is not positive."""
    limits = torch.as_tensor(bound, dtype=torch.float32)
    if limits.numel() not in (1, num_actions):
        raise ValueError(
            f"action_bound={bound} has {limits.numel()} numbers for {num_actions} actions: give one, or each"
        )
    limits = limits.expand(num_actions).clone()
    if not bool((limits > 0).all()):
        raise ValueError(f"action_bound={bound} must be positive: actions lie between minus and plus the bound")
    return limits


class Actor(nn.Module):
    """A small Gaussian actor for first experiments; no policy of this library uses it."""

    def __init__(self, obs_dim: int, act_dim: int):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean = nn.Linear(64, act_dim)
        self.log_std = nn.Parameter(torch.zeros(act_dim))

    def forward(self, obs: Tensor) -> Normal:
        """Return the action distribution of observations `(..., obs_dim)`."""
        return Normal(self.mean(self.fc(obs)), self.log_std.exp())


class Critic(nn.Module):
    """A small value network for first experiments; no policy of this library uses it."""

    def __init__(self, obs_dim: int):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs: Tensor) -> Tensor:
        """Return state values `(..., 1)` of observations `(..., obs_dim)`."""
        return self.fc(obs)
