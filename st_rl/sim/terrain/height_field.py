"""Height fields: in the MuJoCo world of a robot, and as a lookup in torch.

Rows run along y and columns along x. As in MuJoCo, every cell is split into two triangles along the diagonal from its
corner at the smallest x and y.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from st_rl.sim.require import MjSpec, mujoco
from st_rl.sim.robots.model_queries import ground_contact_bits

# Solid ground below the lowest point, m.
_DEPTH = 1.0
# solref of the ground (time constant half of MuJoCo's default, damping ratio) and its solmix relative to the robot's
# geoms: a foot that penetrates by more than its radius gets stuck between the prisms of the field.
_CONTACT = [0.01, 1.0]
_WEIGHT = 1000.0


class HeightField(NamedTuple):
    """Heights on a regular grid."""

    heights: np.ndarray
    """`(R, C)` m"""
    origin: tuple[float, float]
    """World x and y of the point in the first row and column, m."""
    spacing: float
    """Distance between two rows or columns, m."""


class Ground:
    """A height field on a device, for height queries."""

    def __init__(self, field: HeightField, device: torch.device | str) -> None:
        self._heights = torch.as_tensor(field.heights, dtype=torch.float32, device=device).contiguous()
        self._origin = torch.tensor(field.origin, dtype=torch.float32, device=device)
        self._spacing = field.spacing

    def height_at(self, points: torch.Tensor) -> torch.Tensor:
        """Heights `(...)` at world positions `(..., 2)`, m; outside of the field the height of its edge."""
        return height_at(self._heights, (points - self._origin) / self._spacing)


def height_at(heights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Interpolated heights `(...)` of a grid `(R, C)` at `places` `(..., 2)`: fractional column and row."""
    num_rows, num_columns = heights.shape
    x, y = places[..., 0].clamp(0.0, num_columns - 1.0), places[..., 1].clamp(0.0, num_rows - 1.0)
    # The last cell contains the far edge.
    column, row = x.long().clamp(max=num_columns - 2), y.long().clamp(max=num_rows - 2)
    x, y = x - column, y - row
    corner = row * num_columns + column
    flat = heights.view(-1)
    low, high = flat[corner], flat[corner + num_columns + 1]
    # The third corner of the triangle is off the diagonal: at the smaller x above it, at the larger x below it.
    is_upper = y > x
    third = flat[torch.where(is_upper, corner + num_columns, corner + 1)]
    first, second = torch.where(is_upper, y, x), torch.where(is_upper, x, y)
    return low + first * (third - low) + second * (high - third)


def add_height_field(spec: MjSpec, field: HeightField, name: str = "terrain") -> None:
    """Replace the planes in the world of a `mujoco.MjSpec` by a height field with the same contact bits."""
    rows, columns = field.heights.shape
    low, high = float(field.heights.min()), float(field.heights.max())
    half = ((columns - 1) * field.spacing / 2, (rows - 1) * field.spacing / 2)
    spec.add_hfield(
        name=name,
        nrow=rows,
        ncol=columns,
        # MuJoCo scales the data to this height and rejects zero.
        size=[*half, max(high - low, 1.0e-3), _DEPTH],
        userdata=field.heights.astype(np.float32).reshape(-1),
    )
    planes = [geom for geom in spec.worldbody.geoms if geom.type == mujoco.mjtGeom.mjGEOM_PLANE]
    touch: dict[str, Any] = {"group": 0, **ground_contact_bits(spec)}
    if planes:
        touch["material"] = planes[0].material
    for plane in planes:
        spec.delete(plane)
    spec.worldbody.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_HFIELD,
        hfieldname=name,
        pos=[field.origin[0] + half[0], field.origin[1] + half[1], low],
        solref=_CONTACT,
        solmix=_WEIGHT,
        **touch,
    )
