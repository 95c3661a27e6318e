"""Skill switching: one frozen sub-policy for each robot, chosen by the obstacle before it."""

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from st_rl.modules.actor_critic_mutex import ActorCriticMutex, as_paths
from st_rl.modules.policy import HiddenState
from st_rl.utils.log import logger
from st_rl.utils.segments import get_obs_slice, segment_width

Velocity = float | Sequence[float]
"""A fixed velocity, or the two ends of a range."""


def _check_velocity(velocity: Any, setting: str) -> None:
    """ValueError unless it is a number or a range of two."""
    ends = list(velocity) if isinstance(velocity, Sequence) and not isinstance(velocity, str) else [velocity]
    is_range = isinstance(velocity, Sequence)
    if (is_range and len(ends) != 2) or not all(isinstance(end, Real) for end in ends):
        raise ValueError(f"{setting} is {velocity!r}: give a velocity in m/s, or the two ends of a range")


class ActorCriticFieldMutex(ActorCriticMutex):
    """Lets the sub-policy act whose column of the obstacle one-hot is set.

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
            raise ValueError(f"action_smoothing_buffer_len is {action_smoothing_buffer_len}; give at least 1 (no mean)")
        self.cmd_vel_mapping = {int(index): velocity for index, velocity in (cmd_vel_mapping or {}).items()}
        for index, velocity in self.cmd_vel_mapping.items():
            _check_velocity(velocity, f"cmd_vel_mapping[{index}]")
        self.reset_non_selected = reset_non_selected
        self.action_smoothing_buffer_len = int(action_smoothing_buffer_len)
        self.cmd_scales: list[Mapping[str, float]] = [
            (config.get("normalization") or {}).get("obs_scales") or {} for config in self.sub_policy_configs
        ]
        # The last selections `(len, N, ..., n)`, newest first; there is none before the first action.
        self.action_smoothing_buffer: Tensor | None = None
        self.cmd_vel_current: dict[int, float | Tensor] = {}
        self.resample_cmd_vel_current()
        if self.submodules:
            self._check_components()

    def _check_components(self) -> None:
        """ValueError for components, velocities or scales that are missing although this container needs them."""
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

    # ---- what the sub-policies see -------------------------------------------------------------------------------

    def resample_cmd_vel_current(self, dones: Tensor | None = None) -> None:
        """Draw the velocity of every policy of `cmd_vel_mapping` anew, for all robots at once or for finished ones."""
        for index, velocity in self.cmd_vel_mapping.items():
            self._resample(index, velocity, dones)

    def _resample(self, index: int, velocity: Velocity, dones: Tensor | None) -> None:
        """Draw one number without `dones`, else one for every finished robot; the others keep theirs."""
        low, high = velocity if isinstance(velocity, Sequence) else (velocity, velocity)
        low, span = float(low), float(high) - float(low)
        if dones is None:
            self.cmd_vel_current[index] = low + span * float(torch.rand(()))
            return
        finished = dones.reshape(-1) > 0
        kept = self.cmd_vel_current[index]
        if not isinstance(kept, Tensor) or kept.shape != finished.shape or kept.device != finished.device:
            # Made once and then written in place, so that a captured graph finds it where it was.
            with torch.inference_mode(False):
                value = float(kept) if isinstance(kept, float) else low
                kept = self.cmd_vel_current[index] = torch.full(finished.shape, value, device=finished.device)
        drawn = low + span * torch.rand_like(kept)
        kept.copy_(torch.where(finished, drawn, kept))

    def recover_last_action(self, observations: Tensor, policy_selection: Tensor) -> Tensor:
        """Observations `(N, ..., O)` with the last action in the scale of the selected policy; the input stays."""
        if not self.submodules or "proprioception" not in (self.obs_segments or {}):
            return observations
        stop = self._place("proprioception").stop
        ratios = torch.stack([self._ratio(index).reciprocal() for index in range(len(self.submodules))])
        recovered = observations.clone()
        # Nothing is changed where none is selected.
        factors = torch.where(policy_selection[..., None] > 0, ratios, 1.0).prod(dim=-2)
        recovered[..., stop - self.num_actions : stop] *= factors
        return recovered

    def override_cmd_vel(self, observations: Tensor, policy_selection: Tensor) -> Tensor:
        """Observations `(N, ..., O)` with the velocity of the selected policy as command; the input stays."""
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
        """`(A,)` action of this environment for each unit of a sub-policy's action."""
        ratio = getattr(self, f"subpolicy_action_scale_{index}") / self.env_action_scale
        return ratio.expand(self.num_actions)

    # ---- who acts ------------------------------------------------------------------------------------------------

    def get_policy_selection(self, observations: Tensor) -> Tensor:
        """Who acts: bool one-hot `(N, ..., n)` over the sub-policies; ValueError for one that is not there."""
        return self._present(self._obstacles(observations), len(self.submodules))

    def _obstacles(self, observations: Tensor) -> Tensor:
        """The obstacle one-hot as bool, `(N, ..., C)`; the first column where no obstacle is named."""
        block = observations[..., self._place("engaging_block")]
        onehot = block[..., self.OBSTACLE_ONEHOT_SLICE] > 0.5
        none = ~onehot.any(dim=-1, keepdim=True)
        return torch.cat([onehot[..., :1] | none, onehot[..., 1:]], dim=-1)

    def _present(self, columns: Tensor, count: int) -> Tensor:
        """The first `count` columns of `(N, ..., C)`, padded with those that nobody selects; none beyond may be set."""
        if count < columns.shape[-1]:
            # The one look at the host, only where a policy is missing, and never while a graph is captured.
            capturing = columns.is_cuda and torch.cuda.is_current_stream_capturing()
            if not capturing and bool(columns[..., count:].any()):
                used = [i for i in range(count, columns.shape[-1]) if bool(columns[..., i].any())]
                raise ValueError(f"obstacle {used} is engaged, but there are only {count} sub-policies for obstacles")
        padding = columns.new_zeros(*columns.shape[:-1], max(0, count - columns.shape[-1]))
        return torch.cat([columns[..., :count], padding], dim=-1)

    def act(
        self,
        observations: Tensor,
        masks: Tensor | None = None,
        hidden_states: HiddenState = None,
        inference: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """The same as `act_inference`; there is no sampling and no learning from stored steps."""
        if masks is not None or hidden_states is not None:
            raise NotImplementedError(f"{type(self).__name__} acts step by step: it takes no masks or hidden_states")
        return self.act_inference(observations)

    @torch.no_grad()
    def act_inference(self, observations: Tensor) -> Tensor:
        """The actions `(N, ..., A)` of the selected policies, averaged over the last selections."""
        selection = self.get_policy_selection(observations)
        recent = self._push(selection)
        weights = recent.to(observations.dtype).mean(dim=0)
        seen = self.recover_last_action(observations, selection)
        if self.cmd_vel_current:
            seen = self.override_cmd_vel(seen, selection)
        actions = observations.new_zeros(*observations.shape[:-1], self.num_actions)
        for index, policy in enumerate(self._policies()):
            action = policy.act_inference(self.sub_normalizers[index](seen))
            actions = actions + action * self._ratio(index) * weights[..., index : index + 1]
            if self.reset_non_selected in ("all", True):
                policy.reset(~recent[..., index].any(dim=0))
            elif self.reset_non_selected == "when_skill" and index > 0:
                policy.reset(~(selection[..., index] | selection[..., 0]))
        return actions

    def _push(self, selection: Tensor) -> Tensor:
        """Remember a selection `(N, ..., n)`; returns the last ones `(len, N, ..., n)`, newest first."""
        buffer = self.action_smoothing_buffer
        if buffer is None or buffer.shape[1:] != selection.shape or buffer.device != selection.device:
            with torch.inference_mode(False):
                shape = (self.action_smoothing_buffer_len, *selection.shape)
                buffer = self.action_smoothing_buffer = torch.empty(shape, dtype=torch.bool, device=selection.device)
            buffer.copy_(selection.expand_as(buffer))
            return buffer
        buffer[1:] = buffer[:-1].clone()
        buffer[0] = selection
        return buffer

    # ---- memory --------------------------------------------------------------------------------------------------

    def reset(self, dones: Tensor | None = None) -> None:
        """Draw new velocities, then forget the memory, for finished robots or for all."""
        self.resample_cmd_vel_current(dones)
        super().reset(dones)

    def clear_hidden_states(self) -> None:
        """Start anew, as before the first step, maybe with other robots."""
        super().clear_hidden_states()
        self.action_smoothing_buffer = None
        self.resample_cmd_vel_current()


class ActorCriticClimbMutex(ActorCriticFieldMutex):
    """Tells a jump up from a jump down: the latter has a policy of its own, the last one."""

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
        # With a policy for every obstacle and one more, that one is for jumps down, wherever its path was given.
        num_obstacles = self.OBSTACLE_ONEHOT_SLICE.stop - self.OBSTACLE_ONEHOT_SLICE.start
        self._has_jump_down = bool(jump_down) or len(paths) > num_obstacles
        super().__init__(*args, sub_policy_paths=[*paths, *jump_down], **kwargs)

    def resample_cmd_vel_current(self, dones: Tensor | None = None) -> None:
        """Draw the velocities anew; without one of its own, the jump down has that of the jump up."""
        super().resample_cmd_vel_current(dones)
        last = len(self.submodules) - 1
        if not self._has_jump_down:
            return
        if self.jump_down_vel is not None:
            self._resample(last, self.jump_down_vel, dones)
        elif self.JUMP_OBSTACLE_ID in self.cmd_vel_current:
            self.cmd_vel_current[last] = self.cmd_vel_current[self.JUMP_OBSTACLE_ID]

    def get_policy_selection(self, observations: Tensor) -> Tensor:
        """Who acts: bool one-hot `(N, ..., n)`, the last column for jumps down."""
        obstacles = self._obstacles(observations)
        jump_up = observations[..., self._place("engaging_block")][..., -1] > 0
        jump = obstacles[..., self.JUMP_OBSTACLE_ID]
        others, down = obstacles.clone(), (jump & ~jump_up)[..., None]
        others[..., self.JUMP_OBSTACLE_ID] = jump & jump_up
        if not self._has_jump_down:
            return self._present(torch.cat([others, down], dim=-1), len(self.submodules))
        return torch.cat([self._present(others, len(self.submodules) - 1), down], dim=-1)
