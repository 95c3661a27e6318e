"""The one place that imports MuJoCo, so that its absence is explained once."""

from types import ModuleType


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
