"""Inspect, convert, edit, view and make reference motions: st-rl motion inspect | convert | edit | view | make."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from st_rl.cli.support.command_line import run_action

ACTIONS = ("inspect", "convert", "edit", "view", "make")
_HELP = """usage: st-rl motion ACTION [OPTIONS]

{rows}

Motions are files (AMP .json .txt .pkl, Isaac Lab and mjlab .npz, retargeted
.pkl and .csv), folders of them, or built-in clips by name (trot, pace,
bound, trot_0.5, walk, squat, wave, ...). st-rl motion ACTION --help lists the
options of each."""


def main(arguments: Sequence[str]) -> int:
    """Run the action that the first argument names."""
    # Not at the top: tyro is slow to import.
    actions = {name: getattr(importlib.import_module(f"{__name__}.{name}"), name) for name in ACTIONS}
    return run_action("motion", _HELP, actions, arguments)
