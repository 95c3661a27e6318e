"""Inspect, repair, merge and export datasets: st-rl dataset info | check | repair | merge | export."""

from __future__ import annotations

from collections.abc import Sequence

from st_rl.cli.support.command_line import run_action

ACTIONS = ("info", "check", "repair", "merge", "export")
_HELP = """usage: st-rl dataset ACTION FOLDER [OPTIONS]

{rows}

FOLDER contains trajectories at any depth, such as those of st-rl collect or of
several st-rl dagger collectors.
st-rl dataset ACTION --help lists the options of each."""


def main(arguments: Sequence[str]) -> int:
    """Run the action that the first argument names."""
    return run_action(__name__, _HELP, ACTIONS, arguments)
