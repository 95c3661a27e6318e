"""Readings of contact sensors, computed without sorting the contacts of every sensor."""

# pyright: reportInvalidTypeForm=false
# Types of Warp's kernels are values.

import functools
from types import ModuleType
from typing import Any

import numpy as np

from st_rl.sim.require import MjModel, mujoco

_NET_FORCE = 3
"""Reduction of MuJoCo's contact sensor: the sum of all contacts."""
_FOUND, _FORCE = 1, 2
"""Bits of the data of MuJoCo's contact sensor: number of contacts and force."""
_CONSTRAINT = 1
"""Bit of the type of a contact that the solver sees (`ContactType` of MuJoCo Warp)."""


class ContactReadings:
    """Adds up the contacts of each contact sensor, as MuJoCo's sensors with `reduce="netforce"` do.

    MuJoCo Warp lists, sorts and reduces the contacts of each sensor; a sum needs none of this.
    """

    def __init__(self, warp: ModuleType, mjwarp: ModuleType, model: MjModel, data: Any) -> None:
        sensors = contact_sensors(model)
        self._warp, self._mjwarp, self._data = warp, mjwarp, data
        flags = [_matches(model, sensors, kind) for kind in ("obj", "ref")]
        self._is_object, self._is_reference = (warp.array(f, dtype=bool) for f in flags)
        self._addresses = warp.array(model.sensor_adr[sensors], dtype=int)
        self._has_force = warp.array(model.sensor_intprm[sensors, 0] & _FORCE > 0, dtype=bool)
        self._contact_ids = warp.array(np.arange(data.naconmax), dtype=int)
        self._forces = warp.empty(data.naconmax, dtype=warp.spatial_vector)

    def launch(self, model: Any) -> None:
        """Add the contacts of the last substep to `sensordata`, of which the columns are zero."""
        data = self._data
        self._mjwarp.contact_force(model, data, self._contact_ids, True, self._forces)
        self._warp.launch(
            _contact_kernel(self._warp),
            dim=data.naconmax,
            inputs=[
                data.nacon,
                data.contact.type,
                data.contact.worldid,
                data.contact.geom,
                self._forces,
                self._is_object,
                self._is_reference,
                self._addresses,
                self._has_force,
            ],
            outputs=[data.sensordata],
        )


def contact_sensors(model: MjModel) -> np.ndarray:
    """The contact sensors of a model."""
    return np.flatnonzero(model.sensor_type == mujoco.mjtSensor.mjSENS_CONTACT)


def can_read(model: MjModel) -> bool:
    """Whether a model has contact sensors, not disabled, that only count contacts of geoms and bodies or add forces."""
    sensors = contact_sensors(model)
    kinds = mujoco.mjtObj
    plain = {int(k) for k in (kinds.mjOBJ_UNKNOWN, kinds.mjOBJ_GEOM, kinds.mjOBJ_BODY, kinds.mjOBJ_XBODY)}
    return bool(
        len(sensors)
        and not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_SENSOR
        and (model.sensor_intprm[sensors, 1] == _NET_FORCE).all()
        and np.isin(model.sensor_intprm[sensors, 0], (_FOUND, _FOUND | _FORCE)).all()
        and (model.sensor_cutoff[sensors] == 0).all()
        and {*model.sensor_objtype[sensors].tolist(), *model.sensor_reftype[sensors].tolist()} <= plain
        and not model.nflex
    )


def _matches(model: MjModel, sensors: np.ndarray, kind: str) -> np.ndarray:
    """`(sensors, geoms)`: whether a geom belongs to the object, or the reference, of a contact sensor."""
    kinds = mujoco.mjtObj
    table = np.ones((len(sensors), model.ngeom), dtype=bool)
    for row, sensor in zip(table, sensors, strict=True):
        type_, number = getattr(model, f"sensor_{kind}type")[sensor], getattr(model, f"sensor_{kind}id")[sensor]
        if type_ == kinds.mjOBJ_GEOM:
            row[:] = np.arange(model.ngeom) == number
        elif type_ == kinds.mjOBJ_BODY:
            row[:] = model.geom_bodyid == number
        elif type_ == kinds.mjOBJ_XBODY:
            row[:] = [number in _ancestors(model, int(body)) for body in model.geom_bodyid]
    return table


def _ancestors(model: MjModel, body: int) -> set[int]:
    """A body and all bodies that carry it, without the world unless it is the world."""
    found = {body}
    while body := int(model.body_parentid[body]):
        found.add(body)
    return found


@functools.cache
def _contact_kernel(warp: ModuleType) -> Any:
    wp, constraint = warp, _CONSTRAINT

    @wp.kernel(module="unique", enable_backward=False)
    def add_contacts(
        num_contacts_in: wp.array(dtype=int),
        type_in: wp.array(dtype=int),
        worldid_in: wp.array(dtype=int),
        geom_in: wp.array(dtype=wp.vec2i),
        force_in: wp.array(dtype=wp.spatial_vector),
        is_object: wp.array2d(dtype=bool),
        is_reference: wp.array2d(dtype=bool),
        addresses: wp.array(dtype=int),
        has_force: wp.array(dtype=bool),
        sensordata_out: wp.array2d(dtype=float),
    ):
        contact = wp.tid()
        if contact >= num_contacts_in[0] or (type_in[contact] & wp.static(constraint)) == 0:
            return
        worldid = worldid_in[contact]
        geom = geom_in[contact]
        force = wp.spatial_top(force_in[contact])
        for sensor in range(addresses.shape[0]):
            regular = is_object[sensor, geom[0]] and is_reference[sensor, geom[1]]
            if regular or (is_object[sensor, geom[1]] and is_reference[sensor, geom[0]]):
                address = addresses[sensor]
                wp.atomic_add(sensordata_out, worldid, address, 1.0)
                if has_force[sensor]:
                    sign = wp.where(regular, 1.0, -1.0)
                    for axis in range(3):
                        wp.atomic_add(sensordata_out, worldid, address + 1 + axis, sign * force[axis])

    return add_contacts
