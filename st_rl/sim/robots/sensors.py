"""Finds the feet of a robot and gives its MJCF the sensors that locomotion tasks read."""

import re
from typing import Any, Literal, NamedTuple

from st_rl.sim.require import MjData, MjModel, MjSpec, mujoco
from st_rl.sim.robots.model_queries import is_colliding, lowest_height

SensorKind = Literal["contact", "position", "velocity"]

_FOOT_NAME = re.compile(r"foot|feet|toe|sole", re.IGNORECASE)
_KNEE_NAME = re.compile(r"knee", re.IGNORECASE)
# A leaf link is a leg, not an arm, if its lowest geom is within this fraction of the robot's height.
_LEG_HEIGHT_FRACTION = 0.25
# Constants of MuJoCo's contact sensor: data bit "found", reduction "netforce".
_FOUND = 1
_NET_FORCE = 3
# Soles within this height of each other are level, m.
_LEVEL = 1e-3


class FootShape(NamedTuple):
    """One foot of a model."""

    geom: int
    """The geom of which position and velocity are measured."""
    body: int | None
    """Body of which all geoms are the foot; None for a foot of one geom."""


def find_feet(model: MjModel, data: MjData, base_body: int) -> list[FootShape]:
    """The feet, one for each leg, in model order.

    Geoms called foot, feet, toe or sole that can touch something come first; without any, the lowest colliding geom of
    each outermost link that ends near the ground in the pose of `data`.
    """
    root = int(model.body_rootid[base_body])
    is_own = model.body_rootid[model.geom_bodyid] == root
    colliding = [g for g in range(model.ngeom) if is_own[g] and is_colliding(model, g)]
    named = [g for g in colliding if _FOOT_NAME.search(model.geom(g).name)]
    if not named:
        named = [g for g in colliding if _FOOT_NAME.search(model.body(model.geom_bodyid[g]).name)]
    if named:
        return foot_of_each_body(model, data, named)
    parents = {int(model.body_parentid[b]) for b in range(1, model.nbody)}
    leaves = [g for g in colliding if int(model.geom_bodyid[g]) not in parents]
    if not leaves:
        return []
    # Without a name only the lowest geom of a link is the foot: the others may be the leg.
    lowest = [foot._replace(body=None) for foot in foot_of_each_body(model, data, leaves)]
    height = [float(data.geom_xpos[foot.geom, 2]) for foot in lowest]
    ground, top = min(height), max(float(data.xpos[base_body, 2]), *height)
    return [foot for foot, z in zip(lowest, height) if z - ground <= _LEG_HEIGHT_FRACTION * (top - ground)]


def foot_of_each_body(model: MjModel, data: MjData, geoms: list[int]) -> list[FootShape]:
    """One foot for each body of these geoms: the largest of its geoms that are lowest in the pose of `data`."""
    groups: dict[int, list[int]] = {}
    for g in geoms:
        groups.setdefault(int(model.geom_bodyid[g]), []).append(g)
    feet = []
    for body, group in groups.items():
        ground = min(lowest_height(model, data, g) for g in group)
        level = [g for g in group if lowest_height(model, data, g) <= ground + _LEVEL]
        geom = max(level, key=lambda g: float(model.geom_rbound[g]))
        others = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == body and is_colliding(model, g)]
        feet.append(FootShape(geom, body if len(group) > 1 and set(others) == set(group) else None))
    return sorted(feet)


def find_fall_geoms(model: MjModel, base_body: int) -> list[int]:
    """Geoms that touch the ground only after a fall: those of the base and the knees."""
    base = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == base_body and is_colliding(model, g)]
    knees = [g for g in range(model.ngeom) if _KNEE_NAME.search(model.geom(g).name) and is_colliding(model, g)]
    return sorted({*base, *knees})


def sensor_address(model: MjModel, geom: int, kind: SensorKind, body: int | None = None) -> int | None:
    """Address in `sensordata` of the sensor of a geom, or of the contacts of a body; None without one.

    It measures in the world frame; a contact sensor counts contacts, with anything or with the world.
    """
    objects = mujoco.mjtObj
    wanted = (int(objects.mjOBJ_GEOM), geom)
    if kind == "contact" and body is not None:
        wanted = (int(objects.mjOBJ_BODY), body)
    for s in range(model.nsensor):
        is_of_it = (int(model.sensor_objtype[s]), int(model.sensor_objid[s])) == wanted
        counts = kind != "contact" or model.sensor_intprm[s, 0] & _FOUND
        other = (int(model.sensor_reftype[s]), int(model.sensor_refid[s]))
        is_of_world = other[1] < 0 or other == (int(objects.mjOBJ_BODY), 0)
        if is_of_it and counts and is_of_world and int(model.sensor_type[s]) == int(_sensor_type(kind)):
            return int(model.sensor_adr[s])
    return None


def add_missing_sensors(spec: MjSpec, model: MjModel, feet: list[FootShape], fall_geoms: list[int]) -> bool:
    """Add missing contact, position and velocity sensors; return whether any was added.

    `model` is the compiled `spec`. Geoms and bodies without a name get one. Added contact sensors count contacts
    with the world, not self-collisions.
    """
    every: tuple[SensorKind, ...] = ("contact", "position", "velocity")
    wanted = dict.fromkeys([FootShape(g, None) for g in fall_geoms], every[:1]) | dict.fromkeys(feet, every)
    added = False
    for shape, kinds in wanted.items():
        for kind in kinds:
            if sensor_address(model, shape.geom, kind, shape.body) is None:
                _add_sensor(spec, kind, shape)
                added = True
    return added


def _add_sensor(spec: MjSpec, kind: SensorKind, shape: FootShape) -> None:
    objects = mujoco.mjtObj
    by_body = kind == "contact" and shape.body is not None
    elements, number = (spec.bodies, shape.body) if by_body else (spec.geoms, shape.geom)
    element = next(element for element in elements if element.id == number)
    element.name = element.name or f"st_rl/{'body' if by_body else 'geom'}_{number}"
    world = {"intprm": [_FOUND, _NET_FORCE, 1], "reftype": objects.mjOBJ_BODY, "refname": "world"}
    spec.add_sensor(
        name=f"st_rl/{element.name}_{kind}",
        type=_sensor_type(kind),
        objtype=objects.mjOBJ_BODY if by_body else objects.mjOBJ_GEOM,
        objname=element.name,
        **(world if kind == "contact" else {}),
    )


def _sensor_type(kind: SensorKind) -> Any:
    if kind == "contact":
        return mujoco.mjtSensor.mjSENS_CONTACT
    return mujoco.mjtSensor.mjSENS_FRAMEPOS if kind == "position" else mujoco.mjtSensor.mjSENS_FRAMELINVEL
