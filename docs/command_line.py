"""Generates the page `command-line.md` from the `--help` of every `st-rl` command, as a hook of the MkDocs build."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

PAGE = "command-line.md"
_COLUMNS = 84
_INTRODUCTION = """# Command line

Generated from the parsers: `st-rl COMMAND --help` prints the same. `st-rl --help` lists the commands. Without an
installation, type `python -m st_rl` for `st-rl`.

- `RUN` is a run folder, the beginning of its name, a task (its newest run), `latest` or `pretrained:NAME`;
  `RUN:CHECKPOINT` names a checkpoint too.
- Options follow the fields of the configuration: `--env.episode-length-s 20` sets `episode_length_s` of the task,
  `--algorithm.learning-rate 5e-4` sets `learning_rate` of the algorithm. A boolean field `x` has `--x` and `--no-x`.
- Exit codes: 0 for success, 1 for an error, 2 for a wrong command line, 130 after Ctrl-C. `--debug` shows the stack
  trace.
"""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated page to the site (called by MkDocs)."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `st_rl` need not be installed
    files.append(File.generated(config, PAGE, content=render_page()))
    return files


def render_page() -> str:
    """The Markdown of the page: one section per command, and all settings of one task."""
    from st_rl.cli import COMMANDS

    parts = [_INTRODUCTION]
    for command in COMMANDS:
        module = importlib.import_module(f"st_rl.cli.commands.{command}")
        parts.append(_section(2, [command]))
        own_options = ["RUN KIT"] if command == "deploy" else []
        parts += [_section(3, [command, *action.split()]) for action in (*own_options, *getattr(module, "ACTIONS", ()))]
    parts.append("## All settings of a task\n\nThose of `quadruped-walk`; every task has its own list.\n")
    parts.append(_code_block(read_help(["train", "quadruped-walk"])))
    return "\n".join(parts)


def read_help(arguments: list[str]) -> str:
    """What `st-rl ARGUMENTS --help` prints, without colors and frames."""
    from st_rl.cli import main

    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(_COLUMNS)
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            exit_code = main([*arguments, "--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    if exit_code != 0:
        raise RuntimeError(f"st-rl {' '.join(arguments)} --help failed with exit code {exit_code}")
    return _remove_frames(output.getvalue())


def _section(level: int, arguments: list[str]) -> str:
    name = " ".join(arguments)
    return f"{'#' * level} st-rl {name}\n\n{_code_block(read_help(arguments))}"


def _code_block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _remove_frames(text: str) -> str:
    """Help in the style of argparse: a title with a colon instead of a rule below it."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    text = re.sub(r"^ (\S.*)\n -+$", r"\1:", "\n".join(lines), flags=re.MULTILINE)
    return re.sub(r"^ *-{5,}\n", "", text, flags=re.MULTILINE)
