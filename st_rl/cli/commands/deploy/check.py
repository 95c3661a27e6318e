"""Check a deploy kit, its files, golden run and closed loop in plain MuJoCo: st-rl deploy check KIT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from st_rl.cli.support.command_line import UsageError, parse_options


@dataclass
class CheckOptions:
    """Options of `st-rl deploy check`."""

    kit: Path
    """Folder of the kit."""
    num_robots: int = 16
    """Robots that walk in each closed loop, with commands from the ranges of the training."""
    seconds: float = 20.0
    """Length of a walk."""


def main(arguments: Sequence[str]) -> int:
    """Check a kit and print a table; the exit code is 1 if a check failed."""
    options = parse_options(CheckOptions, arguments, "deploy check", __doc__)
    require_kit(options.kit)
    from st_rl.export.deploy.check import check_kit

    has_failed = False
    for result in check_kit(options.kit, options.num_robots, options.seconds):
        mark = {True: "pass", False: "FAIL", None: "info"}[result.passed]
        print(f"{mark}  {result.name:<38} {result.detail}", flush=True)
        has_failed |= result.passed is False
    print("The kit failed." if has_failed else "The kit passed.")
    return int(has_failed)


def require_kit(folder: Path) -> None:
    """UsageError if a folder is not a kit."""
    from st_rl.export.deploy.kit import CHECKSUM_FILE

    if not (folder / CHECKSUM_FILE).is_file():
        raise UsageError(f"{folder} is not a deploy kit (no {CHECKSUM_FILE}): write one with st-rl deploy RUN {folder}")
