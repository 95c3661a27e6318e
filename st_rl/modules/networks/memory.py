"""The recurrent network of a policy, and its hidden states."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from st_rl.modules.policy import HiddenState, Policy
from st_rl.utils.collections import namedarraytuple
from st_rl.utils.tensors.trajectories import unpad_trajectories

ActorCriticHiddenState = namedarraytuple("ActorCriticHiddenState", ["actor", "critic"])
LstmHiddenState = namedarraytuple("LstmHiddenState", ["hidden", "cell"])

RNN_TYPES = {"gru": nn.GRU, "lstm": nn.LSTM}


class Memory(nn.Module):
    """A GRU or LSTM that keeps its hidden states between steps, or runs over padded trajectories from given ones.

    The hidden states it keeps carry no gradient.
    """

    def __init__(self, input_size: int, type: str = "lstm", num_layers: int = 1, hidden_size: int = 256):
        super().__init__()
        if str(type).lower() not in RNN_TYPES:
            raise ValueError(f"rnn_type '{type}' is unknown; use one of: {', '.join(RNN_TYPES)}")
        self.rnn = RNN_TYPES[type.lower()](int(input_size), int(hidden_size), num_layers=int(num_layers))
        # None before the first step, which counts as zeros.
        self.hidden_states: HiddenState = None
        # Fixed buffers for the hidden states between two rollouts; None before the first rollout ends.
        self._pinned: HiddenState = None

    def forward(self, input: Tensor, masks: Tensor | None = None, hidden_states: HiddenState = None) -> Tensor:
        """Run one step `(N, D) -> (N, H)`, or trajectories `(T, K, D) -> (T, K, H)`, unpadded to `(T, B, H)` by masks.

        Only a step reads and updates the hidden states of the memory.
        """
        if hidden_states is not None or masks is not None or input.dim() == 3:
            if input.dim() != 3:
                raise ValueError(
                    f"with masks or hidden_states the input is trajectories (T, K, D), got {tuple(input.shape)}: give "
                    "it a time axis, or leave both out for a step from the memory's own hidden states"
                )
            output, _ = self.rnn(input, _as_rnn_state(hidden_states))
            return output if masks is None else unpad_trajectories(output, masks)
        output, state = self.rnn(input.unsqueeze(0), _as_rnn_state(self._state_for(input)))
        state = LstmHiddenState(*state) if isinstance(state, tuple) else state
        # Detached: otherwise the graph of all earlier steps stays in memory.
        self.hidden_states = _map_state(state, torch.Tensor.detach)
        return output.squeeze(0)

    def _state_for(self, input: Tensor) -> HiddenState:
        """Return the hidden states on the input's device; ValueError if they are of another number of environments."""
        if self.hidden_states is None:
            return None
        num_envs = _leaves(self.hidden_states)[0].shape[1]
        if num_envs != input.shape[0]:
            raise ValueError(
                f"the hidden states are of {num_envs} environments, the observations of {input.shape[0]}; "
                "call clear_hidden_states() on the policy first"
            )
        return _map_state(self.hidden_states, lambda leaf: _without_inference_mode(leaf.to(input.device)))

    def reset(self, dones: Tensor | None = None) -> None:
        """Set the hidden states of finished environments `(N,)`, or of all, to zero; old tensors are not changed."""
        if self.hidden_states is None:
            return
        if dones is None:
            self.hidden_states = _map_state(self.hidden_states, torch.zeros_like)
            return
        finished = dones.reshape(-1, 1) > 0
        self.hidden_states = _map_state(
            self.hidden_states, lambda leaf: leaf.masked_fill(finished.to(leaf.device), 0.0)
        )

    def pin_hidden_states(self) -> None:
        """Copy the hidden states into the fixed buffers that a captured rollout reads."""
        if self.hidden_states is None:
            # Cleared: a rollout that was captured before starts from zeros.
            if self._pinned is not None:
                for leaf in _leaves(self._pinned):
                    leaf.zero_()
                self.hidden_states = self._pinned
            return
        current = _leaves(self.hidden_states)[0]
        buffer = None if self._pinned is None else _leaves(self._pinned)[0]
        if buffer is None or (buffer.shape, buffer.device) != (current.shape, current.device):
            with torch.inference_mode(False):
                self._pinned = _map_state(self.hidden_states, torch.clone)
        for pinned, leaf in zip(_leaves(self._pinned), _leaves(self.hidden_states)):
            pinned.copy_(leaf)
        self.hidden_states = self._pinned

    def state_leaves(self) -> list[Tensor]:
        """Return the hidden states as a list: one tensor for a GRU, two for an LSTM, none before the first step."""
        return _leaves(self.hidden_states)

    def load_state_leaves(self, leaves: Sequence[Tensor] | None) -> None:
        """Restore what `state_leaves` returned; None or an empty list clears the hidden states."""
        if not leaves:
            self.hidden_states = None
            return
        device = next(self.rnn.parameters()).device
        tensors = [leaf.to(device) for leaf in leaves]
        self.hidden_states = LstmHiddenState(*tensors) if isinstance(self.rnn, nn.LSTM) else tensors[0]


@contextmanager
def preserve_hidden_states(policy: Policy) -> Iterator[None]:
    """Restore the attribute `hidden_states` of all modules of a policy when the context ends."""
    memories: list[Any] = [module for module in policy.modules() if "hidden_states" in vars(module)]
    states = [memory.hidden_states for memory in memories]
    try:
        yield
    finally:
        for memory, state in zip(memories, states):
            memory.hidden_states = state


def _as_rnn_state(state: HiddenState) -> Any:
    """Return hidden states as `nn.GRU` and `nn.LSTM` take them: a tensor or a plain pair."""
    if not isinstance(state, tuple):
        return state
    for leaf in state:
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"a memory takes a tensor or a pair of them as hidden_states, got {type(state).__name__}: give the "
                "field `actor` of the policy's get_hidden_states() to act(), and `critic` to evaluate()"
            )
    return tuple(state)


def _without_inference_mode(leaf: Tensor) -> Tensor:
    """Return the tensor, or a copy if it is of an inference-mode rollout, which autograd does not take."""
    return leaf.clone() if leaf.is_inference() and not torch.is_inference_mode_enabled() else leaf


def _leaves(state: HiddenState) -> list[Tensor]:
    if state is None:
        return []
    return list(state) if isinstance(state, tuple) else [state]


def _map_state(state: HiddenState, function: Callable[[Tensor], Tensor]) -> Any:
    if state is None:
        return None
    return type(state)(*(function(leaf) for leaf in state)) if isinstance(state, tuple) else function(state)
