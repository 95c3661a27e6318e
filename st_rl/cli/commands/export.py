"""Write a policy as policy.onnx, checked against torch: st-rl export RUN."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_rl.cli.support.command_line import parse_options
from st_rl.cli.support.run_folder import find_run, writable_file

if TYPE_CHECKING:
    from st_rl.cli.support.loaded_run import LoadedPolicy, LoadedRun

POLICY_FILE = "policy.onnx"
EXPORT_FILE = "policy.json"
RECORDED_STEPS = 200


@dataclass
class ExportOptions:
    """Options of `st-rl export`."""

    run: str
    """Folder of the run, the beginning of its name, a task (its newest run), or: latest."""
    checkpoint: str = "best"
    """Which policy: best, last, an iteration number, or a file."""
    output: Path | None = None
    """Where the file goes; policy.onnx in the run folder when None."""


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    options = parse_options(ExportOptions, arguments, "export", __doc__ or "")
    run = find_run(options.run)
    checkpoint = run.checkpoint(options.checkpoint)
    target = writable_file(options.output or run.file(POLICY_FILE))
    from st_rl.cli.support.loaded_run import LoadedRun
    from st_rl.export import export_onnx
    from st_rl.utils.files import write_json

    saved = LoadedRun(run)
    env = _make_env(saved)
    loaded = saved.load_policy(env, checkpoint)
    metadata = describe_policy(saved, env, loaded)
    recorded = _record(env, loaded.policy)
    report = export_onnx(loaded.policy.actor_critic, loaded.policy.obs_normalizer, target, metadata, recorded)
    facts = {
        **dataclasses.asdict(report),
        "metadata": metadata,
        "command_line": f"st-rl export {shlex.join(arguments)}",
    }
    write_json(target.with_suffix(".json"), facts)
    memory = ", and a memory that the controller carries" if report.state_names else ""
    print(
        f"{target}: opset {report.opset}, input obs (batch, {env.num_obs}), output actions (batch, {env.num_actions})"
        f"{memory}; "
        f"differs from torch by at most {report.largest_difference:.1e} on {report.observations_compared} observations"
    )
    return 0


def _make_env(saved: LoadedRun) -> Any:
    """A few robots as in an evaluation."""
    from st_rl.cli.support.task_source import BuiltInTask
    from st_rl.sim.evaluation.evaluator import make_eval_task

    if isinstance(saved.source, BuiltInTask):
        return make_eval_task(saved.source.name, saved.env_config, 4, 10.0, 20_003, fine=False)
    return saved.source.make(saved.env_config, 4, "cpu", 20_003)


def _record(env: Any, policy: Any) -> Any:
    """`(M, O)` observations that the policy meets when it acts."""
    import torch

    from st_rl.env.utils import split_observations, split_step

    seen = []
    with torch.inference_mode():
        obs = split_observations(env.get_observations())[0]
        for _ in range(RECORDED_STEPS):
            seen.append(obs.cpu().clone())
            obs, _, _, dones, _ = split_step(env.step(policy(obs)))
            policy.reset(dones)
    return torch.cat(seen)


def describe_policy(saved: LoadedRun, env: Any, loaded: LoadedPolicy) -> dict[str, Any]:
    """What a controller must know to use the file."""
    from st_rl import __version__

    facts: dict[str, Any] = {
        "task": saved.source.name,
        "iteration": loaded.iteration,
        "st_rl_version": __version__,
        "obs_segments": dict(getattr(env, "obs_segments", None) or {}),
        "observation_normalizer": "inside the file: give raw observations",
    }
    robot, cfg = getattr(env, "robot", None), getattr(env, "cfg", None)
    if robot is None or cfg is None:
        return facts
    control = cfg.control
    gains = {
        "stiffness": robot.stiffness if control.stiffness is None else [control.stiffness] * robot.num_joints,
        "damping": robot.damping if control.damping is None else [control.damping] * robot.num_joints,
    }
    return facts | {
        "joint_names": list(robot.joint_names),
        "default_joint_pos": robot.default_joint_pos,
        "action_scale": control.action_scale,
        "clip_actions": control.clip_actions,
        "obs_terms": env.observation_table.describe(),
        "obs_scales": cfg.normalization.obs_scales,
        "clip_observations": cfg.normalization.clip_observations,
        "control_period_s": env.step_dt,
        "actuation": robot.actuation,
        "effort_limit": robot.effort_limit,
        **gains,
        **_describe_clock([column.name for column in env.observation_table.columns], cfg),
    }


def _describe_clock(obs_terms: Sequence[str], cfg: Any) -> dict[str, Any]:
    """How a controller makes the gait clock that the policy sees, if it sees one: no sensor measures it."""
    if "clock" not in obs_terms:
        return {}
    return {
        "clock": {
            "period_s": cfg.gait.period_s,
            "values": "sin and cos of 2 pi t / period_s; zeros unless the norm of the command exceeds moving_threshold",
            "moving_threshold": cfg.commands.moving_threshold,
        }
    }
