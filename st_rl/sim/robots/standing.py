"""Simulates whether a robot stands in its default pose under its gains."""

from typing import NamedTuple

import numpy as np

from st_rl.sim.backends import PhysicsCfg, fine_physics
from st_rl.sim.backends.base import with_physics
from st_rl.sim.require import MjData, mujoco
from st_rl.sim.robots.robot import Robot

# A base that leans by more degrees has fallen.
_FALLEN = 60.0


class StandingResult(NamedTuple):
    """Result of a simulation from the default pose."""

    height: float
    """Height of the base at the end, m."""
    lean: float
    """Angle between the base and its default orientation's vertical at the end, degrees."""
    fell_after: float | None
    """Seconds until a fall geom touched the ground or the base leaned too far; None if it stood."""
    sag: np.ndarray
    """`(nu,)` distance of the joints from their targets at the end, rad."""
    effort: np.ndarray
    """`(nu,)` torque of the joints at the end, Nm."""
    feet_down: tuple[bool, ...]
    """Which feet touch the ground at the end."""
    self_contacts: tuple[tuple[str, str], ...]
    """Names of the robot's own parts that touch each other in the default pose."""


def simulate_standing(robot: Robot, seconds: float = 2.0, gains: tuple[float, float] | None = None) -> StandingResult:
    """Hold a robot with a free joint in its default pose with fine physics.

    `gains` are stiffness and damping for a robot with torque actuators, unused for others.
    """
    base = robot.require_locomotion("standing")
    if robot.actuation == "torque" and gains is None:
        raise ValueError(f"{robot.path} has torque actuators: give a stiffness and a damping to hold it with")
    physics = fine_physics(PhysicsCfg())
    model = with_physics(robot.model, physics)
    data = mujoco.MjData(model)
    data.qpos[:] = robot.default_qpos
    mujoco.mj_forward(model, data)
    touching = (sorted(int(model.geom_bodyid[geom]) for geom in contact.geom) for contact in data.contact)
    names = {tuple(model.body(body).name for body in bodies) for bodies in touching if bodies[0] != 0}
    columns, velocities = list(robot.qpos_indices), list(robot.qvel_indices)
    target = robot.default_joint_pos
    upright = data.xmat[base.body].reshape(3, 3)[2].copy()
    fell_after = None
    for step in range(round(seconds / physics.timestep)):
        if robot.actuation == "position":
            data.ctrl[:] = target * robot.gear
        else:
            stiffness, damping = gains or (0.0, 0.0)
            torque = stiffness * (target - data.qpos[columns]) - damping * data.qvel[velocities]
            torque = np.clip(torque, -robot.effort_limit, robot.effort_limit)
            data.ctrl[:] = torque / (robot.gear * model.actuator_gainprm[:, 0])
        mujoco.mj_step(model, data)
        touches = any(data.sensordata[s] > 0 for s in robot.fall_sensors)
        if fell_after is None and (touches or _lean(data, base.body, upright) > _FALLEN):
            fell_after = (step + 1) * physics.timestep
    return StandingResult(
        height=float(data.qpos[base.qpos + 2]),
        lean=_lean(data, base.body, upright),
        fell_after=fell_after,
        sag=data.qpos[columns] - target,
        effort=data.qfrc_actuator[velocities].copy(),
        feet_down=tuple(bool(data.sensordata[foot.contact] > 0) for foot in robot.feet),
        self_contacts=tuple(sorted(names)),
    )


def _lean(data: MjData, body: int, upright: np.ndarray) -> float:
    """Degrees by which the vertical has moved in the frame of a body, from the direction `upright` `(3,)`."""
    cosine = float(data.xmat[body].reshape(3, 3)[2] @ upright)
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))
