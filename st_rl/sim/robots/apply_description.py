"""Puts what a robot description says into the `mujoco.MjSpec` of its MJCF, and finds the parts that it names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from st_rl.sim.require import MjData, MjModel, MjSpec, require_mujoco
from st_rl.sim.robots.description import RobotDescription
from st_rl.sim.robots.model_queries import HOME, home_qpos, is_colliding, lowest_height, pose_data, robot_geoms
from st_rl.sim.robots.name_patterns import compiled, matching, nearest_words, spread
from st_rl.sim.robots.sensors import FootShape, foot_of_each_body


def adapt(spec: MjSpec, description: RobotDescription) -> None:
    """Give a robot the collisions, actuators and default pose of its description."""
    for number, joint in enumerate(spec.joints):
        joint.name = joint.name or f"joint_{number}"
    model = spec.compile()
    _set_collisions(spec, model, description)
    home = home_qpos(model)
    # What a keyframe says of controls and activations no longer fits other actuators.
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


def described_feet(model: MjModel, data: MjData, description: RobotDescription) -> list[FootShape]:
    """The feet that a description names, in its order."""
    where = f"{description.path}: feet"
    feet: list[FootShape] = []
    for pattern in description.feet:
        geoms = _named_geoms(model, data, pattern, where)
        feet += [foot for foot in foot_of_each_body(model, data, geoms) if foot not in feet]
    return feet


def described_falls(model: MjModel, data: MjData, description: RobotDescription) -> list[int]:
    """The geoms that a description names as those of a fall."""
    where = f"{description.path}: falls"
    return sorted({geom for pattern in description.falls for geom in _named_geoms(model, data, pattern, where)})


def described_scale(joint_names: Sequence[str], description: RobotDescription) -> np.ndarray | None:
    """`(nu,)` joint target for an action of one, or None when the task decides."""
    scale, where = description.action_scale, f"{description.path}: action_scale"
    if scale is None:
        return None
    if not isinstance(scale, Mapping):
        return np.full(len(joint_names), scale)
    found = spread(scale, joint_names, "actuated joint", where)
    _require_all(joint_names, found, f"{where} says nothing of", "give each joint a number, or one number for all")
    return np.array([found[name] for name in joint_names])


def _set_collisions(spec: MjSpec, model: MjModel, description: RobotDescription) -> None:
    """Decide which geoms of the robot touch what."""
    elements = {geom.id: geom for geom in spec.geoms}
    own = robot_geoms(model)
    if description.collisions:
        names, where = [model.geom(g).name for g in own], f"{description.path}: collisions"
        chosen = {own[i] for p in description.collisions for i in matching(p, names, "geom of the robot", where)}
        for g in own:
            if g not in chosen:
                elements[g].contype = elements[g].conaffinity = 0
            elif not is_colliding(model, g):
                elements[g].contype = elements[g].conaffinity = 1
    if description.self_collisions is None:
        return
    for g in own:
        element = elements[g]
        if element.contype or element.conaffinity:
            # Without a bit of its own a geom meets those of the world only.
            element.contype, element.conaffinity = int(description.self_collisions), 1
    for g in range(model.ngeom):
        if g not in own and is_colliding(model, g):
            elements[g].contype |= 1


def _set_actuators(spec: MjSpec, model: MjModel, description: RobotDescription) -> None:
    """Replace the actuators of the MJCF by a position servo on each joint that is not passive."""
    mujoco = require_mujoco()
    single = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    names = [model.joint(j).name for j in range(model.njnt) if int(model.jnt_type[j]) in single]
    where = f"{description.path}: actuators"
    gains = spread(description.actuators, names, "joint", where)
    passive = {
        names[i] for p in description.passive for i in matching(p, names, "joint", f"{description.path}: passive")
    }
    driven = [name for name in names if name not in passive]
    _require_all(
        driven, gains, f"{where} says nothing of", "give each a stiffness and a damping, or list it in passive"
    )
    for name in driven:
        missing = [gain for gain in ("stiffness", "damping") if gain not in gains[name]]
        if missing:
            raise ValueError(f"{where}: {name} has no {' and no '.join(missing)}")
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    for name in _ordered(driven, description):
        _add_servo(spec, name, gains[name])


def _ordered(names: list[str], description: RobotDescription) -> list[str]:
    """Joints in the order of the description; those that match one pattern stay in the order of the MJCF."""
    if not description.joints:
        return names
    where = f"{description.path}: joints"
    ordered: list[str] = []
    for pattern in description.joints:
        found = [names[i] for i in matching(pattern, names, "joint with an actuator", where)]
        ordered += [name for name in found if name not in ordered]
    _require_all(names, ordered, f"{where} lacks", "list all joints, or leave the key out for the order of the MJCF")
    return ordered


def _add_servo(spec: MjSpec, joint: str, gains: Mapping[str, float]) -> None:
    """Add a position servo to a joint."""
    mujoco = require_mujoco()
    # Nothing of what the file says of its own actuators by default: gears, ranges, forces.
    plain = mujoco.MjSpec().default
    actuator = spec.add_actuator(plain, name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
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
    """`(nq,)` the pose of the MJCF with the joints and the height of the description."""
    mujoco = require_mujoco()
    single = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    joints = {model.joint(j).name: j for j in range(model.njnt) if int(model.jnt_type[j]) in single}
    where = f"{description.path}: default_pose"
    qpos = home.copy()
    for name, value in spread(description.default_pose, list(joints), "joint", where).items():
        joint = joints[name]
        low, high = model.jnt_range[joint]
        if model.jnt_limited[joint] and not low <= value <= high:
            raise ValueError(f"{where}: {name} is {value:g}, outside of its range from {low:g} to {high:g}")
        qpos[model.jnt_qposadr[joint]] = value
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE))
    if len(free):
        height = int(model.jnt_qposadr[free[0]]) + 2
        if description.base_height is not None:
            qpos[height] = description.base_height
        elif description.default_pose:
            qpos[height] -= _lowest(model, qpos)
    return qpos


def _lowest(model: MjModel, qpos: np.ndarray) -> float:
    """Height of the lowest point of the robot's geoms that touch anything, in a pose `(nq,)`."""
    data = pose_data(model, qpos)
    own = [g for g in robot_geoms(model) if is_colliding(model, g)]
    return min((lowest_height(model, data, g) for g in own), default=0.0)


def _named_geoms(model: MjModel, data: MjData, pattern: str, where: str) -> list[int]:
    """Geoms of the robot that collide and carry a name, belong to a body or are nearest to a site of that name."""
    regex = compiled(pattern, where)
    own = robot_geoms(model)
    named = [g for g in own if regex.fullmatch(model.geom(g).name)]
    found = [g for g in named if is_colliding(model, g)]
    if not found:
        bodies = {b for b in range(1, model.nbody) if regex.fullmatch(model.body(b).name)}
        found = [g for g in own if int(model.geom_bodyid[g]) in bodies and is_colliding(model, g)]
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
        names = [model.geom(g).name for g in own if is_colliding(model, g)]
        names += [model.body(b).name for b in range(1, model.nbody)] + [model.site(s).name for s in range(model.nsite)]
        raise ValueError(f"{where}: '{pattern}' matches no geom, body or site; {nearest_words(pattern, names)}")
    return found


def _nearest_geom(model: MjModel, data: MjData, site: int) -> int | None:
    """The colliding geom of a site's body that is nearest to it."""
    body = int(model.site_bodyid[site])
    geoms = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == body and is_colliding(model, g)]
    distances = [float(np.linalg.norm(data.geom_xpos[g] - data.site_xpos[site])) for g in geoms]
    return geoms[int(np.argmin(distances))] if geoms else None


def _require_all(names: Sequence[str], found: Any, problem: str, remedy: str) -> None:
    """ValueError unless every name is among those found."""
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{problem} {', '.join(missing)}: {remedy}")
