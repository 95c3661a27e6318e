"""Training loops; `build_runner` makes one by its class name."""

from typing import Any

from st_rl.runners.on_policy_runner import OnPolicyRunner
from st_rl.runners.trial import TrialPruned
from st_rl.utils.config import unknown_name_message

__all__ = ["OnPolicyRunner", "TrialPruned", "build_runner"]


def build_runner(name: str, *args: Any, **kwargs: Any) -> Any:
    """Make the runner of that class name."""
    classes = {k: v for k, v in globals().items() if isinstance(v, type) and hasattr(v, "learn")}
    if name not in classes:
        raise ValueError(unknown_name_message("runner class", name, classes))
    return classes[name](*args, **kwargs)
