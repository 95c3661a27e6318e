"""Look at, check, repair, join and export demonstrations: st-rl dataset info | check | repair | merge | export."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from st_rl.cli.command_line import UsageError, unknown_name

ACTIONS = ("info", "check", "repair", "merge", "export")
_HELP = """usage: st-rl dataset ACTION FOLDER [OPTIONS]

{rows}

FOLDER holds trajectories at any depth, such as those of st-rl collect or of several st-rl dagger.
st-rl dataset ACTION --help lists the options of each."""


def main(arguments: Sequence[str]) -> int:
    """Run the action that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = [f"  {name:<8} {(_module(name).__doc__ or '').splitlines()[0]}" for name in ACTIONS]
        print(_HELP.format(rows="\n".join(rows)))
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in ACTIONS:
        raise UsageError(f"{unknown_name('action', name, ACTIONS)} (st-rl dataset --help explains them)")
    return _module(name).main(rest)


def _module(action: str) -> ModuleType:
    return importlib.import_module(f"st_rl.cli.dataset.{action}")
