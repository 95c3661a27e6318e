"""Names in files of earlier versions, so that their runs can still be evaluated and resumed."""

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")

OPTIONS: dict[str, str] = {
    "commands.forward": "commands.lin_vel_x",
    "commands.sideways": "commands.lin_vel_y",
    "commands.turning": "commands.ang_vel_yaw",
    "commands.standing_share": "commands.standing_fraction",
    "gait.stance_share": "gait.stance_fraction",
    "style.start_share": "style.start_fraction",
    "rewards.track_linear_velocity": "rewards.track_lin_vel_xy",
    "rewards.track_turning": "rewards.track_ang_vel_z",
    "rewards.vertical_velocity": "rewards.lin_vel_z",
    "rewards.roll_and_pitch_rate": "rewards.ang_vel_xy",
    "levels.start_levels": "curriculum.start_levels",
    "levels.moves": "curriculum.enabled",
    "curriculum.moves": "curriculum.enabled",
}
"""Options of tasks in `run.json`, by dotted name: old to new."""

LOG_TAGS: dict[str, str] = {
    "Tracking/forward_error": "Tracking/lin_vel_x_error",
    "Tracking/sideways_error": "Tracking/lin_vel_y_error",
    "Tracking/turning_error": "Tracking/ang_vel_yaw_error",
    "Reward/track_linear_velocity": "Reward/track_lin_vel_xy",
    "Reward/track_turning": "Reward/track_ang_vel_z",
    "Reward/vertical_velocity": "Reward/lin_vel_z",
    "Reward/roll_and_pitch_rate": "Reward/ang_vel_xy",
}
"""Columns of `progress.csv`: old to new."""

BUFFERS: dict[str, str] = {
    "judged_velocity": "tracked_velocity",
    "judged_commands": "tracked_commands",
    "wanted_heading": "desired_heading",
    "has_crossed": "has_cleared",
}
"""Buffers in the state of a task in a checkpoint: old to new."""

EVALUATION_METRICS = {
    "robots": "num_envs",
    "forward_error": "lin_vel_x_error",
    "sideways_error": "lin_vel_y_error",
    "turning_error": "ang_vel_yaw_error",
    "forward_error_now": "lin_vel_x_mae",
    "sideways_error_now": "lin_vel_y_mae",
    "turning_error_now": "ang_vel_yaw_mae",
    "stance_share": "stance_fraction",
}
"""Metrics in `eval.json`."""


def with_new_names(values: Mapping[str, Value], renamed: Mapping[str, str]) -> dict[str, Value]:
    """The values with keys of `renamed` replaced by their new names."""
    return {renamed.get(name, name): value for name, value in values.items()}


def rename_keys(content: object, names: Mapping[str, str]) -> Any:
    """A copy of nested dictionaries and lists with every key that is in `names` replaced."""
    if isinstance(content, Mapping):
        return {names.get(key, key): rename_keys(value, names) for key, value in content.items()}
    return [rename_keys(item, names) for item in content] if isinstance(content, list) else content
