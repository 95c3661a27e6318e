"""The command line `st-rl`.

Each module or package of `st_rl.cli.commands` is a command: the first line of its docstring is its help, and
`main(arguments)` returns the exit code. torch is imported inside the commands only, so that `--help` is fast.
"""

import atexit
import importlib
import os
import sys
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from st_rl.cli.support.command_line import (
    CommandError,
    UsageError,
    detect_program,
    format_rows,
    one_line,
    wrap,
)
from st_rl.cli.support.graceful_shutdown import exit_on_signals
from st_rl.utils.config import unknown_name_message

COMMANDS = (
    "train",
    "distill",
    "sweep",
    "resume",
    "eval",
    "play",
    "view",
    "report",
    "runs",
    "compare",
    "config",
    "export",
    "import",
    "deploy",
    "share",
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
# Seconds in which torchrun notices that a rank has ended.
_NOTICE_S = 1.0
# Errors with messages written for the user; any other error is printed with its class.
_EXPECTED_ERRORS = (CommandError, OSError, ValueError)
# More of them by name, so that their modules need not be imported.
_EXPECTED_NAMES = ("ExportError", "RenderingError", "ShareError", "ViewerError")
# One folder for everything that is compiled: kernels of MuJoCo Warp, and torch's and triton's compiled code.
CACHE_VARIABLE = "ST_RL_CACHE"
_CACHE_FOLDERS = {"WARP_CACHE_PATH": "warp", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


_HELP = """usage: st-rl COMMAND [OPTIONS]

Train legged robots, evaluate their policies and export them.

commands:
{commands}

st-rl COMMAND --help lists the options of a command. First steps:
  st-rl doctor                   check the installation
  st-rl train balance            train a cart-pole, in seconds
  st-rl train quadruped-walk     train a quadruped to walk, in minutes
  st-rl play latest              watch the policy

{options}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `st-rl` and return its exit code: 2 for a wrong command line, 1 for other errors."""
    if argv is None:
        detect_program(sys.argv[0])
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with exit_on_signals():
            return _dispatch(arguments)
    except SystemExit as stop:  # raised by a signal, and by the argument parser after --help or a wrong value
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        _print_error(error)
        return _end_rank(error)


def exit_process(code: int) -> NoReturn:
    """End the process; a rank of torchrun without deleting all modules, which takes longer than to save."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_rank(error: Exception) -> int:
    """Return the exit code; a rank of torchrun ends here, because it would wait for dead ranks in its process group."""
    exit_code = error.exit_code if isinstance(error, CommandError) else 1
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(error, RuntimeError):
            # torchrun names the first rank that ends: if an exchange failed, let it notice the dead rank before.
            time.sleep(_NOTICE_S)
        os._exit(exit_code)
    return exit_code


def _dispatch(arguments: list[str]) -> int:
    use_cache_folder()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _print_help()
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        from st_rl import __version__

        print(f"st_rl {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        raise UsageError(f"{unknown_name_message('command', name, COMMANDS)} (see st-rl --help)")
    return _module(name).main(arguments[1:])


def use_cache_folder(environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep compiled code in the folder that `ST_RL_CACHE` names; without it, or set apart, each compiler's own place.

    Must run before torch and Warp are imported.
    """
    folder = environment.get(CACHE_VARIABLE)
    if not folder:
        return
    for variable, name in _CACHE_FOLDERS.items():
        environment.setdefault(variable, str(Path(folder).expanduser().resolve() / name))


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"st_rl.cli.commands.{command}")


def _print_help() -> None:
    rows = {command: (_module(command).__doc__ or "").splitlines()[0] for command in COMMANDS}
    options = wrap("options of every command: --help, --debug (stack trace of an error); st-rl --version")
    print(_HELP.format(commands=format_rows(rows), options=options))


def _print_error(error: Exception) -> None:
    """Print an error as one line on standard error."""
    message = one_line(error)
    missing_extra = isinstance(error, ImportError) and "pip install" in message
    if not (isinstance(error, _EXPECTED_ERRORS) or type(error).__name__ in _EXPECTED_NAMES or missing_extra):
        message = f"unexpected {type(error).__name__}: {message} (--debug shows the stack trace)"
    print(f"st-rl: {message}", file=sys.stderr)
