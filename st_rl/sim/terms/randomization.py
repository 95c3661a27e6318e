"""Domain randomization: physical properties sampled per robot and written into its model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from st_rl.sim.backends import Backend
from st_rl.sim.robots import Robot

if TYPE_CHECKING:
    from st_rl.sim.envs.cfg import Range

NUM_PROPERTIES = 3
# Names of the trunk of a robot with the pelvis as base.
_TRUNK_NAME = re.compile(r"torso|trunk|chest", re.IGNORECASE)


def randomize(
    backend: Backend, robot: Robot, ranges: tuple[Range | None, Range | None, Range | None], random: torch.Tensor
) -> torch.Tensor:
    """Write friction, trunk mass and motor strength of every robot into the model fields; return them, `(N, 3)`.

    `ranges` are of sliding friction, of the factor of the trunk's mass and inertia, and of the factor of the torques;
    None keeps the value of the robot. `random` `(N, 3)` are uniform numbers in [0, 1).
    """
    friction, mass, strength = ranges
    values = torch.empty_like(random)
    values[:, 0] = _sample(friction, random[:, 0], float(robot.model.geom_friction[:, 0].max()))
    values[:, 1] = _sample(mass, random[:, 1], 1.0)
    values[:, 2] = _sample(strength, random[:, 2], 1.0)
    if friction is not None:
        # MuJoCo uses the larger friction of two surfaces in contact, so all surfaces of a world get the same.
        backend.expand("geom_friction")[:, :, 0] = values[:, 0, None]
    if mass is not None:
        for body in trunk_bodies(robot):
            backend.expand("body_mass")[:, body] *= values[:, 1]
            backend.expand("body_inertia")[:, body] *= values[:, 1, None]
        backend.refresh_constants()
    if strength is not None:
        backend.expand("actuator_gainprm")[:, :, 0] *= values[:, 2, None]
        backend.expand("actuator_biasprm")[:, :, 1:3] *= values[:, 2, None, None]
    return values


def trunk_bodies(robot: Robot) -> list[int]:
    """Bodies of the trunk: the base, and all named torso, trunk or chest."""
    model, base = robot.model, robot.free_joint.body if robot.free_joint is not None else 1
    named = [body for body in range(1, model.nbody) if _TRUNK_NAME.search(model.body(body).name)]
    return sorted({base, *named})


def _sample(limits: Range | None, random: torch.Tensor, default: float) -> torch.Tensor | float:
    """Uniform values between limits, or the default if there are none."""
    return default if limits is None else limits[0] + random * (limits[1] - limits[0])
