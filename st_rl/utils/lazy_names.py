"""Names of a package that are imported with their first use."""

import importlib
from collections.abc import Mapping
from typing import Any


def load_name(package: str, name: str, modules: Mapping[str, str]) -> Any:
    """Return a name of a package from the module that defines it, for the package's `__getattr__`.

    AttributeError if `modules`, name -> module, does not have it.
    """
    if name not in modules:
        raise AttributeError(f"module '{package}' has no attribute '{name}'")
    return getattr(importlib.import_module(modules[name]), name)
