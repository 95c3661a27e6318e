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


def save_without_visuals(robot: Robot, path: Path) -> None:
    """Write a robot and its world as one MJCF file that needs no other: without geoms that touch nothing.

    Masses stay as they are. ValueError if a geom that can touch something is a mesh or a height field.
    """
    spec, mass = robot.spec.copy(), robot.model.body_mass
    for geom in list(spec.geoms):
        if not (geom.contype or geom.conaffinity):
            spec.delete(geom)
        elif geom.type in (mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_HFIELD):
            raise ValueError(f"{robot.path}: geom '{geom.name}' collides as a mesh: give it a primitive shape")
        geom.material = ""
    for elements in (spec.meshes, spec.hfields, spec.materials, spec.textures):
        for element in list(elements):
            spec.delete(element)
    model = spec.compile()
    if not np.allclose(model.body_mass, mass):
        body = robot.model.body(int(np.abs(model.body_mass - mass).argmax())).name
        raise ValueError(f"{robot.path}: the mass of body '{body}' is that of its geoms: give it an <inertial>")
    path.parent.mkdir(parents=True, exist_ok=True)
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
