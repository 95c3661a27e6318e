"""What all commands share: errors for the user, and typed options read from the command line."""

import dataclasses
import difflib
import importlib
import shutil
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

OptionsT = TypeVar("OptionsT")
# What a user may call an option because another command or library does.
_OTHER_WORDS = {
    "--num-envs": "--robots",
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
# Options of other libraries' training scripts for which there is a command here, or no need.
_OTHER_WAYS = {
    "--headless": "leave it out: a training opens no window",
    "--video": "st-rl play RUN films a policy",
    "--resume": "st-rl resume RUN goes on with a run",
    "--load-run": "st-rl resume RUN goes on with a run",
    "--checkpoint": "st-rl resume RUN --checkpoint NUMBER goes on with a run",
}
# Wider text is hard to read; this is also its width where there is no terminal.
_MAX_COLUMNS = 120


class CommandError(Exception):
    """Something the user can put right; the message is all they see."""

    exit_code = 1


class UsageError(CommandError):
    """The command line itself is wrong."""

    exit_code = 2


def one_line(message: object) -> str:
    """A message without line breaks."""
    return " ".join(str(message).split()) or type(message).__name__


def wrapped(text: str, indent: int = 0) -> str:
    """A text broken between words at the width of the terminal, its further lines indented."""
    columns = min(_MAX_COLUMNS, shutil.get_terminal_size((_MAX_COLUMNS, 24)).columns)
    return textwrap.fill(
        text,
        max(columns, indent + 30),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """An error text for an unknown name: the nearest known one first, then all of them."""
    known = list(known)
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"unknown {kind} '{name}'; {hint}known: {', '.join(known)}"


def run_action(package: str, help_text: str, actions: Sequence[str], arguments: Sequence[str]) -> int:
    """Run the action of a command that the first argument names: `main` of the module of that name in the package.

    `help_text` shows what the modules say of themselves in the place of `{rows}`.
    """
    command = package.rpartition(".")[2]
    if not arguments or arguments[0] in ("-h", "--help"):
        documents = {name: importlib.import_module(f"{package}.{name}").__doc__ or "" for name in actions}
        purposes = {name: text.splitlines()[0].partition(": st-rl ")[0] for name, text in documents.items()}
        print(
            help_text.format(
                rows="\n".join(wrapped(f"  {name:<8} {purpose}", 11) for name, purpose in purposes.items())
            )
        )
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in actions:
        raise UsageError(f"{unknown_name('action', name, actions)} (st-rl {command} --help explains them)")
    return importlib.import_module(f"{package}.{name}").main(rest)


def parse_options(
    options: Any, arguments: Sequence[str], command: str, description: str, default: OptionsT | None = None
) -> OptionsT:
    """Read a command's options, a dataclass whose field docstrings are the help, from the command line.

    Nested fields are set by their dotted names. An unknown option is a `UsageError` with the nearest name.
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
    if unknown:
        raise UsageError(_unknown_option(unknown, parsed, command))
    return parsed


def _unknown_option(unknown: Sequence[str], parsed: Any, command: str) -> str:
    """An error text for arguments that no option takes."""
    option = next((argument for argument in unknown if argument.startswith("-")), None)
    if option is None:
        return f"unexpected argument '{unknown[0]}'; st-rl {command} --help lists the options"
    return unknown_option(option.split("=")[0], parsed, command)


def unknown_option(name: str, parsed: Any, command: str) -> str:
    """An error text for an option that a command does not have: what it is called here, or the nearest name."""
    helps = f"st-rl {command} --help lists the options"
    dashed = name.replace("_", "-")
    other = _OTHER_WORDS.get(dashed, "")
    if other in option_names(parsed):
        return f"unknown option {name}; it is called {other} here; {helps}"
    if command.startswith(("train", "sweep")) and dashed in _OTHER_WAYS:
        return f"unknown option {name}; {_OTHER_WAYS[dashed]}; {helps}"
    close = difflib.get_close_matches(dashed, list(option_names(parsed)), n=1, cutoff=0.5)
    return f"unknown option {name}; " + (f"did you mean {close[0]}? " if close else "") + helps


def without(arguments: Sequence[str], options: Collection[str]) -> list[str]:
    """The arguments without some options and their values."""
    kept, is_left_out = [], False
    for argument in arguments:
        if argument.startswith("--"):
            is_left_out = argument.split("=")[0].replace("_", "-") in options
        if not is_left_out:
            kept.append(argument)
    return kept


def option_names(options: Any, prefix: str = "--") -> Iterator[str]:
    """The command line's names of all fields of a dataclass and of the dataclasses and dictionaries inside it."""
    is_dictionary = isinstance(options, Mapping)
    values = options if is_dictionary else {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    for key, value in values.items():
        name = str(key).replace("_", "-")
        if dataclasses.is_dataclass(value) or (isinstance(value, Mapping) and value):
            yield from option_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
            if isinstance(value, bool):
                yield f"{prefix}no-{name}"
