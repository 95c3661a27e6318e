"""Builds the model that a task simulates: MJCF, description, ground and sensors."""

from collections.abc import Callable
from pathlib import Path

from st_rl.sim.require import MjModel, MjSpec, mujoco
from st_rl.sim.robots.apply_description import apply_description, find_described_fall_geoms, find_described_feet
from st_rl.sim.robots.description import RobotDescription
from st_rl.sim.robots.mjcf_limits import check_mjcf
from st_rl.sim.robots.model_queries import (
    FreeJoint,
    find_free_joint,
    ground_contact_bits,
    has_ground,
    home_qpos,
    pose_data,
)
from st_rl.sim.robots.sensors import FootShape, add_missing_sensors, find_fall_geoms, find_feet


def build_model(
    path: Path, build_world: Callable[[MjSpec], None] | None, description: RobotDescription | None
) -> tuple[MjSpec, MjModel, FreeJoint | None]:
    """The specification and model of a file, and its free joint; a floating base gets ground and sensors."""
    if not path.is_file():
        raise ValueError(f"no robot file '{path}'")
    check_mjcf(path)
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        if description is not None:
            spec.compile()
    except ValueError as error:
        raise ValueError(f"MuJoCo cannot read '{path}': {error}") from error
    # Errors of the description and of the world are not errors of MuJoCo.
    if description is not None:
        apply_description(spec, description)
    if build_world is not None:
        build_world(spec)
    try:
        model = spec.compile()
    except ValueError as error:
        raise ValueError(f"MuJoCo cannot read '{path}': {error}") from error
    floating = find_free_joint(model)
    if floating is None:
        return spec, model, None
    shapes = find_foot_shapes(model, floating, description), fall_geoms(model, floating, description)
    recompile = add_missing_sensors(spec, model, *shapes)
    if not has_ground(model):
        _add_floor(spec)
        recompile = True
    return spec, (spec.compile() if recompile else model), floating


def add_missing_motors(spec: MjSpec) -> None:
    """Add a motor to every hinge and slide joint of a file without actuators."""
    if len(spec.actuators):
        return
    joint_types, joint_transmission = mujoco.mjtJoint, mujoco.mjtTrn.mjTRN_JOINT
    for number, joint in enumerate(spec.joints):
        if joint.type in (joint_types.mjJNT_HINGE, joint_types.mjJNT_SLIDE):
            joint.name = joint.name or f"joint_{number}"
            spec.add_actuator(target=joint.name, trntype=joint_transmission).set_to_motor()


def _add_floor(spec: MjSpec) -> None:
    kinds, patterns = mujoco.mjtTexture, mujoco.mjtBuiltin
    if not any(texture.type == kinds.mjTEXTURE_SKYBOX for texture in spec.textures):
        blue, white = [0.62, 0.74, 0.86], [0.95, 0.97, 0.99]
        sky = {"type": kinds.mjTEXTURE_SKYBOX, "builtin": patterns.mjBUILTIN_GRADIENT, "rgb1": blue, "rgb2": white}
        spec.add_texture(name="st_rl/sky", width=128, height=768, **sky)
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.35] * 3, [0.45] * 3
    spec.visual.rgba.haze = [0.75, 0.82, 0.90, 1.0]
    light, dark = [0.66, 0.70, 0.75], [0.58, 0.62, 0.68]
    floor = {"type": kinds.mjTEXTURE_2D, "builtin": patterns.mjBUILTIN_CHECKER, "rgb1": light, "rgb2": dark}
    spec.add_texture(name="st_rl/floor", width=256, height=256, **floor)
    material = spec.add_material(name="st_rl/floor", texrepeat=[2, 2], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "st_rl/floor"
    spec.worldbody.add_geom(
        name="st_rl/floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=[0, 0, 0.05],
        material="st_rl/floor",
        group=0,
        **ground_contact_bits(spec),
    )


def find_foot_shapes(model: MjModel, floating: FreeJoint, description: RobotDescription | None) -> list[FootShape]:
    """The feet in the home pose."""
    data = pose_data(model, home_qpos(model))
    if description is not None and description.feet:
        return find_described_feet(model, data, description)
    return find_feet(model, data, floating.body)


def fall_geoms(model: MjModel, floating: FreeJoint, description: RobotDescription | None) -> list[int]:
    """Geoms of which a contact means a fall."""
    if description is not None and description.falls:
        return find_described_fall_geoms(model, pose_data(model, home_qpos(model)), description)
    return find_fall_geoms(model, floating.body)
