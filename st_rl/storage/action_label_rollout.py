"""`ActionLabelRollout`: a rolling buffer with a teacher's action for every step."""

from st_rl.storage.fields import BufferField
from st_rl.storage.queue_rollout import QueueRolloutStorage


class ActionLabelRollout(QueueRolloutStorage):
    """Keeps the action that a teacher would have taken, `action_labels (T, N, *A)`, beside every step."""

    fields = (
        *QueueRolloutStorage.fields,
        BufferField("action_labels", "actions", source="action_labels", batch="action_labels"),
    )
