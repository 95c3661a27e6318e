"""Rollouts in memory and on disk."""

from st_rl.storage.replay_buffer import ReplayBuffer
from st_rl.storage.rollout_storage import (
    ActionLabelRollout,
    AmpRolloutStorage,
    QueueRolloutStorage,
    RolloutStorage,
    SarsaRolloutStorage,
)

__all__ = [
    "ActionLabelRollout",
    "AmpRolloutStorage",
    "QueueRolloutStorage",
    "ReplayBuffer",
    "RolloutStorage",
    "SarsaRolloutStorage",
]
