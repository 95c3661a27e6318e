"""`ActionLabelRollout`: a queue storage with the teacher's action for every step."""

from st_rl.storage.fields import BufferField
from st_rl.storage.queue_rollout import QueueRolloutStorage


class ActionLabelRollout(QueueRolloutStorage):
    """Stores the teacher's action of every step, `action_labels (T, N, *A)`."""

    fields = (
        *QueueRolloutStorage.fields,
        BufferField("action_labels", "actions", source="action_labels", batch="action_labels"),
    )
