"""Finds the feet of a robot and gives its MJCF the sensors that locomotion tasks read."""

import re
from typing import Any, Literal

from st_rl.sim.require import require_mujoco

_FOOT_NAME = re.compile(r"foot|feet|toe|sole", re.IGNORECASE)
_KNEE_NAME = re.compile(r"knee", re.IGNORECASE)
# A leaf link whose lowest shape hangs in this lowest share of the robot's height is a leg, not an arm.
_LOW_SHARE = 0.25
# Numbers of MuJoCo's contact sensor: its data bit "found" and its reduction "netforce".
_FOUND = 1
_NET_FORCE = 3


def find_feet(model: Any, data: Any, base_body: int) -> list[int]:
    """Geom ids of the feet, one for each leg, in model order.

    Geoms called foot, feet, toe or sole that can touch something come first; without any, the lowest colliding geom of
    each outermost link that ends near the ground in the pose of `data`.
    """
    colliding = [g for g in range(model.ngeom) if _below(model, g, base_body) and _collides(model, g)]
    named = [g for g in colliding if _FOOT_NAME.search(model.geom(g).name)]
    if not named:
        named = [g for g in colliding if _FOOT_NAME.search(model.body(model.geom_bodyid[g]).name)]
    if named:
        return _lowest_of_each_body(model, data, named)
    parents = {int(model.body_parentid[b]) for b in range(1, model.nbody)}
    leaves = [g for g in colliding if int(model.geom_bodyid[g]) not in parents]
    if not leaves:
        return []
    lowest = _lowest_of_each_body(model, data, leaves)
    height = {g: float(data.geom_xpos[g, 2]) for g in lowest}
    ground, top = min(height.values()), max(float(data.xpos[base_body, 2]), *height.values())
    return [g for g in lowest if height[g] - ground <= _LOW_SHARE * (top - ground)]


def find_fall_geoms(model: Any, base_body: int) -> list[int]:
    """Geom ids that touch the ground only when the robot has fallen: those of its base, and its knees."""
    base = [g for g in range(model.ngeom) if int(model.geom_bodyid[g]) == base_body and _collides(model, g)]
    knees = [g for g in range(model.ngeom) if _KNEE_NAME.search(model.geom(g).name) and _collides(model, g)]
    return sorted({*base, *knees})


def sensor_address(model: Any, geom: int, kind: Literal["contact", "position", "velocity"]) -> int | None:
    """Where the sensor of a geom starts in `sensordata`; a contact sensor must count its contacts. None without one."""
    mujoco = require_mujoco()
    for s in range(model.nsensor):
        of_geom = int(model.sensor_objtype[s]) == int(mujoco.mjtObj.mjOBJ_GEOM) and int(model.sensor_objid[s]) == geom
        counts = kind != "contact" or model.sensor_intprm[s, 0] & _FOUND
        if of_geom and counts and int(model.sensor_type[s]) == int(_sensor_type(kind)):
            return int(model.sensor_adr[s])
    return None


def add_missing_sensors(spec: Any, model: Any, feet: list[int], fall_geoms: list[int]) -> bool:
    """Add the contact, position and velocity sensors that the file lacks; say whether any was added.

    `model` is the compiled `spec`. A geom without a name gets one.
    """
    by_geom = require_mujoco().mjtObj.mjOBJ_GEOM
    elements = {g.id: g for g in spec.geoms}
    added = False
    for geom in sorted({*feet, *fall_geoms}):
        kinds = ("contact", "position", "velocity") if geom in feet else ("contact",)
        for kind in kinds:
            if sensor_address(model, geom, kind) is None:
                element = elements[geom]
                element.name = element.name or f"st_rl/geom_{geom}"
                details = {"intprm": [_FOUND, _NET_FORCE, 1]} if kind == "contact" else {}
                name = f"st_rl/{element.name}_{kind}"
                spec.add_sensor(name=name, type=_sensor_type(kind), objtype=by_geom, objname=element.name, **details)
                added = True
    return added


def has_ground(model: Any) -> bool:
    """Whether the world holds a plane or a height field to stand on."""
    kind = require_mujoco().mjtGeom
    ground = (int(kind.mjGEOM_PLANE), int(kind.mjGEOM_HFIELD))
    return any(int(model.geom_bodyid[g]) == 0 and int(model.geom_type[g]) in ground for g in range(model.ngeom))


def _sensor_type(kind: str) -> Any:
    """MuJoCo's sensor type for one of our three kinds."""
    types = require_mujoco().mjtSensor
    named = {"contact": "mjSENS_CONTACT", "position": "mjSENS_FRAMEPOS", "velocity": "mjSENS_FRAMELINVEL"}
    return getattr(types, named[kind])


def _collides(model: Any, geom: int) -> bool:
    """Whether a geom can touch another one."""
    return bool(model.geom_contype[geom] or model.geom_conaffinity[geom])


def _below(model: Any, geom: int, base_body: int) -> bool:
    """Whether a geom belongs to the kinematic tree of the base."""
    body = int(model.geom_bodyid[geom])
    return int(model.body_rootid[body]) == int(model.body_rootid[base_body])


def _lowest_of_each_body(model: Any, data: Any, geoms: list[int]) -> list[int]:
    """Of several geoms of one body, the lowest in the pose of `data`."""
    lowest: dict[int, int] = {}
    for g in geoms:
        body = int(model.geom_bodyid[g])
        if body not in lowest or data.geom_xpos[g, 2] < data.geom_xpos[lowest[body], 2]:
            lowest[body] = g
    return sorted(lowest.values())
