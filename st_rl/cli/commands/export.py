"""Export a policy to ONNX and compare it with torch: st-rl export RUN."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import parse_options
from st_rl.cli.support.loaded_run import open_run
from st_rl.cli.support.run_folder import POLICY_FILE, RunOptions, writable_file

if TYPE_CHECKING:
    from torch import Tensor

    from st_rl.env import VecEnv
    from st_rl.modules.load_policy import LoadedPolicy
    from st_rl.sim.envs.task import Task

RECORDED_STEPS = 200


@dataclass
class ExportOptions(RunOptions):
    """Options of `st-rl export`."""

    output: Path | None = None
    """File of the policy; None writes policy.onnx in the run folder."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ExportOptions, arguments, "export", __doc__)
    run, checkpoint = open_run(options)
    target = writable_file(options.output or run.run.file(POLICY_FILE))
    from st_rl.export import export_onnx
    from st_rl.utils.files import write_json

    env = run.make_eval_env(num_envs=4, seconds=10.0, seed=20_003)
    policy = run.load_policy(env, checkpoint)
    metadata = describe_policy(run.source.name, env, policy.iteration)
    report = export_onnx(policy.actor_critic, policy.obs_normalizer, target, metadata, _record(env, policy))
    content = {
        **dataclasses.asdict(report),
        "metadata": metadata,
        "command_line": f"st-rl export {shlex.join(arguments)}",
    }
    write_json(target.with_suffix(".json"), content)
    states = "; hidden states are inputs and outputs" if report.state_names else ""
    print(
        f"{target}: opset {report.opset}, input obs (batch, {env.num_obs}), output actions (batch, {env.num_actions})"
        f"{states}\nLargest difference from torch: {report.largest_difference:.1e} on {report.observations_compared} "
        "observations"
    )
    return 0


def _record(env: VecEnv, policy: LoadedPolicy) -> Tensor:
    """Return observations `(M, O)` from rollouts of the policy."""
    import torch

    from st_rl.env.utils import split_observations, split_step

    recorded = []
    with torch.inference_mode():
        obs = split_observations(env.get_observations())[0]
        for _ in range(RECORDED_STEPS):
            recorded.append(obs.cpu().clone())
            obs, _, _, dones, _ = split_step(env.step(policy(obs)))
            policy.reset(dones)
    return torch.cat(recorded)


def describe_policy(task_name: str, env: VecEnv, iteration: int) -> dict[str, Any]:
    """Return the metadata that a controller needs to run the policy."""
    from st_rl import __version__
    from st_rl.env.protocols import SegmentedEnv
    from st_rl.sim.envs.task import Task

    metadata: dict[str, Any] = {
        "task": task_name,
        "iteration": iteration,
        "st_rl_version": __version__,
        "obs_segments": dict(env.obs_segments) if isinstance(env, SegmentedEnv) else {},
        "observation_normalizer": "inside the file: give raw observations",
    }
    return metadata | _describe_control(env) if isinstance(env, Task) else metadata


def _describe_control(task: Task) -> dict[str, Any]:
    """Return joints, gains, scales and gait clock of a built-in task."""
    cfg: Any = task.cfg
    robot, control, normalization = task.robot, cfg.control, cfg.normalization
    metadata = {
        "joint_names": list(robot.joint_names),
        "default_joint_pos": robot.default_joint_pos,
        "action_scale": control.action_scale,
        "clip_actions": control.clip_actions,
        "obs_terms": task.observation_table.describe(),
        "obs_scales": normalization.obs_scales,
        "clip_observations": normalization.clip_observations,
        "control_period_s": task.step_dt,
        "actuation": robot.actuation,
        "effort_limit": robot.effort_limit,
        "stiffness": robot.stiffness if control.stiffness is None else [control.stiffness] * robot.num_joints,
        "damping": robot.damping if control.damping is None else [control.damping] * robot.num_joints,
    }
    if any(column.name == "clock" for column in task.observation_table.columns):
        # No sensor measures it: the controller has to compute it.
        metadata["clock"] = {
            "period_s": cfg.gait.period_s,
            "values": "sin and cos of 2 pi t / period_s; zeros unless the norm of the command exceeds moving_threshold",
            "moving_threshold": cfg.commands.moving_threshold,
        }
    return metadata
