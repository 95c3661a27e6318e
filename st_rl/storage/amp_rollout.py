"""Storages with motion features for a discriminator."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from st_rl.storage.action_label_rollout import ActionLabelRollout
from st_rl.storage.fields import BufferField, Shape


class AmpRolloutStorage(ActionLabelRollout):
    """Stores motion features of the policy, `ref_obs`, and of the reference, `ref_motion`: `(T, N, *amp_obs_shape)`."""

    fields = (
        *ActionLabelRollout.fields,
        BufferField("ref_obs", "amp_obs", source="ref_obs", batch="ref_obs"),
        BufferField("ref_motion", "amp_obs", source="ref_motion", batch="ref_motion"),
    )

    ref_obs: Tensor
    ref_motion: Tensor

    def __init__(self, *args: Any, amp_obs_shape: Shape, **kwargs: Any) -> None:
        super().__init__(*args, amp_obs_shape=amp_obs_shape, **kwargs)

    @property
    def num_samples(self) -> int:
        """Number of stored motion features of the policy."""
        return self.num_valid_steps * self.num_envs

    def feed_forward_generator(self, num_mini_batch: int, mini_batch_size: int) -> Iterator[tuple[Tensor]]:
        """Iterate over `num_mini_batch` random samples of `ref_obs`, each `(mini_batch_size, *amp_obs_shape)`."""
        if self.num_samples == 0:
            raise ValueError("the storage is empty; add transitions before sampling")
        features = self.ref_obs[: self.num_valid_steps].flatten(0, 1)
        for _ in range(num_mini_batch):
            yield (features[torch.randint(len(features), (mini_batch_size,), device=features.device)],)


class AmpHistoryStorage(AmpRolloutStorage):
    """Stores past motion transitions and a mask of valid ones, if their shapes are given.

    The algorithm fills `past_ref_obs (T, N, *past_ref_obs_shape)` before an update; `ref_mask (T, N, *ref_mask_shape)`
    is 0 for a transition across a reset.
    """

    fields = (
        *AmpRolloutStorage.fields,
        BufferField("past_ref_obs", "past_ref_obs", batch="past_ref_obs", optional=True),
        BufferField("ref_mask", "ref_mask", source="ref_mask", batch="ref_mask", flag=True, optional=True),
    )

    past_ref_obs: Tensor
    ref_mask: Tensor
