"""Properties in which robots of one kind differ, written into the model of each."""

import re
from typing import Any

import torch

from st_rl.sim.backends import Backend
from st_rl.sim.envs.cfg import Range
from st_rl.sim.robots import Robot

NUM_PROPERTIES = 3
# Bodies that are the trunk of a robot whose base is only its pelvis.
_TRUNK_NAME = re.compile(r"torso|trunk|chest", re.IGNORECASE)


def randomize(
    backend: Backend, robot: Robot, ranges: tuple[Range | None, Range | None, Range | None], random: torch.Tensor
) -> torch.Tensor:
    """Draw friction, mass of the trunk and motor strength of every robot and return them, `(N, 3)`.

    Args:
        backend: Whose model fields are written.
        robot: Gives the values that stay where a range is None.
        ranges: Of the sliding friction, of the factor for the trunk's mass and inertia, of the factor for torques.
        random: Uniform numbers in [0, 1), `(N, 3)`.
    """
    friction, mass, strength = ranges
    values = torch.empty_like(random)
    values[:, 0] = _draw(friction, random[:, 0], float(robot.model.geom_friction[:, 0].max()))
    values[:, 1] = _draw(mass, random[:, 1], 1.0)
    values[:, 2] = _draw(strength, random[:, 2], 1.0)
    if friction is not None:
        # Of two surfaces that touch the larger friction counts, so all surfaces of a robot's world get the same.
        field = backend.expand("geom_friction")
        field[:, :, 0] = values[:, 0, None].to(field.dtype)
    if mass is not None:
        for body in trunk_bodies(robot):
            backend.expand("body_mass")[:, body] *= values[:, 1].to(_dtype(backend, "body_mass"))
            backend.expand("body_inertia")[:, body] *= values[:, 1, None].to(_dtype(backend, "body_inertia"))
        backend.refresh_constants()
    if strength is not None:
        factor = values[:, 2, None].to(_dtype(backend, "actuator_gainprm"))
        backend.expand("actuator_gainprm")[:, :, 0] *= factor
        backend.expand("actuator_biasprm")[:, :, 1:3] *= factor[:, :, None]
    return values


def trunk_bodies(robot: Robot) -> list[int]:
    """The base of a robot, and whatever else is called torso, trunk or chest."""
    model, base = robot.model, robot.free_joint.body if robot.free_joint is not None else 1
    named = [body for body in range(1, model.nbody) if _TRUNK_NAME.search(model.body(body).name)]
    return sorted({base, *named})


def _dtype(backend: Backend, field: str) -> torch.dtype:
    """Number type in which a backend holds a model field."""
    return backend.expand(field).dtype


def _draw(limits: Range | None, random: torch.Tensor, default: float) -> Any:
    """Uniform values between limits, or the default without any."""
    return default if limits is None else limits[0] + random * (limits[1] - limits[0])
