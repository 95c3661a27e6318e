"""Small networks that stand alone, for reading and for first experiments; no policy uses them."""

import torch
from torch import Tensor, nn
from torch.distributions import Normal


class Actor(nn.Module):
    """A small stand-alone Gaussian actor for reading and for first experiments."""

    def __init__(self, obs_dim: int, act_dim: int):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mean = nn.Linear(64, act_dim)
        self.log_std = nn.Parameter(torch.zeros(act_dim))

    def forward(self, obs: Tensor) -> Normal:
        """The action distribution of observations `(..., obs_dim)`."""
        return Normal(self.mean(self.fc(obs)), self.log_std.exp())


class Critic(nn.Module):
    """A small stand-alone value network for reading and for first experiments."""

    def __init__(self, obs_dim: int):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(obs_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs: Tensor) -> Tensor:
        """State values `(..., 1)` of observations `(..., obs_dim)`."""
        return self.fc(obs)
