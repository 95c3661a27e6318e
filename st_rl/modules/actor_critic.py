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
from st_rl.modules.policy import HiddenState
from st_rl.modules.utils import ACTIVATIONS, resolve_module
from st_rl.utils.config import Configurable, accepted_keys, report_unused_keys
from st_rl.utils.log import logger
from st_rl.utils.tensors.trajectories import unpad_trajectories

__all__ = ["Actor", "ActorCritic", "Critic", "get_activation"]

NO_DISTRIBUTION = "the policy has no action distribution yet: call act(observations) first"


# Limits of a standard deviation that depends on the state, as in rsl_rl.
LOWEST_STD, HIGHEST_STD = 1e-6, 1e6
# Names of the modules that only the critic uses.
CRITIC_PREFIXES = ("critic.", "memory_c.", "critic_encoders.")
# Gains of the orthogonal initialization: small first actions, whatever the observation.
HIDDEN_GAIN, ACTION_GAIN, VALUE_GAIN = math.sqrt(2.0), 0.01, 1.0


def get_activation(act_name: str) -> nn.Module | None:
    """Return an activation by its short name; None with a warning for an unknown name."""
    if act_name not in ACTIVATIONS:
        logger.warning(f"unknown activation '{act_name}'; known: {', '.join(ACTIVATIONS)}")
        return None
    return ACTIVATIONS[act_name]()


def make_activation(name: str, inplace: bool = False) -> nn.Module:
    """Return an activation by its short name or torch class name; ValueError for an unknown name."""
    make = resolve_module(str(name), "activation")
    try:
        activation = make()
    except TypeError as error:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"activation '{name}' needs arguments; use one that does not: {known}") from error
    if inplace and "inplace" in vars(activation):
        vars(activation)["inplace"] = True
    return activation


def build_head(
    input_size: int,
    hidden_sizes: Sequence[int],
    output_size: int,
    activation: str,
    output_activation: str | None = None,
) -> nn.Sequential:
    """Build alternating Linear and activation layers, Linear layers at the even indices.

    A hidden size of -1 means the input size.
    """
    layers: list[nn.Module] = []
    for hidden_size in [input_size if size == -1 else size for size in hidden_sizes]:
        # In place: only the activation reads the output of the layer before it.
        layers += [nn.Linear(int(input_size), int(hidden_size)), make_activation(activation, inplace=True)]
        input_size = hidden_size
    layers.append(nn.Linear(int(input_size), int(output_size)))
    if output_activation is not None:
        layers.append(make_activation(output_activation))
    return nn.Sequential(*layers)


@torch.no_grad()
def init_orthogonal(head: nn.Sequential, output_gain: float) -> None:
    """Initialize all Linear layers with orthogonal weights and zero biases, the last one with its own gain."""
    layers = [layer for layer in head if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, output_gain if layer is layers[-1] else HIDDEN_GAIN)
        nn.init.zeros_(layer.bias)


def run_head(head: nn.Sequential, inputs: Tensor) -> Tensor:
    """Run a head under autocast, `(..., I) -> (..., O)`, with its last layer in full precision.

    A mean rounded to bfloat16 would change the probability of an action by more than a gradient step does.
    """
    last = max(index for index, layer in enumerate(head) if isinstance(layer, nn.Linear))
    features = head[:last](inputs)
    with torch.autocast(inputs.device.type, enabled=False):
        return head[last:](features.to(next(head[last].parameters()).dtype))


class ActorCritic(nn.Module, Configurable):
    """A Gaussian actor and a critic, each a multi-layer perceptron.

    Every policy is built on two hooks: `actor_input` and `critic_input` return what goes into the two heads. A mixin
    overrides one of them, transforms the observation and calls `super()`; read left to right, the bases of a class are
    the order in which an observation is transformed. `act`, `act_inference` and `evaluate` are written once, here.
    """

    is_recurrent = False
    infers_through_act = False
    """Whether `act_inference` calls `act(inference=True)`, or `act(inference=True)` calls `act_inference`."""
    action_bound: Tensor | None
    log_std: Tensor

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
        noise_std_type: str = "scalar",
        orthogonal_init: bool = False,
        critic_activation: str | None = None,
        learn_noise_std: bool = True,
        state_dependent_std: bool = False,
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
        self.critic = build_head(self.num_critic_obs, critic_hidden_dims, 1, critic_activation or activation)
        if orthogonal_init:
            for head, gain in ((self.actor, ACTION_GAIN), (self.critic, VALUE_GAIN)):
                init_orthogonal(head, gain)
        self.min_noise_std, self.max_noise_std = min_noise_std, max_noise_std
        self.noise_std_type = noise_std_type
        self._register_std(float(init_noise_std), learn_noise_std, state_dependent_std)
        # Not in the state dict: it is a setting, and policies without it have no such key.
        self.register_buffer("action_bound", _positive_bound(action_bound, self.num_actions), persistent=False)
        # The distribution of the last act; None before the first one.
        self.distribution: Normal | None = None
        self._samples_actions = True
        # Columns of noise that `act` samples after those for the actions: one for each head that replaces components.
        self._num_noise_columns = 0
        # Noise `(..., L)` of these columns; only set while `act` runs.
        self._noise: Tensor | None = None

    def _register_std(self, init_noise_std: float, is_learned: bool, is_state_dependent: bool) -> None:
        """Register the parameter `std`, or `log_std`, `(A,)`, or the layer `std_head` that computes one of them."""
        low, high, noise_std_type = self.min_noise_std, self.max_noise_std, self.noise_std_type
        if init_noise_std < 0 or (low or 0.0) > (math.inf if high is None else high):
            raise ValueError(
                f"init_noise_std={init_noise_std}, min_noise_std={low}, max_noise_std={high}: give a deviation that is "
                "not negative, and a minimum below the maximum"
            )
        if noise_std_type not in ("scalar", "log"):
            raise ValueError(f"noise_std_type='{noise_std_type}'; use 'scalar' or 'log'")
        if noise_std_type == "log" and init_noise_std <= 0:
            raise ValueError(f"noise_std_type='log' needs init_noise_std above 0, got {init_noise_std}")
        if is_state_dependent and not is_learned:
            raise ValueError("state_dependent_std=True and learn_noise_std=False exclude each other; leave one out")
        initial = init_noise_std if noise_std_type == "scalar" else math.log(init_noise_std)
        # Its output for the features of the last hidden layer is the standard deviation, or the logarithm of it.
        self.std_head: nn.Linear | None = None
        if is_state_dependent:
            last = [layer for layer in self.actor if isinstance(layer, nn.Linear)][-1]
            self.std_head = nn.Linear(last.in_features, self.num_actions)
            nn.init.zeros_(self.std_head.weight)
            nn.init.constant_(self.std_head.bias, initial)
            return
        name = "std" if noise_std_type == "scalar" else "log_std"
        self.register_parameter(name, nn.Parameter(initial * torch.ones(self.num_actions), requires_grad=is_learned))
        self.clip_std()

    @property
    def std(self) -> Tensor:
        """Standard deviation `(A,)`: a parameter, or with `noise_std_type="log"` the exponential of `log_std`.

        With `state_dependent_std` the mean over the samples of the last distribution; before the first, the initial.
        """
        if self.std_head is not None:
            last = None if self.distribution is None else self.distribution.stddev.detach()
            return self._limited_std(self.std_head.bias) if last is None else last.flatten(0, -2).mean(dim=0)
        std = self._parameters.get("std")
        return self.log_std.exp() if std is None else std

    def _limited_std(self, raw: Tensor) -> Tensor:
        """The standard deviation `(..., A)` for outputs of `std_head`, within the limits of the policy."""
        low = max(self.min_noise_std or 0.0, LOWEST_STD)
        high = HIGHEST_STD if self.max_noise_std is None else self.max_noise_std
        if self.noise_std_type == "scalar":
            return raw.clamp(low, high)
        return raw.clamp(math.log(low), math.log(high)).exp()

    @property
    def privileged_obs_segments(self) -> Mapping[str, Any] | None:
        """The historical name of `critic_obs_segments`."""
        return self.critic_obs_segments

    @privileged_obs_segments.setter
    def privileged_obs_segments(self, segments: Mapping[str, Any] | None) -> None:
        self.critic_obs_segments = segments

    def network_parameters(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """The parameters of the actor with everything before it, and of the critic; shared encoders are in both."""
        actor: list[nn.Parameter] = []
        critic: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            (critic if name.startswith(CRITIC_PREFIXES) else actor).append(parameter)
        return actor, critic

    @property
    def acting_settings(self) -> tuple[tuple[str, Any], ...]:
        """Names and values of settings that `act` reads and that may change in training; the engine watches them."""
        return ()

    # ---- the two hooks -------------------------------------------------------------------------------------------

    def actor_input(
        self,
        observations: Tensor,
        *,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        inference: bool = False,
    ) -> Tensor:
        """Return the input of the actor head, `(..., O) -> (..., I)`; deterministic for `inference`."""
        return observations

    def critic_input(
        self, critic_observations: Tensor, *, masks: Tensor | None = None, hidden_states: HiddenState = None
    ) -> Tensor:
        """Return the input of the critic head, `(..., Oc) -> (..., Ic)`."""
        return critic_observations

    # ---- acting and evaluating -----------------------------------------------------------------------------------

    def update_distribution(self, observations: Tensor) -> None:
        """Set the action distribution for inputs of the actor head."""
        if self.std_head is not None:
            mean, std = self._mean_and_std(observations, self.std_head)
        else:
            is_autocast = torch.is_autocast_enabled(observations.device.type)
            mean = run_head(self.actor, observations) if is_autocast else self.actor(observations)
            std = self.std
        bound = self.action_bound
        self.distribution = DiagonalGaussian(mean, std) if bound is None else SquashedGaussian(mean, std, bound)

    def _mean_and_std(self, inputs: Tensor, std_head: nn.Linear) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation `(..., A)` for inputs of the actor head, the latter from its last features."""
        last = max(index for index, layer in enumerate(self.actor) if isinstance(layer, nn.Linear))
        features = self.actor[:last](inputs)
        # In full precision, as in `run_head`.
        with torch.autocast(inputs.device.type, enabled=False):
            features = features.to(std_head.weight.dtype)
            return self.actor[last:](features), self._limited_std(std_head(features))

    def act(
        self,
        observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        inference: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Update the distribution and sample actions `(..., A)`; with `inference` the same as `act_inference`."""
        if inference:
            if masks is not None or hidden_states is not None:
                raise AssertionError("act(inference=True) is for single steps: it takes no masks and no hidden_states")
            return self._mean_actions(observations) if self.infers_through_act else self.act_inference(observations)
        noise = self._sample_noise(observations) if self._num_noise_columns else None
        self.update_distribution(self.actor_input(observations, masks=masks, hidden_states=hidden_states))
        self._noise = None
        if self.distribution is None:
            raise RuntimeError(NO_DISTRIBUTION)
        actions = self.distribution.mean.detach()
        if self._samples_actions:
            # Not Normal.sample: it checks the standard deviation on the host, which waits for a GPU.
            if noise is None:
                noise = torch.randn(actions.shape, dtype=actions.dtype, device=actions.device)
            elif masks is not None and self.is_recurrent:
                noise = unpad_trajectories(noise, masks)
            actions = actions + self.distribution.stddev.detach() * noise
        return actions if self.action_bound is None else self.bounded(actions)

    def _sample_noise(self, observations: Tensor) -> Tensor:
        """Sample the standard normal noise for actions `(..., A)`, which is returned, and for all reserved columns.

        In a single call: torch before 2.13 reorders separate draws in compiled code (pytorch issue 181136).
        """
        num_actions = self.num_actions if self._samples_actions else 0
        width = self._num_noise_columns + num_actions
        noise = torch.randn(*observations.shape[:-1], width, dtype=observations.dtype, device=observations.device)
        self._noise = noise[..., num_actions:]
        return noise[..., :num_actions]

    def reserve_noise_column(self) -> int:
        """Let `act` sample one more column of noise; return its index."""
        self._num_noise_columns += 1
        return self._num_noise_columns - 1

    def noise_column(self, index: int | None) -> Tensor | None:
        """Return the noise `(...)` of a reserved column; None outside of `act`."""
        return None if self._noise is None or index is None else self._noise[..., index]

    @contextmanager
    def no_sampling(self) -> Iterator[None]:
        """Inside, `act` returns the mean: an update needs the distribution for stored actions, not new actions."""
        self._samples_actions = False
        try:
            yield
        finally:
            self._samples_actions = True

    def act_inference(self, observations: Tensor) -> Tensor:
        """Return the mean actions `(..., A)`; the distribution is not changed."""
        return self.act(observations, inference=True) if self.infers_through_act else self._mean_actions(observations)

    def _mean_actions(self, observations: Tensor) -> Tensor:
        return self.bounded(self.actor(self.actor_input(observations, inference=True)))

    def bounded(self, actions: Tensor) -> Tensor:
        """Squash actions `(..., A)` into `action_bound`; unchanged in a policy without bound."""
        return actions if self.action_bound is None else self.action_bound * torch.tanh(actions)

    def evaluate(
        self,
        critic_observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return state values `(..., 1)`."""
        inputs = self.critic_input(critic_observations, masks=masks, hidden_states=hidden_states)
        return run_head(self.critic, inputs) if torch.is_autocast_enabled(inputs.device.type) else self.critic(inputs)

    def forward(self, obs: Tensor) -> tuple[Normal, Tensor]:
        """Return the action distribution and the values `(..., 1)` of observations that serve actor and critic."""
        values = self._evaluate_without_acting(obs, obs)
        if self.distribution is None:
            raise RuntimeError(NO_DISTRIBUTION)
        return self.distribution, values

    def evaluate_actions(
        self, obs: Tensor, actions: Tensor, critic_obs: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities and entropies `(...)` of given actions, and values `(..., 1)`."""
        values = self._evaluate_without_acting(obs, obs if critic_obs is None else critic_obs)
        return self.get_actions_log_prob(actions), self.entropy, values

    def _evaluate_without_acting(self, obs: Tensor, critic_obs: Tensor) -> Tensor:
        """Set the action distribution and return values `(..., 1)`; hidden states are not changed."""
        # An `act` that raised leaves its noise. No try-finally there: it breaks the graph of a compiled recurrent act.
        self._noise = None
        with self.preserve_hidden_states():
            self.update_distribution(self.actor_input(obs))
            return self.critic(self.critic_input(critic_obs))

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of actions `(..., A) -> (...)` under the last distribution."""
        if self.distribution is None:
            raise RuntimeError(NO_DISTRIBUTION)
        return self.distribution.log_prob(actions).sum(dim=-1)

    @property
    def action_mean(self) -> Tensor:
        """Mean of the last distribution, `(..., A)`; before squashing where actions are bounded."""
        if self.distribution is None:
            raise RuntimeError(NO_DISTRIBUTION)
        return self.distribution.mean

    @property
    def action_std(self) -> Tensor:
        """Standard deviation of the last distribution, `(..., A)`; before squashing where actions are bounded."""
        if self.distribution is None:
            raise RuntimeError(NO_DISTRIBUTION)
        return self.distribution.stddev

    @property
    def entropy(self) -> Tensor:
        """Entropy of the last distribution, summed over actions, `(...)`."""
        if self.distribution is None:
            raise RuntimeError(NO_DISTRIBUTION)
        return self.distribution.entropy().sum(dim=-1)

    @torch.no_grad()
    def clip_std(self, min: float | Tensor | None = None, max: float | Tensor | None = None) -> None:
        """Clamp the standard deviation in place, to these limits and to the limits of the policy.

        One that depends on the state is limited where it is computed.
        """
        if self.std_head is not None:
            return
        std = self._parameters.get("std")
        parameter = self.log_std if std is None else std
        for low in (min, self.min_noise_std):
            if low is not None:
                parameter.clamp_(min=low if std is not None else _logarithm(low))
        for high in (max, self.max_noise_std):
            if high is not None:
                parameter.clamp_(max=high if std is not None else _logarithm(high))

    @torch.no_grad()
    def fill_std(self, value: float) -> None:
        """Set the standard deviation of all actions in place."""
        if self.std_head is not None:
            self.std_head.weight.zero_()
            self.std_head.bias.fill_(value if self.noise_std_type == "scalar" else math.log(value))
            return
        std = self._parameters.get("std")
        self.log_std.fill_(math.log(value)) if std is None else std.fill_(value)

    def __getstate__(self) -> dict[str, Any]:
        """Copies leave out what the last act stored: its graph cannot be copied."""
        return {**self.__dict__, "distribution": None, "_noise": None}

    # ---- hidden states -------------------------------------------------------------------------------------------

    def reset(self, dones: Tensor | None = None) -> None:
        """Clear the hidden states of finished environments `(N,)`, or of all; a feed-forward policy has none."""
        if self.is_recurrent:
            for memory in self._memories().values():
                memory.reset(dones)

    def get_hidden_states(self) -> Any:
        """Return the hidden states before the next step; None for a feed-forward policy."""
        return None

    def _memories(self) -> dict[str, Memory]:
        return {name: module for name, module in self.named_modules() if isinstance(module, Memory)}

    def clear_hidden_states(self) -> None:
        """Discard all hidden states, as before the first step."""
        for memory in self._memories().values():
            memory.hidden_states = None

    def pin_hidden_states(self) -> None:
        """Copy the hidden states into the fixed buffers that a captured rollout reads."""
        for memory in self._memories().values():
            memory.pin_hidden_states()

    def hidden_state_dict(self) -> dict[str, list[Tensor]]:
        """Return the hidden states by the name of their memory, for a checkpoint; without memories that have none."""
        memories = self._memories().items()
        return {name: memory.state_leaves() for name, memory in memories if memory.hidden_states is not None}

    def load_hidden_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Restore what `hidden_state_dict` returned."""
        for name, memory in self._memories().items():
            memory.load_state_leaves(state.get(name))

    def preserve_hidden_states(self) -> AbstractContextManager[None]:
        """Restore all hidden states when the context ends."""
        return preserve_hidden_states(self)

    @staticmethod
    def init_weights(sequential: nn.Sequential, scales: Sequence[float]) -> None:
        """Initialize the Linear layers orthogonally with the given gains."""
        linears = [module for module in sequential if isinstance(module, nn.Linear)]
        for module, scale in zip(linears, scales):
            nn.init.orthogonal_(module.weight, gain=scale)


def _resolve_sizes(
    num_actor_obs: int | None, num_critic_obs: int | None, num_actions: int | None, aliases: dict[str, Any]
) -> tuple[int, int, int]:
    """Return the three sizes, also from `(obs_dim, act_dim)` or their keywords, which are removed from `aliases`."""
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


def _logarithm(value: float | Tensor) -> float | Tensor:
    """Return the logarithm of a limit that is not negative."""
    if isinstance(value, Tensor):
        return value.log()
    return math.log(value) if value > 0 else -math.inf


def _positive_bound(bound: float | Sequence[float] | None, num_actions: int) -> Tensor | None:
    """Return the largest action `(A,)`, given once for all or for each; ValueError unless it is positive."""
    if bound is None:
        return None
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
