"""Names of earlier versions and what they are called now, for files that were written before."""

from collections.abc import Mapping
from typing import Any

EVALUATION_METRICS = {
    "forward_error": "lin_vel_x_error",
    "sideways_error": "lin_vel_y_error",
    "turning_error": "ang_vel_yaw_error",
    "forward_error_now": "lin_vel_x_mae",
    "sideways_error_now": "lin_vel_y_mae",
    "turning_error_now": "ang_vel_yaw_mae",
    "stance_share": "stance_fraction",
}
"""Metrics in `eval.json`."""


def rename_keys(content: Any, names: Mapping[str, str]) -> Any:
    """A copy of nested dictionaries and lists with every key that is in `names` replaced."""
    if isinstance(content, Mapping):
        return {names.get(key, key): rename_keys(value, names) for key, value in content.items()}
    return [rename_keys(item, names) for item in content] if isinstance(content, list) else content
