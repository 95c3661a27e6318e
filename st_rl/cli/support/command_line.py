"""Typed options read from the command line, and errors for the user."""

import dataclasses
import difflib
import math
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from st_rl.utils.config import unknown_name_message

OptionsT = TypeVar("OptionsT")
# Names that other libraries, or other commands, use for an option.
_ALIASES = {
    "--robots": "--num-envs",
    "--num-robots": "--num-envs",
    "--log-dir": "--output",
    "--output": "--log-dir",
    "--experiment-name": "--log-dir",
    "--run-name": "--log-dir",
    "--name": "--log-dir",
    "--lr": "--algorithm.learning-rate",
    "--learning-rate": "--algorithm.learning-rate",
    "--algorithm.lr": "--algorithm.learning-rate",
}
# Options of other training scripts that have no equivalent option here.
_HINTS = {
    "--headless": "leave it out: training opens no window",
    "--video": "st-rl play RUN records a video",
    "--resume": "st-rl resume RUN resumes a run",
    "--load-run": "st-rl resume RUN resumes a run, st-rl train TASK --from RUN starts a new one from its weights",
    "--checkpoint": "st-rl resume RUN --checkpoint NUMBER resumes a run",
}
# Maximum width of wrapped text; also the width where there is no terminal.
_MAX_COLUMNS = 120
_HELP_FLAGS = ("-h", "--help")


class CommandError(Exception):
    """An error that the user can fix; only its message is printed."""

    exit_code = 1


class UsageError(CommandError):
    """The command line itself is wrong."""

    exit_code = 2


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 iteration` or `2 iterations`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def check_minutes(minutes: float | None) -> None:
    """UsageError unless a time limit is a finite number above 0; None is no limit."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}; leave it out for no time limit")


def one_line(message: object) -> str:
    """Return a message without line breaks and control characters."""
    return escape_control(" ".join(str(message).split())) or type(message).__name__


def escape_control(text: object) -> str:
    r"""Return a text with control characters as escapes such as `\x1b`, so that it cannot change the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in str(text)
    )


def quote(text: str | Path) -> str:
    """Return a word or path as it can be typed in a shell, control characters as `$'...'` escapes."""
    word = str(text)
    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{escape_control(escaped)}'"


# What the user types before a command; `main` replaces it when it reads the process's own command line.
_program = "st-rl"


def program() -> str:
    """Return what the user types before a command: `st-rl`, `python -m st_rl`, or the user's own script."""
    return _program


def detect_program(script: str) -> None:
    """Remember how this process was started; `script` is its `sys.argv[0]`."""
    global _program
    path = Path(script)
    found = shutil.which(path.name)
    if found is not None and path.exists() and os.path.samefile(found, path):
        _program = shlex.quote(path.name)
    elif path.suffix != ".py":
        _program = shlex.quote(script)
    else:
        python = shutil.which("python")
        is_own = python is not None and Path(python).parent == Path(sys.executable).parent
        interpreter = "python" if is_own else shlex.quote(sys.executable)
        is_package = path.name == "__main__.py" and path.parent.name == "st_rl"
        _program = f"{interpreter} {'-m st_rl' if is_package else shlex.quote(script)}"


def wrap(text: str, indent: int = 0) -> str:
    """Wrap a text at the width of the terminal and indent its continuation lines."""
    columns = min(_MAX_COLUMNS, shutil.get_terminal_size((_MAX_COLUMNS, 24)).columns)
    width, indentation = max(columns, indent + 30), " " * indent
    return textwrap.fill(text, width, subsequent_indent=indentation, break_long_words=False, break_on_hyphens=False)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether a command line is empty or contains `--help`."""
    return not arguments or any(flag in arguments for flag in _HELP_FLAGS)


def print_help(text: str, arguments: Sequence[str]) -> int:
    """Print a help text; returns the exit code, 2 when the user typed no arguments."""
    print(text)
    return 0 if arguments else 2


def format_rows(rows: Mapping[str, str]) -> str:
    """Return the lines of a help text that list names and what they are for."""
    width = max(8, *map(len, rows))
    return "\n".join(wrap(f"  {name:<{width}} {purpose}", width + 3) for name, purpose in rows.items())


def run_action(
    command: str, help_text: str, actions: Mapping[str, Callable[[Sequence[str]], int]], arguments: Sequence[str]
) -> int:
    """Run the action that the first argument names.

    `{rows}` in `help_text` is replaced by the first docstring line of each action.
    """
    if not arguments or arguments[0] in _HELP_FLAGS:
        documents = {name: (action.__doc__ or "").splitlines()[0] for name, action in actions.items()}
        purposes = {name: text.partition(": st-rl ")[0] for name, text in documents.items()}
        return print_help(help_text.format(rows=format_rows(purposes)), arguments)
    name, *rest = arguments
    if name not in actions:
        raise UsageError(f"{unknown_name_message('action', name, actions)} (see st-rl {command} --help)")
    return actions[name](rest)


def parse_options(
    options: type[OptionsT],
    arguments: Sequence[str],
    command: str,
    description: str | None,
    default: OptionsT | None = None,
) -> OptionsT:
    """Parse the options of a command into a dataclass; the docstrings of its fields are the help.

    Nested fields have dotted names. An unknown option is a `UsageError` that names the closest option.
    """
    import tyro

    keywords: dict[str, Any] = {} if default is None else {"default": default}
    parsed, unknown = tyro.cli(
        options,
        args=list(arguments),
        prog=f"st-rl {command}",
        description=description,
        return_unknown_args=True,
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.HelptextFromCommentsOff),
        **keywords,
    )
    if not unknown:
        return parsed
    option = next((argument for argument in unknown if argument.startswith("-")), None)
    if option is None:
        raise UsageError(f"unexpected argument '{unknown[0]}'; see st-rl {command} --help")
    raise UsageError(unknown_option(option.split("=")[0], parsed, command))


def unknown_option(name: str, parsed: object, command: str) -> str:
    """Return the error text for an unknown option: its name here, or the closest option of the dataclass `parsed`."""
    see = f"see st-rl {command} --help"
    names = list(option_names(parsed))
    dashed = name.replace("_", "-")
    alias = _ALIASES.get(dashed, "")
    if alias in names:
        return f"unknown option {name}; it is called {alias} here; {see}"
    if command.startswith(("train", "sweep")) and dashed in _HINTS:
        return f"unknown option {name}; {_HINTS[dashed]}; {see}"
    close = difflib.get_close_matches(dashed, names, n=1, cutoff=0.5)
    return f"unknown option {name}; " + (f"did you mean {close[0]}? " if close else "") + see


def conf(marker_name: str, /, **settings: Any) -> Any:
    """Return a marker of `tyro.conf` for `Annotated`, such as `conf("arg", metavar="RUN")`.

    Annotations are evaluated when options are parsed, so that a command's module does not import tyro.
    """
    import tyro

    marker = getattr(tyro.conf, marker_name)
    return marker(**settings) if settings else marker


def option_value(arguments: Sequence[str], option: str) -> str | None:
    """Return the value of an option before all options are parsed; None if it is not given."""
    found = None
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option:
            found = value if equals else next(iter(arguments[index + 1 : index + 2]), None)
    return found


def drop_options(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """Return the arguments without the given options and their values."""
    kept, is_dropped = [], False
    for argument in arguments:
        if argument.startswith("--"):
            is_dropped = argument.split("=")[0].replace("_", "-") in options
        if not is_dropped:
            kept.append(argument)
    return kept


def option_names(options: object, prefix: str = "--") -> Iterator[str]:
    """Yield the option names of all fields of a dataclass, nested dataclasses and dictionaries included."""
    for key, value in (options if isinstance(options, Mapping) else vars(options)).items():
        name = str(key).rstrip("_").replace("_", "-")
        if dataclasses.is_dataclass(value) or (isinstance(value, Mapping) and value):
            yield from option_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
            if isinstance(value, bool):
                yield f"{prefix}no-{name}"
