"""The five rollout storages, each in a file of its own."""

from st_rl.storage.action_label_rollout import ActionLabelRollout
from st_rl.storage.amp_rollout import AmpRolloutStorage
from st_rl.storage.queue_rollout import QueueRolloutStorage
from st_rl.storage.rollout_base import RolloutStorage
from st_rl.storage.sarsa_rollout import SarsaRolloutStorage

__all__ = [
    "ActionLabelRollout",
    "AmpRolloutStorage",
    "QueueRolloutStorage",
    "RolloutStorage",
    "SarsaRolloutStorage",
]
