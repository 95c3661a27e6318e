"""The command line `st-rl`: one file a command.

A command is a module of this package with a one-line docstring, which is its help, and `main(arguments) -> exit code`.
Nothing here imports torch before a command needs it, so that help is instant.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from st_rl.cli.support.command_line import CommandError, UsageError, one_line, unknown_name, wrapped

COMMANDS = (
    "train",
    "distill",
    "sweep",
    "resume",
    "eval",
    "play",
    "report",
    "export",
    "collect",
    "dagger",
    "dataset",
    "motion",
    "bench",
    "tasks",
    "robot",
    "doctor",
)

INTERRUPTED = 130
# Error classes whose message was written for the user; any other class is named, because it is a surprise.
_EXPECTED_ERRORS = (CommandError, OSError, ValueError)
# Further ones by name, so that their modules need not be imported.
_EXPECTED_NAMES = ("CheckpointError", "ExportError", "RenderingError")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `st-rl` with the given arguments and return its exit code: 2 for a wrong command line, 1 for other errors."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        return _dispatch(arguments)
    except SystemExit as stop:  # the argument parser ends this way after help and after a wrong value
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        _say_error(error)
        return error.exit_code if isinstance(error, CommandError) else 1


def _dispatch(arguments: list[str]) -> int:
    """Run the command that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _print_help()
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        from st_rl import __version__

        print(f"st_rl {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        raise UsageError(f"{unknown_name('command', name, COMMANDS)} (st-rl --help explains them)")
    return _module(name).main(arguments[1:])


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"st_rl.cli.commands.{command}")


def _print_help() -> None:
    """Say what there is and how to begin."""
    lines = [
        "usage: st-rl COMMAND [OPTIONS]",
        "",
        "Train legged robots, see them walk, and take the policy home.",
        "",
        "commands:",
    ]
    for command in COMMANDS:
        lines.append(wrapped(f"  {command:<8} {(_module(command).__doc__ or '').splitlines()[0]}", 11))
    lines += [
        "",
        "st-rl COMMAND --help lists the options of a command. Begin with:",
        "  st-rl doctor                   is everything here?",
        "  st-rl train balance            a cart-pole that learns in seconds",
        "  st-rl train quadruped-walk     a robot that walks in minutes",
        "  st-rl play latest              see what it learned",
        "",
        wrapped("options for every command: --help, --debug (stack trace of an error); st-rl --version"),
    ]
    print("\n".join(lines))


def _say_error(error: Exception) -> None:
    """One line on standard error."""
    message = one_line(error)
    missing_extra = isinstance(error, ImportError) and "pip install" in message
    if not (isinstance(error, _EXPECTED_ERRORS) or type(error).__name__ in _EXPECTED_NAMES or missing_extra):
        message = f"unexpected {type(error).__name__}: {message} (--debug shows where)"
    print(f"st-rl: {message}", file=sys.stderr)
