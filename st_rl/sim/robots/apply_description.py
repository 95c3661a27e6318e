"""Applies a robot description to the `mujoco.MjSpec` of its MJCF, and finds the feet and geoms that it names."""

from collections.abc import Container, Mapping, Sequence

import numpy as np

from st_rl.sim.require import MjData, MjModel, MjSpec, mujoco
from st_rl.sim.robots.description import RobotDescription
from st_rl.sim.robots.model_queries import (
    HOME,
    find_free_joint,
    home_qpos,
    is_colliding,
    lowest_height,
    pose_data,
    robot_geoms,
    scalar_joints,
)
from st_rl.sim.robots.name_patterns import check_patterns, compile_pattern, match_names, resolve_patterns, suggest_names
from st_rl.sim.robots.sensors import FootShape, foot_of_each_body


def apply_description(spec: MjSpec, description: RobotDescription) -> None:
    """Set the collisions, actuators and default pose of a description."""
    for number, joint in enumerate(spec.joints):
        joint.name = joint.name or f"joint_{number}"
    model = spec.compile()
    _check_patterns(spec, description)
    _set_collisions(spec, model, description)
    home = home_qpos(model)
    # Controls and activations of a keyframe do not fit the new actuators.
    for key in list(spec.keys):
        spec.delete(key)
    if description.actuators:
        _set_actuators(spec, model, description)
    elif description.joints or description.passive:
        raise ValueError(
            f"{description.path}: joints and passive belong to actuators: give those too, or let the MJCF decide"
        )
    model = spec.compile()
    spec.add_key(name=HOME, qpos=_default_qpos(model, home, description))


def _check_patterns(spec: MjSpec, description: RobotDescription) -> None:
    """ValueError if the patterns of a description may take too long on the names of the model."""
    d = description
    scales = d.action_scale if isinstance(d.action_scale, Mapping) else ()
    patterns = (*d.collisions, *d.joints, *d.passive, *d.actuators, *d.default_pose, *d.feet, *d.falls, *scales)
    names = [element.name for elements in (spec.joints, spec.geoms, spec.bodies, spec.sites) for element in elements]
    check_patterns(patterns, names, str(d.path))


def find_described_feet(model: MjModel, data: MjData, description: RobotDescription) -> list[FootShape]:
    """The feet in a description, in its order."""
    where = f"{description.path}: feet"
    feet: list[FootShape] = []
    for pattern in description.feet:
        geoms = _named_geoms(model, data, pattern, where)
        feet += [foot for foot in foot_of_each_body(model, data, geoms) if foot not in feet]
    return feet


def find_described_fall_geoms(model: MjModel, data: MjData, description: RobotDescription) -> list[int]:
    """The geoms of which a contact means a fall, by a description."""
    where = f"{description.path}: falls"
    return sorted({geom for pattern in description.falls for geom in _named_geoms(model, data, pattern, where)})


def find_action_scale(joint_names: Sequence[str], description: RobotDescription) -> np.ndarray | None:
    """`(nu,)` joint target for an action of one, or None for the task's default."""
    scale, where = description.action_scale, f"{description.path}: action_scale"
    if scale is None:
        return None
    if not isinstance(scale, Mapping):
        return np.full(len(joint_names), scale)
    found = resolve_patterns(scale, joint_names, "actuated joint", where)
    _require_all(joint_names, found, f"{where} says nothing of", "give each joint a number, or one number for all")
    return np.array([found[name] for name in joint_names])


def _set_collisions(spec: MjSpec, model: MjModel, description: RobotDescription) -> None:
    elements = {geom.id: geom for geom in spec.geoms}
    geoms = robot_geoms(model)
    if description.collisions:
        names, where = [model.geom(g).name for g in geoms], f"{description.path}: collisions"
        chosen = {geoms[i] for p in description.collisions for i in match_names(p, names, "geom of the robot", where)}
        for g in geoms:
            if g not in chosen:
                elements[g].contype = elements[g].conaffinity = 0
            elif not is_colliding(model, g):
                elements[g].contype = elements[g].conaffinity = 1
    if description.self_collisions is None:
        return
    for g in geoms:
        element = elements[g]
        if element.contype or element.conaffinity:
            # A geom with contype 0 collides with the world only.
            element.contype, element.conaffinity = int(description.self_collisions), 1
    for g in range(model.ngeom):
        if g not in geoms and is_colliding(model, g):
            elements[g].contype |= 1


def _set_actuators(spec: MjSpec, model: MjModel, description: RobotDescription) -> None:
    """Replace the actuators of the MJCF by a position servo on each joint that is not passive."""
    names = [model.joint(j).name for j in scalar_joints(model)]
    where = f"{description.path}: actuators"
    gains = resolve_patterns(description.actuators, names, "joint", where)
    where_passive = f"{description.path}: passive"
    passive = {names[i] for p in description.passive for i in match_names(p, names, "joint", where_passive)}
    actuated = [name for name in names if name not in passive]
    _require_all(
        actuated, gains, f"{where} says nothing of", "give each a stiffness and a damping, or list it in passive"
    )
    for name in actuated:
        missing = [gain for gain in ("stiffness", "damping") if gain not in gains[name]]
        if missing:
            raise ValueError(f"{where}: {name} has no {' and no '.join(missing)}")
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    for name in _ordered(actuated, description):
        _add_servo(spec, name, gains[name])


def _ordered(names: list[str], description: RobotDescription) -> list[str]:
    """Joints in the order of the description; matches of one pattern stay in the order of the MJCF."""
    if not description.joints:
        return names
    where = f"{description.path}: joints"
    ordered: list[str] = []
    for pattern in description.joints:
        found = [names[i] for i in match_names(pattern, names, "joint with an actuator", where)]
        ordered += [name for name in found if name not in ordered]
    _require_all(names, ordered, f"{where} lacks", "list all joints, or leave the key out for the order of the MJCF")
    return ordered


def _add_servo(spec: MjSpec, joint: str, gains: Mapping[str, float]) -> None:
    # Without the actuator defaults of the file: gears, ranges, forces.
    default = mujoco.MjSpec().default
    actuator = spec.add_actuator(default, name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    actuator.set_to_position(kp=gains["stiffness"], kv=gains["damping"])
    if "effort_limit" in gains:
        actuator.forcelimited = True
        actuator.forcerange = [-gains["effort_limit"], gains["effort_limit"]]
    element = spec.joint(joint)
    if "armature" in gains:
        element.armature = gains["armature"]
    if "friction" in gains:
        element.frictionloss = gains["friction"]


def _default_qpos(model: MjModel, home: np.ndarray, description: RobotDescription) -> np.ndarray:
    """`(nq,)` pose of the MJCF with the joints and the height of the description."""
    joints = {model.joint(j).name: j for j in scalar_joints(model)}
    where = f"{description.path}: default_pose"
    qpos = home.copy()
    for name, value in resolve_patterns(description.default_pose, list(joints), "joint", where).items():
        joint = joints[name]
        low, high = model.jnt_range[joint]
        if model.jnt_limited[joint] and not low <= value <= high:
            raise ValueError(f"{where}: {name} is {value:g}, outside its range from {low:g} to {high:g}")
        qpos[model.jnt_qposadr[joint]] = value
    free = find_free_joint(model)
    if free is not None and description.base_height is not None:
        qpos[free.qpos + 2] = description.base_height
    elif free is not None and description.default_pose:
        data = pose_data(model, qpos)
        heights = [lowest_height(model, data, g) for g in robot_geoms(model) if is_colliding(model, g)]
        qpos[free.qpos + 2] -= min(heights, default=0.0)
    return qpos


def _named_geoms(model: MjModel, data: MjData, pattern: str, where: str) -> list[int]:
    """Colliding geoms of a name, of a body of that name, or nearest to a site of that name."""
    regex = compile_pattern(pattern, where)
    geoms = robot_geoms(model)
    named = [g for g in geoms if regex.fullmatch(model.geom(g).name)]
    found = [g for g in named if is_colliding(model, g)]
    if not found:
        bodies = {b for b in range(1, model.nbody) if regex.fullmatch(model.body(b).name)}
        found = [g for g in geoms if int(model.geom_bodyid[g]) in bodies and is_colliding(model, g)]
        named += list(bodies)
    if not found:
        sites = [s for s in range(model.nsite) if regex.fullmatch(model.site(s).name)]
        found = [g for s in sites if (g := _nearest_geom(model, data, s)) is not None]
        named += sites
    if named and not found:
        raise ValueError(
            f"{where}: what '{pattern}' names can touch nothing: give it a geom that collides (contype or conaffinity "
            "not 0), or name such a geom under collisions"
        )
    if not found:
        names = [model.geom(g).name for g in geoms if is_colliding(model, g)]
        names += [model.body(b).name for b in range(1, model.nbody)] + [model.site(s).name for s in range(model.nsite)]
        raise ValueError(f"{where}: '{pattern}' matches no geom, body or site; {suggest_names(pattern, names)}")
    return found


def _nearest_geom(model: MjModel, data: MjData, site: int) -> int | None:
    """The colliding geom nearest to a site, on the same body."""
    body = int(model.site_bodyid[site])
    geoms = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == body and is_colliding(model, g)]
    distances = [float(np.linalg.norm(data.geom_xpos[g] - data.site_xpos[site])) for g in geoms]
    return geoms[int(np.argmin(distances))] if geoms else None


def _require_all(names: Sequence[str], found: Container[str], problem: str, remedy: str) -> None:
    """ValueError unless `found` has all names."""
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{problem} {', '.join(missing)}: {remedy}")
