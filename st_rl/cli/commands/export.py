"""Export a policy to ONNX and compare it with torch: st-rl export RUN."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl import __version__
from st_rl.cli.support.command_line import CommandError, parse_options, program, quote
from st_rl.cli.support.run_folders.run_folder import (
    POLICY_FILE,
    RUN_FILE,
    PolicyOptions,
    RunFolder,
    find_policy,
    writable_file,
)

if TYPE_CHECKING:
    from torch import Tensor

    from st_rl.modules.policy.load import LoadedPolicy

NUM_OBSERVATIONS = 800
"""Observations of the run that the file is compared on."""


@dataclass
class ExportOptions(PolicyOptions):
    """Options of `st-rl export`."""

    output: Path | None = None
    """File of the policy; None writes policy.onnx in the run folder."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ExportOptions, arguments, "export", __doc__)
    run, checkpoint = find_policy(options.run, options.checkpoint)
    target = writable_file(options.output or run.file(POLICY_FILE))
    from st_rl.export import export_onnx
    from st_rl.modules.policy.load import load_policy
    from st_rl.utils.files import write_json

    policy_io = _read_metadata(run)
    policy = load_policy(run.path, checkpoint.resolve())
    actor_critic = policy.actor_critic
    metadata = {"task": run.settings.get("task"), "iteration": policy.iteration, "st_rl_version": __version__}
    observations = _sample_observations(policy)
    report = export_onnx(actor_critic, policy.obs_normalizer, target, metadata | policy_io, observations)
    content = {**dataclasses.asdict(report), "command_line": f"{program()} export {shlex.join(arguments)}"}
    write_json(target.with_suffix(".json"), content)
    states = "; hidden states are inputs and outputs" if report.state_names else ""
    print(
        f"{target}: opset {report.opset}, input obs (batch, {actor_critic.num_actor_obs}), output actions (batch, "
        f"{actor_critic.num_actions}){states}\n"
        f"Largest difference from torch: {report.largest_difference:.1e} on {report.observations_compared} observations"
    )
    return 0


def _read_metadata(run: RunFolder) -> dict[str, Any]:
    """Return what the run says about the inputs and outputs of its policy."""
    from st_rl.env.policy_metadata import FORMAT

    metadata = run.settings.get("policy_metadata")
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise CommandError(
            f"{run.file(RUN_FILE)} does not describe the observations of its policy in this version: write it again "
            f"with {program()} resume {quote(str(run.path))} --iterations 1"
        )
    return metadata


def _sample_observations(policy: LoadedPolicy) -> Tensor:
    """Return `NUM_OBSERVATIONS` observations `(M, O)`: those of the checkpoint, and others around them."""
    import torch

    from st_rl.modules.normalizer import EmpiricalNormalization

    generator = torch.Generator().manual_seed(0)
    # A checkpoint of another library, or one that was saved before the training, holds none.
    stored = torch.zeros(1, policy.actor_critic.num_actor_obs) if policy.observations is None else policy.observations
    obs = stored[:NUM_OBSERVATIONS]
    copies = obs[torch.arange(NUM_OBSERVATIONS - len(obs)) % len(obs)]
    spread = torch.ones(obs.shape[1]) if policy.observations is None else obs.std(dim=0, correction=0)
    obs = torch.cat([obs, copies + spread * torch.randn(copies.shape, generator=generator)])
    normalizer = policy.obs_normalizer
    return normalizer.inverse(obs) if isinstance(normalizer, EmpiricalNormalization) else obs
