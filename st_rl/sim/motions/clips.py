"""Clips on a robot: model states and body poses of a clip, a policy recorded as a clip, a video of a clip."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from st_rl.datasets.clip import Bodies, Feet, MotionClip, linear_velocity, make_clip
from st_rl.env.utils import split_observations, split_step
from st_rl.sim.envs.task import Task
from st_rl.sim.evaluation.rendering import FrameRenderer
from st_rl.sim.evaluation.rollout import Policy, is_commanded
from st_rl.sim.evaluation.video import open_video
from st_rl.sim.motions.clip_states import clip_to_qpos_qvel
from st_rl.sim.require import MjData, MjModel, mujoco
from st_rl.sim.robots import Robot
from st_rl.utils.tensors import rotations

_VIDEO_FPS = 25.0


def add_body_poses(robot: Robot, clip: MotionClip) -> MotionClip:
    """The clip with feet and bodies of the robot, root first, by forward kinematics."""
    model = robot.model
    base = robot.require_locomotion("a motion")
    qpos, qvel = clip_to_qpos_qvel(robot, clip)
    bodies = [base.body, *(b for b in range(1, model.nbody) if b != base.body)]
    feet = [model.geom(foot.name).id for foot in robot.feet]
    data = mujoco.MjData(model)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("pos", "rot", "velocity", "foot_pos", "foot_velocity")}
    for data.qpos[:], data.qvel[:] in zip(qpos, qvel):
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_fwdVelocity(model, data)
        rows["pos"].append(data.xpos[bodies])
        rows["rot"].append(data.xquat[bodies])
        rows["foot_pos"].append(data.geom_xpos[feet])
        rows["velocity"].append(_object_velocities(model, data, mujoco.mjtObj.mjOBJ_XBODY, bodies))
        rows["foot_velocity"].append(_object_velocities(model, data, mujoco.mjtObj.mjOBJ_GEOM, feet))
    found = {name: np.stack(values) for name, values in rows.items()}
    names = tuple(model.body(body).name for body in bodies)
    ang_vel, lin_vel = found["velocity"][..., :3], found["velocity"][..., 3:]
    return replace(
        clip,
        bodies=Bodies(names, found["pos"], rotations.remove_sign_flips(found["rot"]), lin_vel, ang_vel),
        feet=Feet(tuple(foot.name for foot in robot.feet), found["foot_pos"], found["foot_velocity"][..., 3:]),
    )


def foot_slip(robot: Robot, clip: MotionClip) -> float:
    """Mean horizontal speed of the lowest foot, m/s: joints and root that belong together keep it near zero."""
    feet = add_body_poses(robot, clip).feet
    if feet is None:
        return 0.0
    speed = np.linalg.norm(linear_velocity(feet.pos, 1.0 / clip.fps)[..., :2], axis=-1)
    lowest = feet.pos[..., 2].argmin(axis=1)
    return float(speed[np.arange(clip.num_frames), lowest].mean())


def _object_velocities(model: MjModel, data: MjData, object_type: int, ids: list[int]) -> np.ndarray:
    """`(len(ids), 6)` angular and linear velocity of objects in the world frame."""
    velocity = np.zeros((len(ids), 6))
    for row, number in zip(velocity, ids):
        mujoco.mj_objectVelocity(model, data, object_type, number, row, 0)
    return velocity


@torch.inference_mode()
def record_policy(
    task: Task,
    policy: Policy,
    name: str,
    seconds: float,
    warmup_s: float = 1.0,
    command: tuple[float, ...] | None = None,
) -> MotionClip:
    """A clip of the first robot of a task under a policy; ValueError if its episode ends early.

    The first `warmup_s` seconds are dropped. `command` is held all the time, if given.
    """
    robot, base = task.robot, task.robot.require_locomotion("a motion")
    task.reset()
    if command is not None and is_commanded(task):
        task.hold_commands(torch.tensor([command], device=task.device).repeat(task.num_envs, 1))
    rows = []
    num_steps, skipped = round((seconds + warmup_s) / task.step_dt) + 1, round(warmup_s / task.step_dt)
    for step in range(num_steps):
        obs = split_observations(task.get_observations())[0]
        dones = split_step(task.step(policy(obs)))[3]
        if bool(dones[0]):
            raise ValueError(
                f"the robot's episode ended after {step * task.step_dt:.1f} s: record a policy that walks, another "
                "command, or fewer seconds"
            )
        rows.append(torch.cat([task.backend.qpos[0], task.backend.qvel[0]]).cpu().numpy().astype(np.float64))
    qpos, qvel = np.split(np.stack(rows[skipped:]), [robot.model.nq], axis=1)
    rotation = rotations.normalize(qpos[:, base.qpos + 3 : base.qpos + 7])
    ang_vel = rotations.rotate(rotation, qvel[:, base.qvel + 3 : base.qvel + 6])
    clip = make_clip(
        name,
        1.0 / task.step_dt,
        robot.joint_names,
        qpos[:, list(robot.qpos_indices)],
        qpos[:, base.qpos : base.qpos + 3],
        rotation,
        joint_vel=qvel[:, list(robot.qvel_indices)],
        root_lin_vel=qvel[:, base.qvel : base.qvel + 3],
        root_ang_vel=ang_vel,
    )
    return add_body_poses(robot, clip)


def render_clip(
    robot: Robot, clip: MotionClip, path: Path, repeats: int = 1, width: int = 640, height: int = 360
) -> None:
    """Write the clip as an mp4 in real time, `repeats` times in a row, each from the position where the last ended."""
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; a video shows the clip at least once")
    base = robot.require_locomotion("a motion")
    every = max(1, round(clip.fps / _VIDEO_FPS))
    qpos, _ = clip_to_qpos_qvel(robot, clip)
    displacement = qpos[-1, base.qpos : base.qpos + 2] - qpos[0, base.qpos : base.qpos + 2]
    data = mujoco.MjData(robot.model)
    with (
        FrameRenderer(robot.model, width, height) as renderer,
        open_video(path, width, height, clip.fps / every) as video,
    ):
        for repeat in range(repeats):
            for row in qpos[:-1:every]:
                data.qpos[:] = row
                data.qpos[base.qpos : base.qpos + 2] += repeat * displacement
                mujoco.mj_forward(robot.model, data)
                video.add(renderer.draw(data))
