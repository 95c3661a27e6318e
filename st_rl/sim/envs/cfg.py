"""Settings that tasks share, and how single fields of them are overridden."""

import copy
import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from st_rl.sim.backends import PhysicsCfg, fine_physics
from st_rl.sim.envs.value_types import fitted
from st_rl.utils.config import unknown_name_message
from st_rl.utils.old_names import OPTIONS

Cfg = TypeVar("Cfg")
Range = tuple[float, float]


@dataclass
class ControlCfg:
    """How an action becomes the control of the joints."""

    action_scale: float | tuple[float, ...] = 0.3
    """Joint target = default position + action_scale * action, in radians; one number, or one for each joint. What a
    robot's description says comes first."""
    clip_actions: float = 6.0
    """Actions are clipped to this absolute value."""
    latency_s: Range = (0.0, 0.0)
    """Delay between an action and its effect, drawn once for each robot, in whole physics substeps."""
    stiffness: float | None = None
    """Position gain of the PD law, Nm/rad; needed for robots with torque actuators, unused for others."""
    damping: float | None = None
    """Velocity gain of the PD law, Nm s/rad; needed for robots with torque actuators, unused for others."""


@dataclass
class NormalizationCfg:
    """Fixed scales that bring observations near one."""

    obs_scales: dict[str, float] = field(default_factory=dict)
    """Factor for each kind of quantity."""
    clip_observations: float = 10.0
    """Scaled observations are clipped to this absolute value."""


@dataclass
class NoiseCfg:
    """Uniform noise of the actor's observation."""

    level: float = 1.0
    """Factor of all amplitudes; 0 disables noise."""


@dataclass
class TaskCfg:
    """Settings of every task."""

    robot: str = "quadruped"
    """Path of an MJCF file or of a robot description (.yaml), or the name of a built-in robot."""
    num_envs: int = 256
    """Number of robots simulated together unless the caller says otherwise."""
    episode_length_s: float = 10.0
    """Seconds after which an episode ends by time-out."""
    physics: PhysicsCfg = field(default_factory=PhysicsCfg)
    """How finely physics is computed."""
    control: ControlCfg = field(default_factory=ControlCfg)
    """How actions drive the joints."""
    normalization: NormalizationCfg = field(default_factory=NormalizationCfg)
    """Scales of observations."""
    noise: NoiseCfg = field(default_factory=NoiseCfg)
    """Noise of the actor's observation."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Weight of each reward term, per second; a term of weight 0 is not computed."""
    only_positive_rewards: bool = False
    """Whether the sum of the terms is cut off below at zero, so that falling early never pays."""
    privileged_actor: bool = False
    """Whether the actor sees all that the critic sees, without noise: a teacher for `st-rl distill`."""

    def for_evaluation(self, fine: bool = True) -> "TaskCfg":
        """A copy to judge a policy with: nothing disturbed or randomised, and fine physics unless told otherwise."""
        cfg = copy.deepcopy(self)
        cfg.noise.level = 0.0
        cfg.physics = fine_physics(cfg.physics) if fine else cfg.physics
        return cfg


def with_overrides(cfg: Cfg, overrides: Mapping[str, Any]) -> Cfg:
    """A copy of a configuration with fields replaced by dotted name, such as `{"commands.lin_vel_x": (0.3, 1.0)}`.

    Reaches into nested dataclasses and dictionaries. An unknown name is a ValueError with the nearest known one, and
    a value that does not fit its field is one that says what would.
    """
    cfg = copy.deepcopy(cfg)
    for name, value in overrides.items():
        cfg = _replace(cfg, name.split("."), value, name)
    return cfg


def _replace(part: Any, keys: list[str], value: Any, name: str) -> Any:
    """`part` with the value at the end of the path `keys` replaced."""
    head, rest = keys[0], keys[1:]
    if isinstance(part, dict):
        known = list(part)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        known = [f.name for f in dataclasses.fields(part)]
    else:
        raise ValueError(f"'{name}' reaches into a value that has no parts: {part!r}")
    if head not in known and name in OPTIONS:
        raise ValueError(f"option '{name}' is now called '{OPTIONS[name]}'")
    if head not in known:
        raise ValueError(f"option '{name}': " + unknown_name_message("name", head, known))
    old = part[head] if isinstance(part, dict) else getattr(part, head)
    new = _replace(old, rest, value, name) if rest else value
    if isinstance(part, dict):
        return {**part, head: new}
    return dataclasses.replace(part, **{head: new if rest else _as_declared(part, head, new, name)})


def _as_declared(part: Any, field_name: str, value: Any, name: str) -> Any:
    """The value as the type of its field wants it; ValueError, with the whole name, for one that does not fit."""
    try:
        kinds = typing.get_type_hints(type(part))
    except NameError:
        # A configuration of somebody else's whose types are not to be found from here.
        return value
    try:
        return fitted(kinds[field_name], value)
    except TypeError as error:
        old = getattr(part, field_name)
        raise ValueError(f"option '{name}' takes {error}, such as {old!r}; got {value!r}") from None
