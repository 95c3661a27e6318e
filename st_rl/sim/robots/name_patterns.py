"""Regular expressions for names in a model: each must match, and later ones take precedence."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Names listed in an error about a pattern.
_SHOWN = 12


def match_names(pattern: str, names: Sequence[str], kind: str, where: str) -> list[int]:
    """Indices of the names that a regular expression matches in full; ValueError if it matches none.

    Args:
        pattern: A regular expression or a name.
        names: In the order of the indices.
        kind: Kind of the names, for the error: `joint`.
        where: Place of the pattern, for the error: `go1.yaml: default_pose`.
    """
    found = [index for index, name in enumerate(names) if name and compile_pattern(pattern, where).fullmatch(name)]
    if not found:
        raise ValueError(f"{where}: '{pattern}' matches no {kind}; {suggest_names(pattern, names)}")
    return found


def compile_pattern(pattern: str, where: str) -> re.Pattern[str]:
    """The compiled regular expression; ValueError if it is invalid."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{where}: '{pattern}' is no regular expression: {error}") from error


def suggest_names(pattern: str, names: Sequence[str]) -> str:
    """End of an error message: the names most similar to the pattern, then the first names of all."""
    names = [name for name in names if name]
    bare = re.sub(r"[^A-Za-z0-9_]", "", pattern)
    close = [name for name in names if bare and bare in name] or difflib.get_close_matches(bare, names, cutoff=0.75)
    hint = f"did you mean {' or '.join(repr(name) for name in close[:3])}? " if close else ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{hint}there are: {', '.join(names[:_SHOWN]) or 'none'}{more}"


def resolve_patterns(values: Mapping[str, Any], names: Sequence[str], kind: str, where: str) -> dict[str, Any]:
    """Values by name from values by pattern; later matches override earlier ones, mappings key by key."""
    result: dict[str, Any] = {}
    for pattern, value in values.items():
        for index in match_names(pattern, names, kind, where):
            old = result.get(names[index])
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            result[names[index]] = {**old, **value} if both else value  # pyright: ignore[reportGeneralTypeIssues]
    return result
