"""Compare a log of a robot with the golden run of its kit: st-rl deploy compare KIT LOG.npz."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from st_rl.cli.commands.deploy.check import require_kit
from st_rl.cli.support.command_line import CommandError, parse_options


@dataclass
class CompareOptions:
    """Options of `st-rl deploy compare`."""

    kit: Path
    """Folder of the kit."""
    log: Path
    """npz file with the inputs by name (T, ...), joint_targets (T, J) and time (T,) in s."""


def main(arguments: Sequence[str]) -> int:
    """Print what a log shows; the exit code is 1 if it shows a fault."""
    options = parse_options(CompareOptions, arguments, "deploy compare", __doc__)
    require_kit(options.kit)
    from st_rl.export.deploy.compare import compare_log
    from st_rl.utils.files import load_arrays, name_file

    with name_file(options.log, "save it with numpy.savez_compressed", CommandError):
        log = load_arrays(options.log)
    findings = compare_log(options.kit, log)
    for finding in findings:
        print(f"{'FAULT' if finding.is_fault else 'note '}  {finding.name}: {finding.message}")
    num_faults = sum(finding.is_fault for finding in findings)
    print(f"{num_faults} faults found." if num_faults else "No fault found: the targets follow from the inputs.")
    return int(num_faults > 0)
