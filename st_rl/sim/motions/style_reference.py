"""Reference motions on the device of a task."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from st_rl.datasets.clip import MotionClip
from st_rl.datasets.library import load_clips
from st_rl.datasets.motion_table import MotionTable
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.motions.ground import raise_from_ground
from st_rl.sim.motions.prepare import prepare_clip
from st_rl.sim.robots import Robot
from st_rl.utils.config import unknown_name_message
from st_rl.utils.tensors import rotations

STYLE_FIELDS: dict[str, Callable[[MotionClip], np.ndarray]] = {
    "joint_pos": lambda clip: clip.joint_pos,
    "joint_vel": lambda clip: clip.joint_vel,
    "base_height": lambda clip: clip.root_pos[:, 2:],
    "projected_gravity": lambda clip: rotations.rotate_inverse(clip.root_rot, np.array([0.0, 0.0, -1.0])),
    "base_lin_vel": lambda clip: rotations.rotate_inverse(clip.root_rot, clip.root_lin_vel),
    "base_ang_vel": lambda clip: rotations.rotate_inverse(clip.root_rot, clip.root_ang_vel),
}
"""Quantities of a style, `(F, width)` of a clip; walking tasks have attributes of the same names."""


class StyleReference:
    """Clips resampled to the control period: style transitions and initial states, readable without a host sync."""

    def __init__(
        self,
        robot: Robot,
        motions: Sequence[str],
        fields: Sequence[str],
        step_dt: float,
        device: torch.device | str,
    ) -> None:
        """Load motions, named as for `motion_paths`; joints are matched to those of the robot by name."""
        for name in fields:
            if name not in STYLE_FIELDS:
                raise ValueError(unknown_name_message("style field", name, STYLE_FIELDS))
        if not fields:
            raise ValueError(f"a style needs fields: choose among {', '.join(STYLE_FIELDS)}")
        self.clips = load_clips(motions, robot.joint_names, lambda clip: prepare_clip(robot, clip, 1.0 / step_dt))
        """The clips with the joints of the robot and one frame per step."""
        self.widths = {name: STYLE_FIELDS[name](self.clips[0]).shape[1] for name in fields}
        """Width of each field."""
        styles = [np.concatenate([STYLE_FIELDS[name](clip) for name in fields], axis=1) for clip in self.clips]
        self.width = styles[0].shape[1]
        """`D`, the width of a style."""
        weights, durations = [clip.weight for clip in self.clips], [step_dt] * len(self.clips)
        pairs = [torch.from_numpy(np.concatenate([style[:-1], style[1:]], axis=1)) for style in styles]
        self._transitions = MotionTable(pairs, durations, weights, device)
        base = robot.require_locomotion("a reference motion")
        self._split = [robot.model.nq, robot.model.nv]
        states = []
        for clip in self.clips:
            qpos, qvel = clip_to_qpos_qvel(robot, clip)
            # Robots start at their default position, wherever the clip is.
            qpos[:, base.qpos : base.qpos + 2] = robot.default_qpos[base.qpos : base.qpos + 2]
            states.append(torch.from_numpy(np.concatenate([raise_from_ground(robot, qpos), qvel], axis=1))[:-1])
        rotation = range(base.qpos + 3, base.qpos + 7)
        self._states = MotionTable(states, durations, weights, device, [rotation])

    def sample(self, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample clips `(N,)` by weight and times `(N,)` in them from uniform numbers `(N, 2)` in [0, 1)."""
        clip = self._transitions.sample_clips(uniform[:, 0])
        return clip, (uniform[:, 1] * self._transitions.lengths[clip]).to(uniform.dtype)

    def is_over(self, clip: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """`(N,)` bool: less than a step of the clip is left at that time."""
        return time > self._transitions.lengths[clip]

    def transition(self, clip: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """`(N, 2 D)` style at a time and one step later."""
        return self._transitions.at(clip, time)

    def state(self, clip: torch.Tensor, time: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions `(N, nq)` and velocities `(N, nv)` of the robot's model at a time."""
        qpos, qvel = self._states.at(clip, time).split(self._split, dim=1)
        return qpos, qvel
