"""Regular expressions for names in a model: each must match, and later ones take precedence."""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

try:
    import re._parser as regex_parser  # pyright: ignore[reportMissingImports]
except ImportError:  # Python 3.10
    import sre_parse as regex_parser

# Names listed in an error about a pattern.
_SHOWN = 12
_SHOWN_CHARACTERS = 80
_MAX_CHARACTERS = 500
# Ways to match that a backtracking matcher tries in about a second.
_MAX_PATHS = 30_000_000
# Cost of a call to a matcher, in such ways.
_MATCH_STEPS = 20


def match_names(pattern: str, names: Sequence[str], kind: str, where: str) -> list[int]:
    """Indices of the names that a regular expression matches in full; ValueError if it matches none.

    The error message says what the names are, `kind` (`joint`), and `where` the pattern is (`go1.yaml: default_pose`).
    """
    regex = compile_pattern(pattern, where)
    found = [index for index, name in enumerate(names) if name and regex.fullmatch(name)]
    if not found:
        raise ValueError(f"{where}: '{pattern}' matches no {kind}; {suggest_names(pattern, names)}")
    return found


def compile_pattern(pattern: str, where: str) -> re.Pattern[str]:
    """The compiled regular expression; ValueError if it is invalid."""
    if len(pattern) > _MAX_CHARACTERS:
        raise ValueError(f"{where}: '{pattern[:_SHOWN_CHARACTERS]}...' is longer than {_MAX_CHARACTERS} characters")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{where}: '{pattern}' is not a regular expression: {error}") from error


def check_patterns(patterns: Iterable[str], names: Sequence[str], where: str) -> None:
    """ValueError if matching all patterns with all names may take long, as `(F|FF)+!` does with long names."""
    longest = max(map(len, names), default=0)
    total = 0
    for pattern in patterns:
        compile_pattern(pattern, where)
        parsed = list(regex_parser.parse(pattern))  # pyright: ignore[reportArgumentType]
        total += len(names) * (_MATCH_STEPS + _count_paths(parsed, longest))
        if total > _MAX_PATHS:
            raise ValueError(
                f"{where}: '{pattern[:_SHOWN_CHARACTERS]}' may take too long on names of {longest} characters; repeat "
                "single characters only, as in '.*_hip', and only a few times"
            )


def _count_paths(parsed: Iterable[tuple[Any, Any]], length: int) -> int:
    """Upper bound of the ways in which a parsed pattern may match a name, which a backtracking matcher tries."""
    paths, num_repeats = 1, 0
    for operation, argument in parsed:
        kind = str(operation)
        if kind == "BRANCH":
            paths *= sum(_count_paths(branch, length) for branch in argument[1])
        elif kind in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            paths *= _count_paths(argument[-1], length)
        elif kind == "ATOMIC_GROUP":
            paths *= _count_paths(argument, length)
        elif kind.endswith("_REPEAT"):
            low, high, body = argument
            each, most = _count_paths(body, length), min(int(high), length)
            # Repeats of single characters share the characters of the name.
            num_repeats += int(each == 1 and low != high)
            paths *= each ** min(most, _SHOWN_CHARACTERS) if each > 1 else 1
        if paths > _MAX_PATHS:
            return paths
    return paths * math.comb(length + num_repeats, num_repeats)


def suggest_names(pattern: str, names: Sequence[str]) -> str:
    """End of an error message: the names most similar to the pattern, then the first names of all."""
    names = [name for name in names if name]
    bare = re.sub(r"[^A-Za-z0-9_]", "", pattern)
    similar = [name for name in names if len(name) < 2 * len(bare)][:_MAX_CHARACTERS]
    close = [name for name in names if bare and bare in name] or difflib.get_close_matches(bare, similar, cutoff=0.75)
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
