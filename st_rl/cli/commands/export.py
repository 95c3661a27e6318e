"""Export a policy to ONNX and compare it with torch: st-rl export RUN."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl import __version__
from st_rl.cli.support.command_line import parse_options, program
from st_rl.cli.support.run_folders.run_folder import POLICY_FILE, RunFolder, RunOptions, find_policy, writable_file

if TYPE_CHECKING:
    from torch import Tensor

    from st_rl.modules.policy.load import LoadedPolicy

_log = logging.getLogger(__name__)
NUM_OBSERVATIONS = 800
"""Observations of the run that the file is compared on."""


@dataclass
class ExportOptions(RunOptions):
    """Options of `st-rl export`."""

    output: Path | None = None
    """File of the policy; None writes policy.onnx in the run folder."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ExportOptions, arguments, "export", __doc__)
    run, checkpoint = find_policy(options.run, options.checkpoint)
    target = writable_file(options.output or run.file(POLICY_FILE))
    from st_rl.export import export_onnx
    from st_rl.utils.files import write_json

    policy, policy_io, observations = _read_run(run, checkpoint) or _simulate_run(run, checkpoint, options.task)
    metadata = {
        "task": run.settings.get("task"),
        "iteration": policy.iteration,
        "st_rl_version": __version__,
        **policy_io,
    }
    actor_critic = policy.actor_critic
    report = export_onnx(actor_critic, policy.obs_normalizer, target, metadata, observations)
    content = {**dataclasses.asdict(report), "command_line": f"{program()} export {shlex.join(arguments)}"}
    write_json(target.with_suffix(".json"), content)
    states = "; hidden states are inputs and outputs" if report.state_names else ""
    print(
        f"{target}: opset {report.opset}, input obs (batch, {actor_critic.num_actor_obs}), output actions (batch, "
        f"{actor_critic.num_actions}){states}\n"
        f"Largest difference from torch: {report.largest_difference:.1e} on {report.observations_compared} observations"
    )
    return 0


def _read_run(run: RunFolder, checkpoint: Path) -> tuple[LoadedPolicy, dict[str, Any], Tensor] | None:
    """Return the policy, its metadata and observations `(M, O)` from the folder; None if these are not stored."""
    import torch

    from st_rl.env.policy_metadata import FORMAT
    from st_rl.modules.normalizer import EmpiricalNormalization
    from st_rl.modules.policy.load import load_policy

    metadata = run.settings.get("policy_metadata")
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        return None
    policy = load_policy(run.path, checkpoint.resolve())
    obs, generator = policy.observations, torch.Generator().manual_seed(0)
    if obs is None:
        if "imported_from" not in run.settings:
            return None
        # A checkpoint of another library holds none.
        obs = torch.randn(NUM_OBSERVATIONS, policy.actor_critic.num_actor_obs, generator=generator)
    normalizer, obs = policy.obs_normalizer, obs[:NUM_OBSERVATIONS]
    # Few environments: more observations around theirs.
    copies = obs[torch.arange(NUM_OBSERVATIONS - len(obs)) % len(obs)]
    noise = obs.std(dim=0, correction=0) * torch.randn(copies.shape, generator=generator)
    obs = torch.cat([obs, copies + noise])
    return policy, metadata, normalizer.inverse(obs) if isinstance(normalizer, EmpiricalNormalization) else obs


def _simulate_run(run: RunFolder, checkpoint: Path, task: str | None) -> tuple[LoadedPolicy, dict[str, Any], Tensor]:
    """Return the policy, its metadata and observations `(M, O)` from an environment of the run's task."""
    import torch

    from st_rl.cli.support.run_folders.loaded_run import LoadedRun
    from st_rl.env.policy_metadata import describe_policy_io
    from st_rl.env.utils import split_observations, split_step

    _log.debug("%s stores no metadata or no observations of its policy: simulating its task", run.path)
    loaded = LoadedRun(run, task)
    env = loaded.make_eval_env(num_envs=4, seconds=10.0, seed=20_003)
    policy = loaded.load_policy(env, checkpoint)
    recorded = []
    with torch.inference_mode():
        obs = split_observations(env.get_observations())[0]
        for _ in range(NUM_OBSERVATIONS // 4):
            recorded.append(obs.cpu().clone())
            obs, _, _, dones, _ = split_step(env.step(policy(obs)))
            policy.reset(dones)
    return policy, describe_policy_io(env), torch.cat(recorded)
