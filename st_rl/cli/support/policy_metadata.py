"""What a controller needs to run a policy: `policy_metadata` in `run.json` and in the exported file."""

from typing import Any

from st_rl.env import VecEnv


def describe_policy_io(env: VecEnv) -> dict[str, Any]:
    """Return how observations are made and actions are applied: segments, and of a built-in task joints and gains."""
    from st_rl.env.protocols import SegmentedEnv
    from st_rl.sim.envs.task import Task

    metadata: dict[str, Any] = {"obs_segments": dict(env.obs_segments) if isinstance(env, SegmentedEnv) else {}}
    if not isinstance(env, Task):
        return metadata
    cfg: Any = env.cfg
    robot, control, normalization = env.robot, cfg.control, cfg.normalization
    metadata |= {
        "joint_names": list(robot.joint_names),
        "default_joint_pos": robot.default_joint_pos,
        "action_scale": control.action_scale,
        "clip_actions": control.clip_actions,
        "obs_terms": env.observation_table.describe(),
        "obs_scales": normalization.obs_scales,
        "clip_observations": normalization.clip_observations,
        "control_period_s": env.step_dt,
        "actuation": robot.actuation,
        "effort_limit": robot.effort_limit,
        "stiffness": robot.stiffness if control.stiffness is None else [control.stiffness] * robot.num_joints,
        "damping": robot.damping if control.damping is None else [control.damping] * robot.num_joints,
    }
    if any(column.name == "clock" for column in env.observation_table.columns):
        # No sensor measures it: the controller has to compute it.
        metadata["clock"] = {
            "period_s": cfg.gait.period_s,
            "values": "sin and cos of 2 pi t / period_s; zeros unless the norm of the command exceeds moving_threshold",
            "moving_threshold": cfg.commands.moving_threshold,
        }
    return metadata
