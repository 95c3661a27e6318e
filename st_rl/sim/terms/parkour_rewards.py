"""Reward terms and terminations of `quadruped-parkour` beside those of walking: functions of the task, `(N,)`."""

from typing import Any

import torch


def progress(task: Any) -> torch.Tensor:
    """Speed along the track as a share of the commanded speed, at most one."""
    return torch.minimum(task.track_velocity / task.commands[:, 0].clamp(min=0.1), torch.ones_like(task.phase))


def knee_contact(task: Any) -> torch.Tensor:
    """Number of knees that touch something."""
    return task.num_knee_contacts


def off_track(task: Any) -> torch.Tensor:
    """Whether the base is beside its track."""
    return task.track_offset.abs() > task.cfg.tracks.width / 2


def in_pit(task: Any) -> torch.Tensor:
    """Whether the base is so low that the robot must be in a gap or beside its track."""
    return task.base_height.squeeze(1) < task.cfg.lowest_base
