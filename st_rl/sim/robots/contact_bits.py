"""The bits by which something that is added to a robot's world touches the robot."""

from typing import Any

from st_rl.sim.require import require_mujoco


def ground_bits(spec: Any) -> dict[str, int]:
    """`contype` and `conaffinity` for ground in the world of a `mujoco.MjSpec`: those of the plane that it has.

    Without a plane that touches anything, bits that meet all shapes of the robot that do, whatever the file's default
    for shapes is.
    """
    plane = require_mujoco().mjtGeom.mjGEOM_PLANE
    for geom in spec.worldbody.geoms:
        if geom.type == plane and (geom.contype or geom.conaffinity):
            return {"contype": geom.contype, "conaffinity": geom.conaffinity}
    bits = {"contype": 1, "conaffinity": 1}
    for geom in spec.geoms:
        bits["contype"] |= geom.conaffinity
        bits["conaffinity"] |= geom.contype
    return bits
