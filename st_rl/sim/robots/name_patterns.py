"""Patterns that stand for names of a model's parts: every one must be found, and a later one counts more."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Names listed in an error about a pattern.
_SHOWN = 12


def matching(pattern: str, names: Sequence[str], kind: str, where: str) -> list[int]:
    """Indices of the names that a regular expression matches from end to end; ValueError if it matches none.

    Args:
        pattern: A name is a pattern too.
        names: In the order of the indices.
        kind: What the names belong to, for the error: `joint`.
        where: What the pattern was written for, for the error: `go1.yaml: default_pose`.
    """
    found = [index for index, name in enumerate(names) if name and compiled(pattern, where).fullmatch(name)]
    if not found:
        raise ValueError(f"{where}: '{pattern}' matches no {kind}; {nearest_words(pattern, names)}")
    return found


def compiled(pattern: str, where: str) -> re.Pattern[str]:
    """The regular expression; ValueError if it is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{where}: '{pattern}' is no regular expression: {error}") from error


def nearest_words(pattern: str, names: Sequence[str]) -> str:
    """The end of an error text: the names that look most like the pattern, then the first of all of them."""
    names = [name for name in names if name]
    bare = re.sub(r"[^A-Za-z0-9_]", "", pattern)
    close = [name for name in names if bare and bare in name] or difflib.get_close_matches(bare, names, cutoff=0.75)
    hint = f"did you mean {' or '.join(repr(name) for name in close[:3])}? " if close else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{hint}there are: {', '.join(names[:_SHOWN]) or 'none'}{more}"


def spread(values: Mapping[str, Any], names: Sequence[str], kind: str, where: str) -> dict[str, Any]:
    """Values by pattern as values by name; of several that match the later wins, part by part of a table."""
    result: dict[str, Any] = {}
    for pattern, value in values.items():
        for index in matching(pattern, names, kind, where):
            old = result.get(names[index])
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            result[names[index]] = {**old, **value} if both else value  # pyright: ignore[reportGeneralTypeIssues]
    return result
