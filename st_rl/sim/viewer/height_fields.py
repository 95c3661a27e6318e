"""Draws the height fields of a model in a browser: thinned out, and darker where the ground is steep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from st_rl.sim.require import MjModel, mujoco

if TYPE_CHECKING:
    import viser

# Vertices of a height field that a browser draws at once.
_MAX_VERTICES = 300_000
_LEVEL_GRAY, _STEEP_GRAY = 205.0, 85.0


def add_height_fields(server: viser.ViserServer, model: MjModel, parent: str) -> None:
    """Draw the height fields of a model below a node of the scene; their geoms become transparent.

    mjviser would draw them in one color, in which steps cannot be seen. Contacts still need the whole field: on a
    thinned one, feet stick in the ground.
    """
    import trimesh

    for geom in np.flatnonzero(model.geom_type == int(mujoco.mjtGeom.mjGEOM_HFIELD)):
        vertices, faces, gray = height_field_mesh(model, int(model.geom_dataid[geom]))
        colors = np.repeat(gray[:, None], 3, axis=1)
        mesh = trimesh.Trimesh(vertices, faces, vertex_colors=colors, process=False)
        server.scene.add_mesh_trimesh(
            f"{parent}/height_field_{geom}",
            mesh,
            position=model.geom_pos[geom],
            wxyz=model.geom_quat[geom],
            cast_shadow=False,
            receive_shadow=0.2,
        )
        model.geom_rgba[geom, 3] = 0.0


def height_field_mesh(model: MjModel, field: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vertices `(V, 3)`, faces `(F, 3)` and gray values `(V,)` uint8 of a height field."""
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    start, (size_x, size_y, size_z, _) = int(model.hfield_adr[field]), model.hfield_size[field]
    stride = int(np.ceil(np.sqrt(rows * columns / _MAX_VERTICES)))
    row, column = _thinned(rows, stride), _thinned(columns, stride)
    heights = size_z * model.hfield_data[start : start + rows * columns].reshape(rows, columns)[np.ix_(row, column)]
    y, x = np.linspace(-size_y, size_y, rows)[row], np.linspace(-size_x, size_x, columns)[column]
    slope = np.hypot(*np.gradient(heights, y, x))
    gray = _STEEP_GRAY + (_LEVEL_GRAY - _STEEP_GRAY) / (1.0 + slope**2)
    across, along = np.meshgrid(x, y)
    corner = np.arange(len(row) * len(column)).reshape(len(row), len(column))
    a, b, c, d = (part.reshape(-1) for part in (corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]))
    faces = np.concatenate([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)])
    vertices = np.stack([across.reshape(-1), along.reshape(-1), heights.reshape(-1)], axis=1)
    return vertices, faces, gray.reshape(-1).astype(np.uint8)


def _thinned(count: int, stride: int) -> np.ndarray:
    """Indices of about every `stride`-th of `count` points, first and last included."""
    return np.linspace(0, count - 1, max(2, 1 + (count - 1) // stride)).round().astype(int)
