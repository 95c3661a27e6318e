"""The interface of a policy: what algorithms, runners, savers and exporters call on it.

`Policy` is the contract of a policy from any source. What only some policies offer is a Protocol of its own, chosen by
`isinstance`; every policy of `st_rl.modules` is a `StatefulPolicy`, and all but the mutex policies a `GaussianPolicy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from st_rl.utils.capability import CapabilityMeta

HiddenState: TypeAlias = Tensor | tuple[Any, ...] | None
"""The state of one RNN (a tensor for a GRU, `(hidden, cell)` for an LSTM), or a named tuple of such states."""


@runtime_checkable
class ActingPolicy(Protocol):
    """A policy that acts; enough to play, to collect demonstrations and to label them."""

    def act(self, observations: Tensor) -> Tensor:
        """Sample actions `(N, A)` for normalized observations `(N, O)`."""
        ...

    def act_inference(self, observations: Tensor) -> Tensor:
        """Return the mean actions `(N, A)` for normalized observations `(N, O)`."""
        ...

    def reset(self, dones: Tensor | None = None) -> None:
        """Clear the hidden states of finished environments `(N,)`, or of all."""
        ...


class _Module(Protocol):
    """The members of `nn.Module` that are used of a policy."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...
    def to(self, device: torch.device | str) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...


class Policy(_Module, Protocol):
    """A policy that can be trained: an `nn.Module` with these members.

    Not checked with `isinstance`: `action_mean` and its like do not exist before the first `act`.
    """

    is_recurrent: bool
    """Whether the policy has hidden states, so that mini-batches hold whole trajectories."""
    num_actor_obs: int
    num_critic_obs: int
    num_actions: int
    obs_segments: Mapping[str, Any] | None
    critic_obs_segments: Mapping[str, Any] | None

    def act(self, observations: Tensor, *, masks: Tensor | None = None, hidden_states: HiddenState = None) -> Tensor:
        """Set the action distribution and sample actions from it, `(..., O) -> (..., A)`.

        Recurrent policies take padded trajectories `(T, K, O)` with `masks (T, K)` and the hidden states they start
        from; without both, `(N, O)` is one step from the policy's own hidden states.
        """
        ...

    def act_inference(self, observations: Tensor) -> Tensor:
        """Return the mean actions, `(..., O) -> (..., A)`."""
        ...

    def evaluate(
        self, critic_observations: Tensor, *, masks: Tensor | None = None, hidden_states: HiddenState = None
    ) -> Tensor:
        """Return the state values, `(..., Oc) -> (..., 1)`."""
        ...

    def get_actions_log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of actions under the last distribution, `(..., A) -> (...)`."""
        ...

    @property
    def action_mean(self) -> Tensor:
        """Mean of the last distribution, `(..., A)`."""
        ...

    @property
    def action_std(self) -> Tensor:
        """Standard deviation of the last distribution, `(..., A)`."""
        ...

    @property
    def entropy(self) -> Tensor:
        """Entropy of the last distribution, `(...)`; may be missing, which drops the entropy loss."""
        ...

    def reset(self, dones: Tensor | None = None) -> None:
        """Clear the hidden states of finished environments `(N,)`, or of all."""
        ...

    def get_hidden_states(self) -> Any:
        """Return `(actor=..., critic=...)` hidden states before the next step; None for a feed-forward policy."""
        ...


@runtime_checkable
class StatefulPolicy(Protocol):
    """A policy with hidden states that can be saved, cleared and pinned in memory."""

    def clear_hidden_states(self) -> None:
        """Discard all hidden states, as before the first step; the number of environments may change."""
        ...

    def preserve_hidden_states(self) -> AbstractContextManager[None]:
        """Restore all hidden states when the context ends."""
        ...

    def pin_hidden_states(self) -> None:
        """Copy the hidden states into the fixed buffers that a captured rollout reads."""
        ...

    def hidden_state_dict(self) -> dict[str, list[Tensor]]:
        """Return the hidden states by the name of the RNN, for a checkpoint."""
        ...

    def load_hidden_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `hidden_state_dict` returned."""
        ...


@runtime_checkable
class GaussianPolicy(Protocol, metaclass=CapabilityMeta):
    """A policy with one learned standard deviation for each action."""

    @property
    def std(self) -> Tensor:
        """Standard deviation `(A,)`."""
        ...


@runtime_checkable
class ClippedStdPolicy(Protocol):
    """A policy with a standard deviation that the update clamps after every optimizer step."""

    def clip_std(self, min: float | Tensor | None = None, max: float | Tensor | None = None) -> None:
        """Clamp the standard deviation in place."""
        ...


@runtime_checkable
class EncoderPolicy(Protocol):
    """A policy that encodes components of the observation."""

    def get_encoder_latent(self, observations: Tensor, obs_component: str, critic: bool = False) -> Tensor:
        """Return the latent of one component, `(..., O) -> (..., L)`."""
        ...
