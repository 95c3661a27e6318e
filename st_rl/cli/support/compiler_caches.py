"""One folder for everything that is compiled: kernels of MuJoCo Warp, and torch's and triton's compiled code."""

import os
from collections.abc import MutableMapping
from pathlib import Path

CACHE_VARIABLE = "ST_RL_CACHE"
_FOLDERS = {"WARP_CACHE_PATH": "warp", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def use_cache_folder(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep compiled code in the folder that `ST_RL_CACHE` names; without it, or set apart, each compiler's own place.

    Must run before torch and Warp are imported.
    """
    folder = environment.get(CACHE_VARIABLE)
    if not folder:
        return
    for variable, name in _FOLDERS.items():
        environment.setdefault(variable, str(Path(folder).expanduser().resolve() / name))
