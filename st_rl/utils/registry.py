"""Finds the class that a configuration names."""

import importlib
from collections.abc import Mapping
from typing import Any

from st_rl.utils.config import unknown_name_message

TRUST_KEY = "trust_pickle"
FUNCTION_KEY = "data_augmentation_func"
# How a file names a function: not as a path that could be imported.
STORED_FUNCTION = "function "


def is_class_path(name: object) -> bool:
    """Whether a class name has the form `package.module:Class`."""
    return isinstance(name, str) and ":" in name


def resolve_class(
    name: str, classes: Mapping[str, type], kind: str, base: type | None = None, allow_path: bool = True
) -> type:
    """Return the class registered as `name`, or the class at the path `package.module:Class`.

    Args:
        name: a key of `classes`, or a path.
        classes: the registered classes.
        kind: what the class is, for messages: "policy class".
        base: the class must be a subclass of it.
        allow_path: False for names that come from a file: a file must not import code.

    Raises:
        ValueError: for an unknown name (lists the known ones, the nearest first), a path that cannot be imported or is
            not allowed, and a class that is not a subclass of `base`.
    """
    if is_class_path(name):
        if not allow_path:
            raise ValueError(
                f"{kind} '{name}' comes from a file, and a file must not import code: give the class from Python, or "
                f"use a registered name: {', '.join(sorted(classes))}"
            )
        found = _import_class(name, kind)
    elif name in classes:
        found = classes[name]
    else:
        raise ValueError(unknown_name_message(kind, name, classes))
    if base is not None and not issubclass(found, base):
        raise ValueError(f"{kind} '{name}' must be a subclass of {base.__name__}; {found.__name__} is not")
    return found


def _import_class(path: str, kind: str) -> type:
    """Import the class at `package.module:Class`."""
    module_name, class_name = path.split(":", 1)
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in class_name.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{kind} '{path}' cannot be imported ({error}); write it as package.module:Class") from error
    if not isinstance(found, type):
        raise ValueError(f"{kind} '{path}' is not a class but {found!r}")
    return found


def reject_unsafe_settings(config: object, source: object) -> None:
    """ValueError if a configuration that was read from a file, `source`, names a class by path or trusts pickles.

    Checked are `trust_pickle` and the values of all keys that end in `class_name`, at any depth.
    """
    if isinstance(config, list | tuple):
        for item in config:
            reject_unsafe_settings(item, source)
    for key, value in config.items() if isinstance(config, Mapping) else ():
        names = value if isinstance(value, list | tuple) else [value]
        if str(key).endswith("class_name"):
            for name in filter(is_class_path, names):
                raise ValueError(
                    f"{source} names the {key} '{name}' by path, and a file must not import code: register the class "
                    f"(for a policy, st_rl.modules.{name.split(':')[-1]} = ...) and write its plain name there, or "
                    "give the class from Python"
                )
        if key == FUNCTION_KEY and value and not str(value).startswith(STORED_FUNCTION):
            raise ValueError(
                f"{source} names the function {value!r} as {key}, and a file must not import code: remove the key, "
                "and give the function from Python"
            )
        if key == TRUST_KEY and value:
            raise ValueError(
                f"{source} sets {TRUST_KEY}, and a file must not decide that pickles are trusted: remove the key, and "
                "give it from Python"
            )
        reject_unsafe_settings(value, source)


def drop_trust(config: Any) -> Any:
    """Return a configuration to be written to a file: without `trust_pickle`, and functions by a name only."""
    if isinstance(config, Mapping):
        named = {key: _stored_function(value) if key == FUNCTION_KEY else value for key, value in config.items()}
        return {key: drop_trust(value) for key, value in named.items() if key != TRUST_KEY}
    return [drop_trust(item) for item in config] if isinstance(config, list | tuple) else config


def _stored_function(function: object) -> object:
    """Return what a file says about a function, which nothing imports."""
    if function is None or str(function).startswith(STORED_FUNCTION):
        return function
    return f"{STORED_FUNCTION}{getattr(function, '__qualname__', function)}"
