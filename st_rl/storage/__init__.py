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
    "storage_classes",
]


def storage_classes() -> dict[str, type[RolloutStorage]]:
    """Return the registered rollout storages by class name: those here, and classes that a user has added."""
    return {k: v for k, v in globals().items() if isinstance(v, type) and issubclass(v, RolloutStorage)}
