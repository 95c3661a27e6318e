"""Measure speed beside peers and the machine's limits: st-rl bench NAME."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from st_rl.cli.support.command_line import UsageError, wrapped

# Name -> script in the repository's folder benchmarks/, and what it measures.
SCRIPTS = {
    "cpu": ("task_cpu.py", "whole trainings on the CPU: physics alone, this library, rsl_rl on the same task"),
    "update": ("ppo_cpu.py", "acting and update of PPO on the CPU beside rsl_rl, without a simulation"),
    "gpu": ("walk_gpu.py", "whole trainings on a GPU: physics alone, this library, scaling with the robots"),
    "gpu-update": ("ppo_gpu.py", "acting and update of PPO on a GPU beside rsl_rl, without a simulation"),
    "algorithms": ("algorithm_updates.py", "updates of all algorithms beside PPO's, on the CPU or a GPU (--device)"),
}
_HELP = """usage: st-rl bench NAME [OPTIONS]

{rows}

st-rl bench NAME --help lists its options. Results go to benchmarks/results/."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the repository's benchmarks with the remaining arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = "\n".join(wrapped(f"  {name:<11} {text}", 14) for name, (_, text) in SCRIPTS.items())
        print(_HELP.format(rows=rows))
        return 0 if arguments else 2
    name, *options = arguments
    if name not in SCRIPTS:
        raise UsageError(f"unknown benchmark '{name}'; known: {', '.join(SCRIPTS)}")
    repository = Path(__file__).resolve().parents[3]
    script = repository / "benchmarks" / SCRIPTS[name][0]
    if not script.is_file():
        raise UsageError("the benchmarks are not in the installed package: clone the repository to run them")
    path = os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")]))
    return subprocess.call([sys.executable, str(script), *options], env={**os.environ, "PYTHONPATH": path})
