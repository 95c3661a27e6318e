"""Run the speed benchmarks, with rsl_rl for comparison: st-rl bench NAME."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from st_rl.cli.support.command_line import UsageError, format_rows, print_help
from st_rl.utils.config import unknown_name_message

# Name -> script in the folder benchmarks/ of the repository, and what it measures.
SCRIPTS = {
    "cpu": ("task_cpu.py", "whole trainings on the CPU: physics only, st_rl, rsl_rl on the same task"),
    "update": ("ppo_cpu.py", "acting and PPO update on the CPU, st_rl and rsl_rl, without simulation"),
    "gpu": ("walk_gpu.py", "whole trainings on a GPU: physics only, st_rl, scaling with the number of robots"),
    "gpu-update": ("ppo_gpu.py", "acting and PPO update on a GPU, st_rl and rsl_rl, without simulation"),
    "physics": ("physics_gpu.py", "physics alone on a GPU, compared with the step of MuJoCo Warp itself"),
    "peers": ("peers.py", "whole trainings of Go1 and G1 on a GPU, in turn with mjlab and rsl_rl (--peer-python)"),
    "algorithms": ("algorithm_updates.py", "updates of all algorithms relative to PPO, on CPU or GPU (--device)"),
}
_HELP = """usage: st-rl bench NAME [OPTIONS]

{rows}

st-rl bench NAME --help lists its options. Results: benchmarks/results/."""


def main(arguments: Sequence[str]) -> int:
    """Run a benchmark of the repository with the remaining arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = format_rows({name: purpose for name, (_, purpose) in SCRIPTS.items()})
        return print_help(_HELP.format(rows=rows), arguments)
    name, *options = arguments
    if name not in SCRIPTS:
        raise UsageError(unknown_name_message("benchmark", name, SCRIPTS))
    repository = Path(__file__).resolve().parents[3]
    script = repository / "benchmarks" / SCRIPTS[name][0]
    if not script.is_file():
        raise UsageError("the installed package has no benchmarks: clone the repository to run them")
    path = os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")]))
    return subprocess.call([sys.executable, str(script), *options], env={**os.environ, "PYTHONPATH": path})
