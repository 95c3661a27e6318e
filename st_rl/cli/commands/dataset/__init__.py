"""Look at, check, repair, join and export demonstrations: st-rl dataset info | check | repair | merge | export."""

from __future__ import annotations

from collections.abc import Sequence

from st_rl.cli.support.command_line import run_action

ACTIONS = ("info", "check", "repair", "merge", "export")
_HELP = """usage: st-rl dataset ACTION FOLDER [OPTIONS]

{rows}

FOLDER holds trajectories at any depth, such as those of st-rl collect or of
several st-rl dagger.
st-rl dataset ACTION --help lists the options of each."""


def main(arguments: Sequence[str]) -> int:
    """Run the action that the first argument names."""
    return run_action(__name__, _HELP, ACTIONS, arguments)
