"""Policies that come with the package: `pretrained:NAME`."""

from __future__ import annotations

import shutil
from pathlib import Path

from st_rl.cli.support.command_line import CommandError, UsageError
from st_rl.utils.config import unknown_name_message

PRETRAINED_PREFIX = "pretrained:"
WEIGHTS_FILE = "best.pt"
FOLDER = Path(__file__).resolve().parents[2] / "pretrained"
"""One run folder for each policy: run.json, config.json, best.pt and eval.json."""


def pretrained_names() -> list[str]:
    """Return the names of all policies of the package."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def copy_pretrained(name: str, root: Path) -> Path:
    """Copy the policy that `pretrained:NAME` names to `root/pretrained/NAME`, where commands write beside it.

    With other weights, from another version of the package, all its files replace those of the copy; what commands have
    written stays. UsageError for a name that the package does not have.
    """
    name = name.removeprefix(PRETRAINED_PREFIX)
    known = pretrained_names()
    if name not in known:
        listed = [f"{PRETRAINED_PREFIX}{each}" for each in known]
        raise UsageError(unknown_name_message("pretrained policy", f"{PRETRAINED_PREFIX}{name}", listed))
    target = root / "pretrained" / name
    try:
        target.mkdir(parents=True, exist_ok=True)
        is_new = not _is_equal(FOLDER / name / WEIGHTS_FILE, target / WEIGHTS_FILE)
        # The weights last: with them the copy is complete.
        for source in sorted((FOLDER / name).iterdir(), key=lambda path: path.name == WEIGHTS_FILE):
            if is_new or not (target / source.name).is_file():
                _replace(source, target / source.name)
    except OSError as error:
        raise CommandError(
            f"cannot copy {PRETRAINED_PREFIX}{name} to {target}: {error.strerror or error}; change to a folder of yours"
        ) from error
    return target


def _is_equal(first: Path, second: Path) -> bool:
    return second.is_file() and first.read_bytes() == second.read_bytes()


def _replace(source: Path, target: Path) -> None:
    """Copy a file under a temporary name and rename it."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(target)
