"""Look at, convert, watch and make reference motions: st-rl motion inspect | convert | view | make."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from st_rl.cli.command_line import UsageError, unknown_name

ACTIONS = ("inspect", "convert", "view", "make")
_HELP = """usage: st-rl motion ACTION [OPTIONS]

{rows}

Motions are files (AMP .json .txt .pkl, Isaac Lab and mjlab .npz, retargeted .pkl and .csv), folders of them, or clips
of the library by name (trot, pace, bound, trot_0.5, ...). st-rl motion ACTION --help lists the options of each."""


def main(arguments: Sequence[str]) -> int:
    """Run the action that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = [f"  {name:<8} {(_module(name).__doc__ or '').splitlines()[0]}" for name in ACTIONS]
        print(_HELP.format(rows="\n".join(rows)))
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in ACTIONS:
        raise UsageError(f"{unknown_name('action', name, ACTIONS)} (st-rl motion --help explains them)")
    return _module(name).main(rest)


def _module(action: str):
    return importlib.import_module(f"st_rl.cli.motion.{action}")
