"""`AmpRolloutStorage`: a labelled rolling buffer with the motion features that a discriminator compares."""

from typing import Any

from st_rl.storage.action_label_rollout import ActionLabelRollout
from st_rl.storage.fields import BufferField


class AmpRolloutStorage(ActionLabelRollout):
    """Keeps the robot's motion features `ref_obs` and the reference's `ref_motion`, both `(T, N, *amp_obs_shape)`."""

    fields = (
        *ActionLabelRollout.fields,
        BufferField("ref_obs", "amp_obs", source="ref_obs", batch="ref_obs"),
        BufferField("ref_motion", "amp_obs", source="ref_motion", batch="ref_motion"),
    )

    def __init__(self, *args: Any, amp_obs_shape: Any, **kwargs: Any) -> None:
        super().__init__(*args, amp_obs_shape=amp_obs_shape, **kwargs)
