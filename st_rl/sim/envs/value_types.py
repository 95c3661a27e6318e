"""Conversion of values to the declared types of configuration fields."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

_PLAIN: dict[Any, tuple[Any, str]] = {
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    str: (str, "a word"),
    bool: (bool, "True or False"),
    types.NoneType: (types.NoneType, "None"),
}


def fitted(kind: object, value: object) -> Any:
    """Return the value as a field of this type holds it: lists become tuples, a single word a tuple of one.

    TypeError with the expected type as text for a value of another type.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        wanted, words = _PLAIN[kind]
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(words)
        return value
    if origin in (typing.Union, types.UnionType):
        return _first_fit(parts, value)
    if origin is typing.Literal:
        if value not in parts:
            raise TypeError("one of " + ", ".join(str(part) for part in parts))
        return value
    if origin is tuple:
        return _fitted_tuple(parts, value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise TypeError("a dictionary")
        return {key: fitted(parts[1], item) for key, item in value.items()}
    if kind is Path:
        if not isinstance(value, str | Path):
            raise TypeError("a path")
        return Path(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__}")
    return value


def _first_fit(kinds: tuple[object, ...], value: object) -> Any:
    """Return the value converted to the first of several types that accepts it."""
    words = []
    for kind in kinds:
        try:
            return fitted(kind, value)
        except TypeError as error:
            words.append(str(error))
    raise TypeError(" or ".join(words))


def _fitted_tuple(kinds: tuple[object, ...], value: object) -> tuple[Any, ...]:
    """Return the value as a tuple of these types, of any length if the second is `...`."""
    if kinds[-1] is ...:
        items = (value,) if isinstance(value, str) else value
        words = f"several of: {_words(kinds[0])}"
        if not isinstance(items, list | tuple):
            raise TypeError(words)
        kinds = (kinds[0],) * len(items)
    else:
        items, words = value, f"{len(kinds)} values ({', '.join(_words(kind) for kind in kinds)})"
    if not isinstance(items, list | tuple) or len(items) != len(kinds):
        raise TypeError(words)
    try:
        return tuple(fitted(kind, item) for kind, item in zip(kinds, items))
    except TypeError:
        raise TypeError(words) from None


def _words(kind: object) -> str:
    """Describe a type in words."""
    if kind in _PLAIN:
        return _PLAIN[kind][1]
    return "a pair" if typing.get_origin(kind) is tuple else str(kind)
