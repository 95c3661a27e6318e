"""The part of a large height field that is near enough to be rendered."""

import copy

import numpy as np

from st_rl.sim.require import MjModel, MjvScene, mujoco

# Half the side of the rendered square, and largest distance of a robot from its center, m.
_HALF_SIDE = 8.0
_LARGEST_OFFSET = 3.0


class VisibleGround:
    """Crops the height fields of a world around a robot, because a software renderer draws every triangle.

    `model` is a copy with cropped fields; physics keeps the full ones.
    """

    def __init__(self, model: MjModel) -> None:
        self._whole = model
        self._kind = int(mujoco.mjtGeom.mjGEOM_HFIELD)
        is_field = (model.geom_type == self._kind) & (model.geom_bodyid == 0)
        self._geoms = [int(g) for g in np.flatnonzero(is_field) if np.allclose(model.geom_quat[g], [1, 0, 0, 0])]
        self._center = np.full(2, np.inf)
        self.model = copy.copy(model)
        """The model for a renderer."""
        self._positions: dict[int, np.ndarray] = {}

    def follow(self, place: np.ndarray) -> bool:
        """Crop around a position `(2,)` unless it is still near the center; return whether `model` changed."""
        if not self._geoms or np.abs(place - self._center).max() <= _LARGEST_OFFSET:
            return False
        self._center = np.array(place, dtype=float)
        self.model = copy.copy(self._whole)
        for geom in self._geoms:
            self._positions[geom] = self._cut(geom)
        return True

    def arrange(self, scene: MjvScene) -> None:
        """Move the cropped fields of a `mujoco.MjvScene` to their positions."""
        if not self._positions:
            return
        by_geom = int(mujoco.mjtObj.mjOBJ_GEOM)
        for shape in scene.geoms[: scene.ngeom]:
            if int(shape.type) == self._kind and int(shape.objtype) == by_geom and int(shape.objid) in self._positions:
                shape.pos[:] = self._positions[int(shape.objid)]

    def _cut(self, geom: int) -> np.ndarray:
        """Keep the rows and columns of a field around the center; return the position `(3,)` of the crop."""
        whole, field = self._whole, int(self._whole.geom_dataid[geom])
        rows, columns = int(whole.hfield_nrow[field]), int(whole.hfield_ncol[field])
        size, position = whole.hfield_size[field], whole.geom_pos[geom]
        first, count = np.zeros(2, dtype=int), np.zeros(2, dtype=int)
        for axis, points in enumerate((columns, rows)):
            step = 2.0 * size[axis] / (points - 1)
            middle = (self._center[axis] - position[axis] + size[axis]) / step
            reach = _HALF_SIDE / step
            low, high = (int(np.clip(round(middle + side * reach), 0, points - 1)) for side in (-1, 1))
            # At least two points remain if the robot has left the field.
            low = min(low, points - 2)
            first[axis], count[axis] = low, max(high, low + 1) - low + 1
            self.model.hfield_size[field, axis] = (count[axis] - 1) * step / 2
        start = int(whole.hfield_adr[field])
        heights = whole.hfield_data[start : start + rows * columns].reshape(rows, columns)
        kept = heights[first[1] : first[1] + count[1], first[0] : first[0] + count[0]]
        self.model.hfield_data[start : start + kept.size] = kept.reshape(-1)
        self.model.hfield_ncol[field], self.model.hfield_nrow[field] = count
        corner = np.array([first[a] * 2.0 * size[a] / (p - 1) - size[a] for a, p in enumerate((columns, rows))])
        center = position[:2] + corner + self.model.hfield_size[field, :2]
        return np.array([*center, position[2]])
