"""Skill switching: one frozen sub-policy per environment, selected by the obstacle in front of the robot."""

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from st_rl.modules.actor_critic_mutex import ActorCriticMutex, as_paths
from st_rl.utils.log import logger
from st_rl.utils.tensors.segments import get_obs_slice, segment_width

Velocity = float | Sequence[float]
"""A fixed velocity, or the two ends of a range."""


def _check_velocity(velocity: object, setting: str) -> None:
    """ValueError unless it is a number or a range of two."""
    ends = list(velocity) if isinstance(velocity, Sequence) and not isinstance(velocity, str) else [velocity]
    if (isinstance(velocity, Sequence) and len(ends) != 2) or not all(isinstance(end, Real) for end in ends):
        raise ValueError(f"{setting} is {velocity!r}: give a velocity in m/s, or the two ends of a range")


class ActorCriticFieldMutex(ActorCriticMutex):
    """Acts with the sub-policy that the obstacle one-hot of the observation selects.

    Reads two observation components: `proprioception` (the velocity command at `CMD_VEL_INDEX`, the last action at its
    end) and `engaging_block` (the one-hot at `OBSTACLE_ONEHOT_SLICE`, its last entry positive for a jump up).
    """

    CMD_VEL_INDEX = 9
    OBSTACLE_ONEHOT_SLICE = slice(1, 6)

    def __init__(
        self,
        *args: Any,
        cmd_vel_mapping: Mapping[int | str, Velocity] | None = {},
        reset_non_selected: str | bool = "all",
        action_smoothing_buffer_len: int = 1,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        if int(action_smoothing_buffer_len) < 1:
            raise ValueError(f"action_smoothing_buffer_len is {action_smoothing_buffer_len}; give at least 1")
        self.cmd_vel_mapping = {int(index): velocity for index, velocity in (cmd_vel_mapping or {}).items()}
        for index, velocity in self.cmd_vel_mapping.items():
            _check_velocity(velocity, f"cmd_vel_mapping[{index}]")
        self.reset_non_selected = reset_non_selected
        self.action_smoothing_buffer_len = int(action_smoothing_buffer_len)
        self.cmd_scales: list[Mapping[str, float]] = [
            (config.get("normalization") or {}).get("obs_scales") or {} for config in self.sub_policy_configs
        ]
        # The last selections `(len, N, ..., n)`, newest first; None before the first action.
        self.action_smoothing_buffer: Tensor | None = None
        self.cmd_vel_current: dict[int, float | Tensor] = {}
        self.resample_cmd_vel_current()
        if self.submodules:
            self._check_components()

    def _check_components(self) -> None:
        """ValueError if components, velocities or scales that this container needs are missing."""
        name, segments = type(self).__name__, self.obs_segments or {}
        width = segment_width(segments.get("engaging_block", 0))
        if width < self.OBSTACLE_ONEHOT_SLICE.stop:
            raise ValueError(
                f"{name} chooses by the observation component 'engaging_block', of at least "
                f"{self.OBSTACLE_ONEHOT_SLICE.stop} numbers; obs_segments are {dict(segments)}"
            )
        if self.cmd_vel_current and segment_width(segments.get("proprioception", 0)) <= self.CMD_VEL_INDEX:
            raise ValueError(
                f"{name} writes velocity commands at index {self.CMD_VEL_INDEX} of the observation component "
                f"'proprioception'; obs_segments are {dict(segments)}"
            )
        for index in self.cmd_vel_current:
            if index >= len(self.submodules):
                logger.warning(f"a velocity for sub-policy {index} has no effect: there are {len(self.submodules)}")
            elif "lin_vel" not in self.cmd_scales[index]:
                raise ValueError(
                    f"the config.json of sub-policy {index} lacks normalization.obs_scales.lin_vel, by which its "
                    "velocity command is scaled: add the number, or give that policy no velocity"
                )

    # ---- observations of the sub-policies ------------------------------------------------------------------------

    def resample_cmd_vel_current(self, dones: Tensor | None = None) -> None:
        """Sample a velocity for every policy of `cmd_vel_mapping`, for all or for each finished environment."""
        for index, velocity in self.cmd_vel_mapping.items():
            self._resample(index, velocity, dones)

    def _resample(self, index: int, velocity: Velocity, dones: Tensor | None) -> None:
        """Sample one velocity without `dones`, else one per finished environment; the others keep theirs."""
        low, high = velocity if isinstance(velocity, Sequence) else (velocity, velocity)
        low, span = float(low), float(high) - float(low)
        if dones is None:
            self.cmd_vel_current[index] = low + span * float(torch.rand(()))
            return
        finished = dones.reshape(-1) > 0
        kept = self.cmd_vel_current[index]
        if not isinstance(kept, Tensor) or kept.shape != finished.shape or kept.device != finished.device:
            # Allocated once and then written in place, because a captured graph reads this tensor.
            with torch.inference_mode(False):
                value = float(kept) if isinstance(kept, float) else low
                kept = self.cmd_vel_current[index] = torch.full(finished.shape, value, device=finished.device)
        sampled = low + span * torch.rand_like(kept)
        kept.copy_(torch.where(finished, sampled, kept))

    def recover_last_action(self, observations: Tensor, policy_selection: Tensor) -> Tensor:
        """Observations `(N, ..., O)` with the last action in the scale of the selected policy, as a copy."""
        if not self.submodules or "proprioception" not in (self.obs_segments or {}):
            return observations
        stop = self._place("proprioception").stop
        ratios = torch.stack([self._ratio(index).reciprocal() for index in range(len(self.submodules))])
        recovered = observations.clone()
        # A factor of 1 for policies that are not selected.
        factors = torch.where(policy_selection[..., None] > 0, ratios, 1.0).prod(dim=-2)
        recovered[..., stop - self.num_actions : stop] *= factors
        return recovered

    def override_cmd_vel(self, observations: Tensor, policy_selection: Tensor) -> Tensor:
        """Observations `(N, ..., O)` with the velocity of the selected policy as command, as a copy."""
        place = self._place("proprioception").start + self.CMD_VEL_INDEX
        overridden = observations.clone()
        for index, velocity in self.cmd_vel_current.items():
            if index >= len(self.submodules):
                continue
            if isinstance(velocity, Tensor):
                velocity = velocity.to(observations.device).view(-1, *[1] * (observations.dim() - 2))
            selected, command = policy_selection[..., index], velocity * self.cmd_scales[index]["lin_vel"]
            overridden[..., place] = torch.where(selected, command, overridden[..., place])
        return overridden

    def _place(self, component: str) -> slice:
        return get_obs_slice(self.obs_segments or {}, component)[0]

    def _ratio(self, index: int) -> Tensor:
        """Return the factor `(A,)` from a sub-policy's actions to actions of this environment."""
        ratio = getattr(self, f"subpolicy_action_scale_{index}") / self.env_action_scale
        return ratio.expand(self.num_actions)

    # ---- selecting and acting ------------------------------------------------------------------------------------

    def get_policy_selection(self, observations: Tensor) -> Tensor:
        """Return the bool one-hot `(N, ..., n)` of selected sub-policies; ValueError for one that does not exist."""
        return self._fit_columns(self._obstacles(observations), len(self.submodules))

    def _obstacles(self, observations: Tensor) -> Tensor:
        """Return the obstacle one-hot as bool, `(N, ..., C)`; the first column where no obstacle is set."""
        block = observations[..., self._place("engaging_block")]
        onehot = block[..., self.OBSTACLE_ONEHOT_SLICE] > 0.5
        none = ~onehot.any(dim=-1, keepdim=True)
        return torch.cat([onehot[..., :1] | none, onehot[..., 1:]], dim=-1)

    def _fit_columns(self, columns: Tensor, count: int) -> Tensor:
        """Cut or zero-pad `(N, ..., C)` to `count` columns; ValueError if a column that is cut is set."""
        if count < columns.shape[-1]:
            # The only host sync: only where a policy is missing, and never while a graph is captured or exported.
            capturing = columns.is_cuda and torch.cuda.is_current_stream_capturing()
            if not (capturing or torch.compiler.is_compiling()) and bool(columns[..., count:].any()):
                used = [i for i in range(count, columns.shape[-1]) if bool(columns[..., i].any())]
                raise ValueError(f"obstacle {used} is engaged, but there are only {count} sub-policies for obstacles")
        padding = columns.new_zeros(*columns.shape[:-1], max(0, count - columns.shape[-1]))
        return torch.cat([columns[..., :count], padding], dim=-1)

    @torch.no_grad()
    def act_inference(self, observations: Tensor) -> Tensor:
        """Return the actions `(N, ..., A)` of the selected policies, averaged over the last selections."""
        selection = self.get_policy_selection(observations)
        recent = self._push_selection(selection)
        weights = recent.to(observations.dtype).mean(dim=0)
        sub_obs = self.recover_last_action(observations, selection)
        if self.cmd_vel_current:
            sub_obs = self.override_cmd_vel(sub_obs, selection)
        actions = observations.new_zeros(*observations.shape[:-1], self.num_actions)
        for index, policy in enumerate(self._policies()):
            action = policy.act_inference(self.sub_normalizers[index](sub_obs))
            actions = actions + action * self._ratio(index) * weights[..., index : index + 1]
            if self.reset_non_selected in ("all", True):
                policy.reset(~recent[..., index].any(dim=0))
            elif self.reset_non_selected == "when_skill" and index > 0:
                policy.reset(~(selection[..., index] | selection[..., 0]))
        return actions

    def _push_selection(self, selection: Tensor) -> Tensor:
        """Store a selection `(N, ..., n)`; return the last ones `(len, N, ..., n)`, newest first.

        The first selection of an episode is repeated: before it, all entries are False.
        """
        buffer = self.action_smoothing_buffer
        if buffer is None or buffer.shape[1:] != selection.shape or buffer.device != selection.device:
            with torch.inference_mode(False):
                shape = (self.action_smoothing_buffer_len, *selection.shape)
                buffer = self.action_smoothing_buffer = torch.zeros(shape, dtype=torch.bool, device=selection.device)
        has_begun = buffer.any(dim=-1, keepdim=True).any(dim=0)
        shifted = torch.cat([selection[None], buffer[:-1]])
        # Not torch.where: onnxruntime has none for booleans.
        buffer.copy_((has_begun & shifted) | (~has_begun & selection))
        return buffer

    # ---- hidden states -------------------------------------------------------------------------------------------

    def reset(self, dones: Tensor | None = None) -> None:
        """Sample new velocities, clear hidden states and past selections of finished environments `(N,)`, or of all."""
        self.resample_cmd_vel_current(dones)
        super().reset(dones)
        if self.action_smoothing_buffer is not None:
            finished = True if dones is None else dones.reshape(-1, *[1] * (self.action_smoothing_buffer.dim() - 2)) > 0
            self.action_smoothing_buffer.logical_and_(torch.logical_not(torch.as_tensor(finished)))

    def clear_hidden_states(self) -> None:
        """Discard hidden states and past selections, as before the first step."""
        super().clear_hidden_states()
        self.action_smoothing_buffer = None
        self.resample_cmd_vel_current()


class ActorCriticClimbMutex(ActorCriticFieldMutex):
    """Distinguishes jumps up from jumps down, which have a policy of their own, the last one."""

    JUMP_OBSTACLE_ID = 3

    def __init__(
        self,
        *args: Any,
        sub_policy_paths: str | Path | Sequence[str | Path] | None = None,
        jump_down_policy_path: str | Path | None = None,
        jump_down_vel: Velocity | None = None,
        **kwargs: Any,
    ):
        if jump_down_vel is not None:
            _check_velocity(jump_down_vel, "jump_down_vel")
        self.jump_down_vel = jump_down_vel
        paths, jump_down = as_paths(sub_policy_paths), as_paths(jump_down_policy_path)
        # One policy more than obstacles: the last one is for jumps down, even if given in `sub_policy_paths`.
        num_obstacles = self.OBSTACLE_ONEHOT_SLICE.stop - self.OBSTACLE_ONEHOT_SLICE.start
        self._has_jump_down = bool(jump_down) or len(paths) > num_obstacles
        super().__init__(*args, sub_policy_paths=[*paths, *jump_down], **kwargs)

    def resample_cmd_vel_current(self, dones: Tensor | None = None) -> None:
        """Sample the velocities; without `jump_down_vel`, jumps down have the velocity of jumps up."""
        super().resample_cmd_vel_current(dones)
        last = len(self.submodules) - 1
        if not self._has_jump_down:
            return
        if self.jump_down_vel is not None:
            self._resample(last, self.jump_down_vel, dones)
        elif self.JUMP_OBSTACLE_ID in self.cmd_vel_current:
            self.cmd_vel_current[last] = self.cmd_vel_current[self.JUMP_OBSTACLE_ID]

    def get_policy_selection(self, observations: Tensor) -> Tensor:
        """Return the bool one-hot `(N, ..., n)` of selected sub-policies; the last column is for jumps down."""
        obstacles = self._obstacles(observations)
        jump_up = observations[..., self._place("engaging_block")][..., -1] > 0
        jump = obstacles[..., self.JUMP_OBSTACLE_ID]
        others, down = obstacles.clone(), (jump & ~jump_up)[..., None]
        others[..., self.JUMP_OBSTACLE_ID] = jump & jump_up
        if not self._has_jump_down:
            return self._fit_columns(torch.cat([others, down], dim=-1), len(self.submodules))
        return torch.cat([self._fit_columns(others, len(self.submodules) - 1), down], dim=-1)
