"""Walk as commanded in the style of reference motions; the base of the tasks with motion priors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from st_rl.sim.envs.cfg import Range
from st_rl.sim.envs.legged_task_cfg import PushCfg
from st_rl.sim.envs.legged_walk import LeggedWalk
from st_rl.sim.envs.legged_walk_cfg import CommandsCfg, GaitCfg, LeggedWalkCfg, straight_ahead
from st_rl.sim.motions.style_reference import STYLE_FIELDS, StyleReference
from st_rl.utils.config import unknown_name_message


@dataclass
class StyleCfg:
    """The quantities in which robot and reference are compared."""

    fields: tuple[str, ...] = ("joint_pos", "joint_vel", "base_height")
    """Quantities of a style, in order (`STYLE_FIELDS` of `style_reference`)."""
    noise: dict[str, float] = field(default_factory=lambda: {"joint_pos": 0.03, "joint_vel": 1.0, "base_height": 0.005})
    """Amplitude of the uniform noise on the fields of robot and reference; fields that the style lacks are ignored.

    Without noise a discriminator recognizes the robot by the jitter of its exploration.
    """
    start_fraction: float = 0.8
    """Fraction of episodes that start from a state of the reference; others start near the default pose."""


@dataclass
class LeggedAmpCfg(LeggedWalkCfg):
    """Settings of walking in a style; the defaults are those of `quadruped-amp`."""

    motions: tuple[str, ...] = ("trot",)
    """Reference clips: files, folders, or built-in names (trot, pace, bound, trot_0.5, ...)."""
    style: StyleCfg = field(default_factory=StyleCfg)
    """The compared quantities."""
    commands: CommandsCfg = field(default_factory=lambda: straight_ahead((0.3, 0.9)))
    """Commands; the built-in clips walk straight ahead."""
    gait: GaitCfg = field(default_factory=lambda: GaitCfg(period_s=0.32))
    """The observed gait clock, with the stride period of the built-in clips."""
    push: PushCfg = field(default_factory=lambda: PushCfg(max_speed=0.0))
    """Pushes."""

    def for_evaluation(self, fine: bool = True) -> "LeggedAmpCfg":
        """Return a copy without noise, pushes, latency and randomization, from the default pose."""
        cfg = cast("LeggedAmpCfg", super().for_evaluation(fine))
        cfg.style.start_fraction, cfg.style.noise = 0.0, {}
        return cfg


class LeggedAmp(LeggedWalk):
    """Walking robots that report the style of their motion and of a reference motion.

    `observations["ref_obs"]` `(N, 2, D)` is the style before and after the step; it never crosses a reset.
    `ref_motion` `(N, 2 D)` is that of a reference clip of each robot, which starts with the episode, advances with
    every step, and restarts at a random time at its end.
    """

    cfg: LeggedAmpCfg  # pyright: ignore[reportIncompatibleVariableOverride]

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Apply actions `(N, A)`; return observation `(N, O)`, reward `(N,)`, dones `(N,)` bool and infos."""
        outcome = super().step(actions)
        self._add_styles(outcome[3])
        return outcome

    def get_observations(self) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return copies of the observation `(N, O)`, its groups and the reference."""
        obs, extras = super().get_observations()
        self._add_styles(extras)
        return obs, extras

    def _add_styles(self, infos: dict[str, Any]) -> None:
        infos["observations"]["ref_obs"] = self.style_transition.clone()
        infos["ref_motion"] = self.reference_transition.clone()

    def _set_constants(self) -> None:
        """Load the reference onto the device too."""
        super()._set_constants()
        style = self.cfg.style
        if not 0.0 <= style.start_fraction <= 1.0:
            raise ValueError(f"style.start_fraction is a fraction from 0 to 1, got {style.start_fraction}")
        self.reference = StyleReference(self.robot, self.cfg.motions, style.fields, self.step_dt, self.device)
        self.clip = self.register_buffer("clip", self._zeros(dtype=torch.long))
        """`(N,)` reference clip of each robot."""
        self.clip_time = self.register_buffer("clip_time", self._zeros())
        """`(N,)` time in the clip, s."""
        self._style_before = self.register_buffer("style_before", self._zeros(self.reference.width))
        self.style_transition = self.register_buffer("style_transition", self._zeros(2, self.reference.width))
        """`(N, 2, D)` style of the robots before and after the last step."""
        self.reference_transition = self.register_buffer("reference_transition", self._zeros(2 * self.reference.width))
        """`(N, 2 D)` style of the references before and after it."""

    def _random_ranges(self) -> dict[str, Sequence[Range]]:
        """Add three numbers (a clip, a time in it, whether to start there) and the noise of styles."""
        ranges = {**super()._random_ranges(), "reference": [(0.0, 1.0)] * 3}
        noise = self.cfg.style.noise
        for name in noise:
            if name not in STYLE_FIELDS:
                raise ValueError(unknown_name_message("style field in style.noise", name, STYLE_FIELDS))
        if any(noise.get(name) for name in self.reference.widths):
            row = [noise.get(name, 0.0) for name, width in self.reference.widths.items() for _ in range(width)]
            ranges["style_noise"] = [(-value, value) for value in row] * 4
        return ranges

    def _style(self) -> torch.Tensor:
        """`(N, D)` current style of the robots."""
        return torch.cat([getattr(self, name) for name in self.cfg.style.fields], dim=1)

    def _update_errors(self) -> None:
        """Compute the tracking errors and the style transitions, before any reset."""
        super()._update_errors()
        self.style_transition[:, 0].copy_(self._style_before)
        self.style_transition[:, 1].copy_(self._style())
        self.reference_transition.copy_(self.reference.transition(self.clip, self.clip_time))
        if "style_noise" in self.random:
            own, other = self.random["style_noise"].chunk(2, dim=1)
            self.style_transition.add_(own.view_as(self.style_transition))
            self.reference_transition.add_(other)

    def _reset_envs(self, mask: torch.Tensor) -> None:
        """Advance the references, reset the robots of `mask`, and store the current styles."""
        clip, time = self.reference.sample(self.random["reference"][:, :2])
        self.clip_time.add_(self.step_dt)
        restarts = mask | self.reference.is_over(self.clip, self.clip_time)
        self.clip.copy_(torch.where(restarts, clip, self.clip))
        self.clip_time.copy_(torch.where(restarts, time, self.clip_time))
        super()._reset_envs(mask)
        # A robot that starts from a cyclic clip has its phase.
        from_reference = mask & self._starts_from_reference
        self.phase.copy_(torch.where(from_reference, (self.clip_time / self.cfg.gait.period_s).frac(), self.phase))
        self._style_before.copy_(self._style())

    def _sample_initial_states(self) -> None:
        """Sample an initial state for every robot: on its reference, or near the default pose."""
        super()._sample_initial_states()
        qpos, qvel = self.reference.state(self.clip, self.clip_time)
        self._starts_from_reference = self.random["reference"][:, 2] < self.cfg.style.start_fraction
        column = self._starts_from_reference[:, None]
        self._start_qpos.copy_(torch.where(column, qpos, self._start_qpos))
        self._start_qvel.copy_(torch.where(column, qvel, self._start_qvel))
