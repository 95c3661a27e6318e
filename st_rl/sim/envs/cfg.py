"""Settings of all tasks, and overrides of single fields."""

import copy
import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from st_rl.sim.backends import PhysicsCfg, fine_physics
from st_rl.sim.envs.value_types import fitted
from st_rl.utils.config import unknown_name_message

Cfg = TypeVar("Cfg")
Range = tuple[float, float]


@dataclass
class ControlCfg:
    """How actions control the joints."""

    action_scale: float | tuple[float, ...] = 0.3
    """Joint target = default position + action_scale * action, rad; one number or one per joint.

    A value in the robot's description takes precedence.
    """
    clip_actions: float = 6.0
    """Actions are clipped to this absolute value."""
    latency_s: Range = (0.0, 0.0)
    """Delay between an action and its effect, sampled once per robot, in whole physics substeps."""
    stiffness: float | None = None
    """Position gain of the PD controller, Nm/rad; required for torque actuators only."""
    damping: float | None = None
    """Velocity gain of the PD controller, Nm s/rad; required for torque actuators only."""


@dataclass
class NormalizationCfg:
    """Fixed scales of observations."""

    obs_scales: dict[str, float] = field(default_factory=dict)
    """Factor by name; observation terms refer to the names."""
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
    """Default number of robots."""
    episode_length_s: float = 10.0
    """Seconds after which an episode ends by time-out."""
    physics: PhysicsCfg = field(default_factory=PhysicsCfg)
    """Physics settings."""
    control: ControlCfg = field(default_factory=ControlCfg)
    """Joint control."""
    normalization: NormalizationCfg = field(default_factory=NormalizationCfg)
    """Scales of observations."""
    noise: NoiseCfg = field(default_factory=NoiseCfg)
    """Noise of the actor's observation."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Weight of each reward term, per second; a term of weight 0 is not computed."""
    only_positive_rewards: bool = False
    """Whether the reward is clipped at zero from below, so that ending an episode early never pays."""
    privileged_actor: bool = False
    """Whether the actor sees all that the critic sees, without noise: a teacher for `st-rl distill`."""

    def for_evaluation(self, fine: bool = True) -> "TaskCfg":
        """Return a copy for evaluations: without disturbances and randomization, with fine physics by default."""
        cfg = copy.deepcopy(self)
        cfg.noise.level = 0.0
        cfg.physics = fine_physics(cfg.physics) if fine else cfg.physics
        return cfg


def with_overrides(cfg: Cfg, overrides: Mapping[str, Any]) -> Cfg:
    """Return a copy of a configuration with overrides by dotted name, such as `{"commands.lin_vel_x": (0.3, 1.0)}`.

    Names reach into nested dataclasses and dictionaries. ValueError for an unknown name, with the nearest known one,
    and for a value of another type, with the expected one.
    """
    cfg = copy.deepcopy(cfg)
    for name, value in overrides.items():
        cfg = _replace(cfg, name.split("."), value, name)
    return cfg


def _replace(part: Any, keys: list[str], value: object, name: str) -> Any:
    """Return `part` with the value at the path `keys` replaced."""
    head, rest = keys[0], keys[1:]
    if isinstance(part, dict):
        known = list(part)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        known = [f.name for f in dataclasses.fields(part)]
    else:
        raise ValueError(f"'{name}' reaches into a value that has no parts: {part!r}")
    if head not in known:
        raise ValueError(f"option '{name}': " + unknown_name_message("name", head, known))
    old = part[head] if isinstance(part, dict) else vars(part)[head]
    new = _replace(old, rest, value, name) if rest else value
    if isinstance(part, dict):
        return {**part, head: new if rest else _like(old, new, name)}
    return dataclasses.replace(part, **{head: new if rest else _as_declared(part, head, new, name)})


def _like(old: object, value: object, name: str) -> object:
    """Return the new value of a dictionary, a list as the tuple that it replaces; ValueError if that is a number."""
    if isinstance(old, float) and (not isinstance(value, Real) or isinstance(value, bool)):
        raise ValueError(f"option '{name}' takes a number, such as {old!r}; got {value!r}")
    return tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value


def _as_declared(part: Any, field_name: str, value: object, name: str) -> Any:
    """Return the value converted to the type of its field; ValueError with the full name if it does not fit."""
    try:
        kinds = typing.get_type_hints(type(part))
    except NameError:
        # A user's configuration with types that cannot be resolved here.
        return value
    try:
        return fitted(kinds[field_name], value)
    except TypeError as error:
        old = vars(part)[field_name]
        raise ValueError(f"option '{name}' takes {error}, such as {old!r}; got {value!r}") from None
