"""A robot description: a YAML file with what a task needs and an MJCF does not say."""

import dataclasses
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from st_rl.utils.config import unknown_name_message
from st_rl.utils.files import name_file, read_yaml_object

SUFFIXES = (".yaml", ".yml")
"""Suffixes of descriptions; other files are MJCF."""
PACKAGE_PREFIX = "package:"
GAINS = ("stiffness", "damping", "effort_limit", "armature", "friction")
"""Keys of a joint under `actuators`."""


@dataclass(frozen=True)
class RobotDescription:
    """Content of a description file; keys of tables are regular expressions that match whole names."""

    path: Path
    """The description file."""
    mjcf: Path
    """The MJCF file: a path relative to the description, or `package:NAME/PATH` for one in a Python package."""
    joints: tuple[str, ...] = ()
    """Patterns in the order in which actions and observations list the joints; the order of the MJCF without any."""
    actuators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Servo of each joint: `stiffness` in Nm/rad and `damping` in Nm s/rad, and optionally `effort_limit` in Nm,
    `armature` in kg m^2 and `friction` in Nm. They replace the actuators of the MJCF."""
    passive: tuple[str, ...] = ()
    """Joints without an actuator."""
    default_pose: Mapping[str, float] = field(default_factory=dict)
    """Joint positions, rad; others as in the keyframe `home` of the MJCF, else zero."""
    base_height: float | None = None
    """Height of the base in the default pose, m; None puts the lowest geom on the ground, or keeps the height of the
    MJCF without a `default_pose`."""
    feet: tuple[str, ...] = ()
    """Geoms, bodies or sites that are feet; found by their names and places without any."""
    falls: tuple[str, ...] = ()
    """Geoms or bodies that touch the ground only after a fall; base and knees without any."""
    collisions: tuple[str, ...] = ()
    """The only geoms of the robot that collide; empty leaves the collisions of the MJCF."""
    self_collisions: bool | None = None
    """Whether parts of the robot touch each other; None for what the MJCF says."""
    action_scale: float | Mapping[str, float] | None = None
    """Change of a joint target for an action of one, rad; None for the default of the task."""

    @classmethod
    def from_file(cls, path: str | Path) -> "RobotDescription":
        """Read a description; ValueError with the file, the key and the remedy for an invalid one."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"no robot description '{path}': give the path of a .yaml file")
        content = read_yaml_object(path, "correct the file; docs/own-robot.md shows one", "no YAML file")
        if not content:
            raise ValueError(
                f"{path} does not describe a robot: it needs lines 'key: value', at least 'mjcf: robot.xml'"
            )
        known = [f.name for f in dataclasses.fields(cls) if f.name != "path"]
        for key in content:
            if key not in known:
                raise ValueError(f"{path}: " + unknown_name_message("key", key, known))
        if not content.get("mjcf"):
            raise ValueError(f"{path} names no MJCF file: add 'mjcf: robot.xml'")
        values = {key: _READERS[key](value, f"{path}: {key}") for key, value in content.items() if value is not None}
        with name_file(path, "give the path of the MJCF file as mjcf"):
            return cls(**{**values, "path": path, "mjcf": find_mjcf(str(content["mjcf"]), path)})


def find_mjcf(name: str, description: Path) -> Path:
    """The MJCF of a description: relative to its folder, or in an installed package."""
    if name.startswith(PACKAGE_PREFIX):
        package, _, rest = name.removeprefix(PACKAGE_PREFIX).partition("/")
        try:
            # Finds a package without importing it.
            spec = importlib.util.find_spec(package) if package and "." not in package else None
        except ValueError:
            spec = None
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not folders:
            raise ValueError(
                f"{description}: mjcf: no package '{package}' is installed here; its files are enough: "
                f"pip install --no-deps {package or 'PACKAGE'}"
            )
        candidates = [Path(folder) / rest for folder in folders]
    else:
        candidates = [description.parent / Path(name).expanduser()]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ValueError(f"{description}: mjcf: no file {candidates[0]}; give its path from the folder of the description")


def _number(value: Any, where: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {value!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{where}: {value!r} is not finite: give a finite number")
    return number


def _boolean(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {value!r} is neither true nor false")
    return value


def _words(value: object, where: str) -> tuple[str, ...]:
    """A list of names, or one name."""
    names: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str):
            raise ValueError(f"{where}: {item!r} is not a name: give a list of names or patterns")
        names.append(item)
    return tuple(names)


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: {value!r} is not a table: give lines 'name or pattern: value'")
    return {str(key): item for key, item in value.items()}


def _numbers(value: object, where: str) -> dict[str, float]:
    return {key: _number(item, f"{where}: {key}") for key, item in _table(value, where).items()}


def _gains(value: object, where: str) -> dict[str, dict[str, float]]:
    result = {}
    for pattern, item in _table(value, where).items():
        gains = _numbers(item, f"{where}: {pattern}")
        for name, number in gains.items():
            if name not in GAINS:
                raise ValueError(f"{where}: {pattern}: " + unknown_name_message("name", name, GAINS))
            if number < 0 or (number == 0 and name in ("stiffness", "effort_limit")):
                raise ValueError(f"{where}: {pattern}: {name} is {number:g}: give a positive number")
        result[pattern] = gains
    return result


def _scale(value: object, where: str) -> float | dict[str, float]:
    scale = _numbers(value, where) if isinstance(value, Mapping) else _number(value, where)
    for name, number in scale.items() if isinstance(scale, dict) else [("", scale)]:
        if number <= 0:
            place = f"{where}: {name}" if name else where
            raise ValueError(f"{place} is {number:g}: give a positive number")
    return scale


_READERS = {
    "mjcf": lambda value, where: str(value),
    "joints": _words,
    "actuators": _gains,
    "passive": _words,
    "default_pose": _numbers,
    "base_height": _number,
    "feet": _words,
    "falls": _words,
    "collisions": _words,
    "self_collisions": _boolean,
    "action_scale": _scale,
}
