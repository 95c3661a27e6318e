"""Print the settings of a run as a YAML file for st-rl train --config: st-rl config RUN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from st_rl.cli.support.command_line import CommandError, conf, parse_options
from st_rl.cli.support.run_folders.run_folder import RUN_FILE, find_run, writable_file
from st_rl.cli.support.training.settings_file import describe_settings, format_settings


@dataclass
class ConfigOptions:
    """Options of `st-rl config`."""

    run: Annotated[str, conf("arg", metavar="RUN")]
    """Run: its folder, the beginning of its name, a task (its newest run), or latest."""
    changed: bool = False
    """Whether to print only the settings that differ from the defaults of the task."""
    output: Path | None = None
    """File to write; None prints the settings."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ConfigOptions, arguments, "config", __doc__)
    run = find_run(options.run, announce=options.output is not None)
    from st_rl.utils.files import name_file

    with name_file(run.file(RUN_FILE), run.remedy(RUN_FILE), CommandError):
        text = format_settings(*describe_settings(run, options.changed))
    if options.output is None:
        print(text, end="")
        return 0
    from st_rl.utils.files import atomic_write

    with atomic_write(writable_file(options.output)) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(options.output)
    return 0
