"""Imports MuJoCo in one place, with one error where it is missing; names of its classes for annotations."""

from types import ModuleType
from typing import Any, TypeAlias

# MuJoCo ships no type stubs: to a type checker its classes are Any.
MjModel: TypeAlias = Any
MjData: TypeAlias = Any
MjSpec: TypeAlias = Any
MjvScene: TypeAlias = Any


def require_mujoco() -> ModuleType:
    """The module `mujoco` with `mujoco.batch` loaded, or an ImportError that names the extra to install."""
    try:
        import mujoco
        import mujoco.batch
    except ImportError as error:
        raise ImportError(
            'the simulation needs MuJoCo 3.17 or later with mujoco.batch: pip install "st_rl[sim]"'
        ) from error
    return mujoco


class _LazyMujoco:
    """The module `mujoco`, imported when the first of its attributes is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(require_mujoco(), name)


mujoco: Any = _LazyMujoco()
