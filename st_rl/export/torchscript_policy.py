"""A policy as a TorchScript file as rsl_rl writes it: observations in, mean actions out, hidden states kept inside."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from st_rl.modules.policy.rsl_rl_view import RslRlPolicy
from st_rl.utils.files import atomic_write


class _FeedForward(nn.Module):
    def __init__(self, policy: RslRlPolicy):
        super().__init__()
        self.normalizer = copy.deepcopy(policy.actor_obs_normalizer)
        self.actor = copy.deepcopy(policy.actor)

    def forward(self, obs: Tensor) -> Tensor:
        return self.actor(self.normalizer(obs))

    @torch.jit.export
    def reset(self) -> None:
        pass


class _Gru(_FeedForward):
    hidden_state: Tensor

    def __init__(self, policy: RslRlPolicy):
        super().__init__(policy)
        self.rnn = copy.deepcopy(policy.memory_a.rnn)
        self.register_buffer("hidden_state", torch.zeros(self.rnn.num_layers, 1, self.rnn.hidden_size))

    def forward(self, obs: Tensor) -> Tensor:
        features, hidden = self.rnn(self.normalizer(obs).unsqueeze(0), self.hidden_state)
        self.hidden_state[:] = hidden
        return self.actor(features.squeeze(0))

    @torch.jit.export
    def reset(self) -> None:
        self.hidden_state[:] = 0.0


class _Lstm(_Gru):
    cell_state: Tensor

    def __init__(self, policy: RslRlPolicy):
        super().__init__(policy)
        self.register_buffer("cell_state", torch.zeros_like(self.hidden_state))

    def forward(self, obs: Tensor) -> Tensor:
        features, (hidden, cell) = self.rnn(self.normalizer(obs).unsqueeze(0), (self.hidden_state, self.cell_state))
        self.hidden_state[:] = hidden
        self.cell_state[:] = cell
        return self.actor(features.squeeze(0))

    @torch.jit.export
    def reset(self) -> None:
        self.hidden_state[:] = 0.0
        self.cell_state[:] = 0.0


def export_torchscript(policy: RslRlPolicy, path: str | Path) -> None:
    """Write the policy for one robot `(1, O) -> (1, A)`; a feed-forward policy takes any number of robots.

    `reset()` of the loaded module clears the hidden states. ValueError for a policy that is more than an actor and a
    memory.
    """
    kind = _FeedForward
    if policy.is_recurrent:
        kind = _Lstm if isinstance(policy.memory_a.rnn, nn.LSTM) else _Gru
    module = kind(policy).to("cpu").eval().requires_grad_(False)
    script = torch.jit.script(module)
    with atomic_write(Path(path)) as file:
        torch.jit.save(script, str(file))
