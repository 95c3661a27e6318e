"""The recurrent memory of a policy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.utils.collections import namedarraytuple
from st_rl.utils.trajectories import unpad_trajectories

ActorCriticHiddenState = namedarraytuple("ActorCriticHiddenState", ["actor", "critic"])
LstmHiddenState = namedarraytuple("LstmHiddenState", ["hidden", "cell"])

RNN_TYPES = {"gru": nn.GRU, "lstm": nn.LSTM}


class Memory(nn.Module):
    """A GRU or LSTM that keeps its state between steps, or runs over padded trajectories without touching it.

    The state it keeps carries no gradient: a step never reaches back into earlier steps.
    """

    def __init__(self, input_size: int, type: str = "lstm", num_layers: int = 1, hidden_size: int = 256):
        super().__init__()
        if str(type).lower() not in RNN_TYPES:
            raise ValueError(f"rnn_type '{type}' is unknown; use one of: {', '.join(RNN_TYPES)}")
        self.rnn = RNN_TYPES[type.lower()](int(input_size), int(hidden_size), num_layers=int(num_layers))
        # No state exists before the first step; a missing state counts as zeros.
        self.hidden_states: Any = None
        # A place that never moves, for the state between two rollouts; none before the first one ends.
        self._settled: Any = None

    def forward(self, input: Tensor, masks: Tensor | None = None, hidden_states: Any = None) -> Tensor:
        """Step mode `(N, D) -> (N, H)`, or batch mode `(T, K, D) -> (T, K, H)`, unpadded to `(T, B, H)` with masks."""
        if hidden_states is not None or masks is not None or input.dim() == 3:
            if input.dim() != 3:
                raise ValueError(
                    f"with masks or hidden_states the input is trajectories (T, K, D), got {tuple(input.shape)}: give "
                    "it a time axis, or leave both out for a step from the memory's own state"
                )
            output, _ = self.rnn(input, _as_rnn_state(hidden_states))
            return output if masks is None else unpad_trajectories(output, masks)
        output, state = self.rnn(input.unsqueeze(0), _as_rnn_state(self._state_for(input)))
        state = LstmHiddenState(*state) if isinstance(state, tuple) else state
        # With its graph, the state would hold on to every step since the start of training.
        self.hidden_states = _map_state(state, torch.Tensor.detach)
        return output.squeeze(0)

    def _state_for(self, input: Tensor) -> Any:
        """The state where the input is, and in a form that autograd takes; ValueError when it is of other robots."""
        if self.hidden_states is None:
            return None
        num_envs = _leaves(self.hidden_states)[0].shape[1]
        if num_envs != input.shape[0]:
            raise ValueError(
                f"the hidden states are of {num_envs} environments, the observations of {input.shape[0]}; "
                "call clear_hidden_states() on the policy first"
            )
        return _map_state(self.hidden_states, lambda leaf: _ordinary(leaf.to(input.device)))

    def reset(self, dones: Tensor | None = None) -> None:
        """Forget everything, or only the columns of finished robots; the old tensors stay as they were."""
        if self.hidden_states is None:
            return
        if dones is None:
            self.hidden_states = _map_state(self.hidden_states, torch.zeros_like)
            return
        finished = dones.reshape(-1, 1) > 0
        self.hidden_states = _map_state(
            self.hidden_states, lambda leaf: leaf.masked_fill(finished.to(leaf.device), 0.0)
        )

    def settle(self) -> None:
        """Move the state to a fixed place, from which a captured rollout can start."""
        if self.hidden_states is None:
            # Forgotten: zeros in the place where a rollout that was captured before will look.
            if self._settled is not None:
                for leaf in _leaves(self._settled):
                    leaf.zero_()
                self.hidden_states = self._settled
            return
        present = _leaves(self.hidden_states)[0]
        place = None if self._settled is None else _leaves(self._settled)[0]
        if place is None or (place.shape, place.device) != (present.shape, present.device):
            with torch.inference_mode(False):
                self._settled = _map_state(self.hidden_states, torch.clone)
        for fixed, leaf in zip(_leaves(self._settled), _leaves(self.hidden_states)):
            fixed.copy_(leaf)
        self.hidden_states = self._settled

    def state_leaves(self) -> list[Tensor]:
        """The tensors of the state: one for a GRU, two for an LSTM, none before the first step."""
        return [] if self.hidden_states is None else _leaves(self.hidden_states)

    def load_state_leaves(self, leaves: Sequence[Tensor] | None) -> None:
        """Continue from what `state_leaves` gave; nothing means no state."""
        if not leaves:
            self.hidden_states = None
            return
        device = next(self.rnn.parameters()).device
        tensors = [leaf.to(device) for leaf in leaves]
        self.hidden_states = LstmHiddenState(*tensors) if isinstance(self.rnn, nn.LSTM) else tensors[0]


@contextmanager
def preserve_hidden_states(policy: nn.Module) -> Iterator[None]:
    """Whatever is evaluated inside leaves every memory of a policy as it was: all that is named `hidden_states`."""
    memories: list[Any] = [module for module in policy.modules() if "hidden_states" in vars(module)]
    states = [memory.hidden_states for memory in memories]
    try:
        yield
    finally:
        for memory, state in zip(memories, states):
            memory.hidden_states = state


def _as_rnn_state(state: Any) -> Any:
    """The form torch's networks take: a tensor or a plain pair."""
    if not isinstance(state, tuple):
        return state
    for leaf in state:
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"a memory takes a tensor or a pair of them as hidden_states, got {type(state).__name__}: give the "
                "field `actor` of the policy's get_hidden_states() to act(), and `critic` to evaluate()"
            )
    return tuple(state)


def _ordinary(leaf: Tensor) -> Tensor:
    """The tensor itself, or an ordinary copy of one left by an inference-mode rollout, which autograd refuses."""
    return leaf.clone() if leaf.is_inference() and not torch.is_inference_mode_enabled() else leaf


def _leaves(state: Any) -> list[Tensor]:
    return list(state) if isinstance(state, tuple) else [state]


def _map_state(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if state is None:
        return None
    return type(state)(*(function(leaf) for leaf in state)) if isinstance(state, tuple) else function(state)
