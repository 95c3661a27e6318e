"""How commands and pages write metrics, durations and numbers of robots."""

import math
from typing import Any

# Fractions; all other metrics are numbers.
_PERCENT = ("success", "push_survival", "reached_time_limit", "reached_end", "completed")


def format_metric(name: str, value: Any, num_envs: int | None = None) -> str:
    """Format a metric of `num_envs` robots: fractions in percent, `-` if it could not be measured."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, (list, tuple)):
        return " ".join("-" if item is None or not math.isfinite(item) else f"{item:.2f}" for item in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name in ("falls", "knee_contacts") and num_envs is not None:
        return f"{value} of {num_envs}"
    if name in _PERCENT:
        return f"{value:.0%}"
    if isinstance(value, int):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def format_duration(seconds: float) -> str:
    """Return a duration as h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def describe_size(num_envs: int, num_ranks: int) -> str:
    """Describe the number of robots, in all and on each rank."""
    if num_ranks == 1:
        return f"{num_envs} robots"
    return f"{num_ranks * num_envs} robots on {num_ranks} ranks, {num_envs} each"
