"""Policies that come with the package: `pretrained:NAME`."""

from __future__ import annotations

import shutil
from pathlib import Path

from st_rl.cli.support.command_line import CommandError, UsageError, unknown_name

PRETRAINED_PREFIX = "pretrained:"
FOLDER = Path(__file__).resolve().parent.parent / "pretrained"
"""One run folder for each policy: run.json, config.json, best.pt and eval.json."""


def pretrained_names() -> list[str]:
    """Return the names of all policies of the package."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.json"))


def copy_pretrained(name: str, root: Path) -> Path:
    """Copy the policy that `pretrained:NAME` names to `root/pretrained/NAME`, where commands write beside it.

    Files of the package replace those of an earlier version; others, such as a video, stay. UsageError for a name that
    the package does not have.
    """
    name = name.removeprefix(PRETRAINED_PREFIX)
    known = pretrained_names()
    if name not in known:
        listed = [f"{PRETRAINED_PREFIX}{each}" for each in known]
        raise UsageError(unknown_name("pretrained policy", f"{PRETRAINED_PREFIX}{name}", listed))
    target = root / "pretrained" / name
    try:
        target.mkdir(parents=True, exist_ok=True)
        for source in sorted((FOLDER / name).iterdir()):
            copy = target / source.name
            if not copy.is_file() or copy.read_bytes() != source.read_bytes():
                _replace(source, copy)
    except OSError as error:
        raise CommandError(
            f"cannot copy {PRETRAINED_PREFIX}{name} to {target}: {error.strerror or error}; change to a folder of yours"
        ) from error
    return target


def _replace(source: Path, target: Path) -> None:
    """Copy a file under a temporary name and rename it."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(target)
