"""Writes a robot and its world as an MJCF file with all files it needs, for plain MuJoCo."""

import shutil
from pathlib import Path

import numpy as np

from st_rl.sim.require import MjSpec, mujoco
from st_rl.sim.robots.model_queries import HOME
from st_rl.sim.robots.robot import Robot

_ASSETS = "assets"


def save_mjcf(robot: Robot, gains: np.ndarray, limits: np.ndarray, path: Path, timestep: float = 0.002) -> None:
    """Write a robot in which every actuator is a position servo of its joint, so that controls are joint targets.

    `gains` `(nu, 2)` are stiffness and damping at the joint, `limits` `(nu, 2)` those of the joint targets. Meshes,
    textures and height fields go into `assets` beside the file.
    """
    spec = robot.spec.copy()
    for actuator, (stiffness, damping), limit, effort in zip(spec.actuators, gains, limits, robot.effort_limit):
        actuator.set_to_position(kp=stiffness, kv=damping)
        actuator.gear = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        actuator.ctrllimited, actuator.ctrlrange = _limits(limit)
        actuator.forcelimited, actuator.forcerange = _limits(np.array([-effort, effort]))
    spec.option.timestep = timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    if not any(key.name == HOME for key in spec.keys):
        spec.add_key(name=HOME, qpos=robot.default_qpos)
    path.parent.mkdir(parents=True, exist_ok=True)
    _collect_assets(spec, Path(robot.spec.modelfiledir), path.parent / _ASSETS)
    spec.compile()
    path.write_text(spec.to_xml(), encoding="utf-8")


def _limits(limits: np.ndarray) -> tuple[bool, np.ndarray]:
    """Whether there are limits `(2,)`, and their values, zeros if infinite."""
    is_limited = bool(np.isfinite(limits).all())
    return is_limited, limits if is_limited else np.zeros(2)


def _collect_assets(spec: MjSpec, source: Path, folder: Path) -> None:
    """Copy the files that a specification names into a folder, and let it read them from there."""
    groups = ((spec.meshes, spec.meshdir), (spec.hfields, spec.meshdir), (spec.textures, spec.texturedir))
    for elements, directory in groups:
        for number, element in enumerate(elements):
            if not element.file:
                continue
            file = source / directory / element.file
            folder.mkdir(parents=True, exist_ok=True)
            # Files of one name in different folders stay apart.
            name = f"{number}_{Path(element.file).name}" if (folder / file.name).exists() else file.name
            shutil.copyfile(file, folder / name)
            element.file = name
    spec.meshdir = spec.texturedir = _ASSETS
    spec.modelfiledir = str(folder.parent)
