"""Training loops; `build_runner` makes one by its class name."""

from typing import Any

from st_rl.runners.amp_policy_runner import AmpPolicyRunner
from st_rl.runners.dagger_saver import DaggerSaver
from st_rl.runners.demonstration import DemonstrationSaver
from st_rl.runners.distillation_runner import DistillationRunner
from st_rl.runners.on_policy_runner import OnPolicyRunner
from st_rl.runners.trial import TrialPruned
from st_rl.runners.two_stage_runner import TwoStageRunner
from st_rl.utils.config import resolve_class

__all__ = [
    "AmpPolicyRunner",
    "DaggerSaver",
    "DemonstrationSaver",
    "DistillationRunner",
    "OnPolicyRunner",
    "TrialPruned",
    "TwoStageRunner",
    "build_runner",
]


def build_runner(name: str, *args: Any, **kwargs: Any) -> Any:
    """Build the runner, or saver of demonstrations, of a class name or a path `package.module:Class`."""
    bases = (OnPolicyRunner, DemonstrationSaver)
    classes = {k: v for k, v in globals().items() if isinstance(v, type) and issubclass(v, bases)}
    return resolve_class(name, classes, "runner class")(*args, **kwargs)
