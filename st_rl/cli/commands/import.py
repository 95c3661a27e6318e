"""Make a run of a checkpoint of another library: st-rl import rsl_rl CHECKPOINT RUN."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from st_rl.cli.support.command_line import UsageError, asks_for_help, conf, parse_options, program
from st_rl.utils.config import unknown_name_message

LIBRARIES = ("rsl_rl",)
_USAGE = "st-rl import rsl_rl CHECKPOINT RUN"


@dataclass
class ImportOptions:
    """Options of `st-rl import`."""

    library: Annotated[str, conf("arg", metavar="LIBRARY")]
    """Library of the checkpoint: rsl_rl."""
    checkpoint: Annotated[Path, conf("arg", metavar="CHECKPOINT")]
    """Checkpoint of rsl_rl 2 to 5, model_*.pt."""
    run: Annotated[Path, conf("arg", metavar="RUN")]
    """Folder of the new run."""
    config: Path | None = None
    """Configuration of the training, YAML or JSON; None uses params/agent.yaml beside the checkpoint, if it exists."""
    task: str | None = None
    """Task that the policy was trained for, such as mjlab:ID or gym:ID; without it the run cannot be played."""
    images: tuple[str, ...] = ()
    """Shape of each image group of a CNN, such as camera=1,24,32: channels, height, width."""
    activation: str = "elu"
    """Activation function, if there is no configuration."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    if len(arguments) < 3 and not asks_for_help(arguments):
        raise UsageError(f"LIBRARY, CHECKPOINT or RUN is missing: {_USAGE}")
    options = parse_options(ImportOptions, arguments, "import", __doc__)
    if options.library not in LIBRARIES:
        raise UsageError(f"{unknown_name_message('library', options.library, LIBRARIES)}; type {_USAGE}")
    if not options.checkpoint.is_file():
        raise UsageError(f"there is no checkpoint {options.checkpoint}; name a model_*.pt of rsl_rl")
    from st_rl.cli.support.run_folders.rsl_rl_run import AGENT_FILE, import_checkpoint, read_settings
    from st_rl.cli.support.task_source import find_source

    beside = options.checkpoint.parent / AGENT_FILE
    config = options.config or (beside if beside.is_file() else None)
    source = None if options.task is None else find_source(options.task)
    imported = import_checkpoint(
        options.checkpoint,
        options.run,
        None if config is None else read_settings(config),
        _read_images(options.images),
        options.activation,
        source,
        f"{program()} import {shlex.join(arguments)}",
    )
    policy = imported.policy
    sizes = f"{policy.num_actor_obs} observations, {policy.num_actions} actions"
    print(
        f"{options.run}: {type(policy).__name__} with {sizes}, iteration {imported.iteration}, "
        f"{'with' if imported.has_optimizer else 'without'} the state of the optimizer; configuration: "
        f"{config or f'sizes of the weights, activation {options.activation}'}"
    )
    return 0


def _read_images(images: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Read `NAME=C,H,W`."""
    shapes: dict[str, tuple[int, int, int]] = {}
    for text in images:
        name, _, numbers = text.partition("=")
        parts = numbers.split(",")
        if not name or len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
            raise UsageError(f"--images takes NAME=CHANNELS,HEIGHT,WIDTH, such as camera=1,24,32; got '{text}'")
        channels, height, width = (int(part) for part in parts)
        shapes[name] = (channels, height, width)
    return shapes
