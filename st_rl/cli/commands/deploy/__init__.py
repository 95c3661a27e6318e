"""Write, check and compare a deploy kit, which runs a policy on a robot: st-rl deploy RUN KIT | check | compare."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from st_rl.cli.support.command_line import asks_for_help, format_rows, print_help

ACTIONS = ("check", "compare")
_HELP = """usage: st-rl deploy RUN KIT [OPTIONS]
       st-rl deploy ACTION KIT [OPTIONS]

{rows}

A kit is a folder that runs a policy without this library: raw sensors to joint
targets, joints, gains, a recorded run as proof, and the robot for MuJoCo.
st-rl deploy RUN KIT --help lists the options of writing one, st-rl deploy
ACTION --help those of each action."""


def main(arguments: Sequence[str]) -> int:
    """Write the kit of a run, or run the action that the first argument names."""
    # Not at the top: tyro is slow to import.
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in ("write", *ACTIONS)}
    if asks_for_help(arguments[:1]):
        purposes = {name: (module.__doc__ or "").partition(": st-rl ")[0] for name, module in modules.items()}
        purposes["RUN KIT"] = purposes.pop("write")
        return print_help(_HELP.format(rows=format_rows(purposes)), arguments)
    name = arguments[0] if arguments[0] in ACTIONS else "write"
    return modules[name].main(arguments if name == "write" else arguments[1:])
