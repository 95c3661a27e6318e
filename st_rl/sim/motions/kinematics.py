"""Forward kinematics of a robot in batched torch: poses and velocities of its bodies."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.sim.require import MjModel, mujoco
from st_rl.sim.robots.model_queries import FreeJoint

# The rotation matrix of a quaternion (w, x, y, z), row by row: 1 on the diagonal, plus twice each of two products.
_MATRIX_PRODUCTS = (
    ((2, 2, -1), (1, 2, 1), (1, 3, 1), (1, 2, 1), (1, 1, -1), (2, 3, 1), (1, 3, 1), (2, 3, 1), (1, 1, -1)),
    ((3, 3, -1), (0, 3, -1), (0, 2, 1), (0, 3, 1), (3, 3, -1), (0, 1, -1), (0, 2, -1), (0, 1, 1), (2, 2, -1)),
)


class BodyStates(NamedTuple):
    """Poses and velocities of `B` bodies in the world frame."""

    pos: Tensor
    """`(N, B, 3)` origins of the body frames, m"""
    rot: Tensor
    """`(N, B, 3, 3)` rotations from the body to the world"""
    lin_vel: Tensor
    """`(N, B, 3)` velocities of the origins, m/s"""
    ang_vel: Tensor
    """`(N, B, 3)` rad/s"""


class _Link(NamedTuple):
    """A frame with at most one joint; a body with several joints is a chain of links."""

    body: int
    parent: int
    pos: np.ndarray
    rot: np.ndarray
    joint: int | None


class Kinematics:
    """Body poses and velocities from `qpos` and `qvel`, without a host sync, equal to those of MuJoCo.

    The transform of a link relative to its parent is `A + sin(q) B + cos(q) C + q D` with constant matrices `(3, 4)`,
    so that all links are computed at once and only the levels of the tree in sequence. There is no matrix product: on a
    GPU it would be rounded to TF32 where that is allowed. Inside, links (`L`) come before robots (`N`).
    """

    def __init__(
        self,
        model: MjModel,
        base: FreeJoint,
        bodies: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Read the tree below the free joint; `bodies` are the ids of the bodies to compute, in order."""
        self._base = base
        links, levels = _sort_by_level(_find_links(model, base, bodies))
        last_link = {link.body: number for number, link in enumerate(links)}
        outside = [model.body(body).name for body in bodies if body not in last_link]
        if outside:
            raise ValueError(f"{', '.join(outside)} do not move with the base: choose bodies of the robot")

        def tensor(values: object) -> Tensor:
            return torch.as_tensor(np.array(values), dtype=dtype, device=device)

        constants = [_transform_constants(model, link) for link in links]
        parts = [tensor([row[part] for row in constants])[:, None] for part in range(4)]
        self._constant, self._sine, self._cosine, self._slope = parts
        joints = [link.joint for link in links]
        is_slide = [j is not None and model.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE for j in joints]
        has_anchor = [j is not None and bool(np.any(model.jnt_pos[j])) for j in joints]
        self._has_slides, self._has_anchors = any(is_slide), any(has_anchor)
        self._axis = tensor([np.zeros(3) if j is None else model.jnt_axis[j] for j in joints])[:, None, None]
        self._anchor = tensor([np.zeros(3) if j is None else model.jnt_pos[j] for j in joints])[:, None, None]
        self._is_hinge = tensor([[[float(j is not None and not slides)]] for j, slides in zip(joints, is_slide)])
        self._is_slide = tensor([[[float(slides)]] for slides in is_slide])
        # Links without a joint read any column: their axis is zero.
        qpos = [base.qpos if j is None else int(model.jnt_qposadr[j]) for j in joints]
        qvel = [base.qvel if j is None else int(model.jnt_dofadr[j]) for j in joints]
        self._qpos, self._qvel = torch.tensor(qpos, device=device), torch.tensor(qvel, device=device)
        self._qpos0 = tensor([[0.0 if j is None else model.qpos0[model.jnt_qposadr[j]]] for j in joints])
        self._levels = [_Level.of(links, above, level, device) for above, level in itertools.pairwise(levels)]
        # Entry `i` of a rotation matrix is that of the identity plus `sign * q_j q_k` for two pairs.
        self._pairs = [torch.tensor([4 * j + k for j, k, _ in half], device=device) for half in _MATRIX_PRODUCTS]
        self._signs = [2.0 * tensor([sign for _, _, sign in half]) for half in _MATRIX_PRODUCTS]
        self._identity = tensor(np.eye(3).ravel())
        self._bodies = torch.tensor([last_link[body] for body in bodies], device=device)

    def __call__(self, qpos: Tensor, qvel: Tensor) -> BodyStates:
        """The bodies of robots in states `qpos` `(N, nq)` and `qvel` `(N, nv)`."""
        first, base = self._base.qpos, self._base.qvel
        root_pos, root_rot = qpos[:, first : first + 3], self._rotation_matrix(qpos[:, first + 3 : first + 7])
        local = self._local_transforms(qpos)
        # Positions are relative to the base until the end: rounding does not grow with the distance walked.
        levels = [torch.cat([root_rot, torch.zeros_like(root_rot[..., :1])], dim=2)[None]]
        for level in self._levels:
            levels.append(_compose(level.parents_of(levels[-1]), local[level.start : level.stop]))
        links = torch.cat(levels)
        root_ang_vel = (root_rot * qvel[:, None, base + 3 : base + 6]).sum(dim=2)
        own = self._own_twists(links, qvel)
        twists = [torch.cat([root_ang_vel, qvel[:, base : base + 3]], dim=1)[None]]
        for level in self._levels:
            twists.append(level.parents_of(twists[-1]) + own[level.start : level.stop])
        bodies = links.index_select(0, self._bodies).transpose(0, 1)
        ang_vel, lin_vel = torch.cat(twists).index_select(0, self._bodies).transpose(0, 1).split(3, dim=2)
        rot, pos = bodies[..., :3], bodies[..., 3]
        return BodyStates(root_pos[:, None] + pos, rot, lin_vel + torch.linalg.cross(ang_vel, pos), ang_vel)

    def _rotation_matrix(self, q: Tensor) -> Tensor:
        """`(N, 3, 3)` of unit quaternions `(N, 4)` (w, x, y, z), in few operations."""
        products = (q[:, :, None] * q[:, None]).flatten(1)
        first, second = (products.index_select(1, pair) for pair in self._pairs)
        rows = torch.addcmul(torch.addcmul(self._identity, first, self._signs[0]), second, self._signs[1])
        return rows.unflatten(1, (3, 3))

    def _local_transforms(self, qpos: Tensor) -> Tensor:
        """`(L, N, 3, 4)` transform of each link relative to its parent."""
        angle = (qpos.index_select(1, self._qpos).T - self._qpos0)[:, :, None, None]
        local = torch.addcmul(self._constant, self._sine, angle.sin())
        local = torch.addcmul(local, self._cosine, angle.cos())
        return torch.addcmul(local, self._slope, angle) if self._has_slides else local

    def _own_twists(self, links: Tensor, qvel: Tensor) -> Tensor:
        """What the joint of each link `(L, N, 3, 4)` adds to its motion, `(L, N, 6)`.

        Angular velocity, and linear velocity of its point at the origin of the base.
        """
        rot, anchor = links[..., :3], links[..., 3]
        if self._has_anchors:
            anchor = anchor + (rot * self._anchor).sum(-1)
        rate = (rot * self._axis).sum(-1) * qvel.index_select(1, self._qvel).T[:, :, None]
        turning = rate * self._is_hinge if self._has_slides else rate
        velocity = torch.linalg.cross(anchor, turning)
        if self._has_slides:
            velocity = velocity + rate * self._is_slide
        return torch.cat([turning, velocity], dim=2)


class _Level(NamedTuple):
    """Links of one depth in the tree."""

    start: int
    stop: int
    parents: Tensor | None
    """Places of their parents in the level above; None where these are all of it, in order."""

    @classmethod
    def of(cls, links: Sequence[_Link], above: range, level: range, device: torch.device | str) -> "_Level":
        """The links of a level below another."""
        parents = [links[number].parent - above.start for number in level]
        is_same = parents == list(range(len(above)))
        return cls(level.start, level.stop, None if is_same else torch.tensor(parents, device=device))

    def parents_of(self, above: Tensor) -> Tensor:
        """Rows of the parents of these links in a tensor of the level above."""
        return above if self.parents is None else above.index_select(0, self.parents)


def _compose(first: Tensor, second: Tensor) -> Tensor:
    """Transforms `(L, N, 3, 4)`, the second in the frame of the first."""
    x, y, z, pos = first.split(1, dim=3)
    rows = second.split(1, dim=2)
    moved = torch.addcmul(torch.addcmul(x * rows[0], y, rows[1]), z, rows[2])
    moved[..., 3:] += pos
    return moved


def _find_links(model: MjModel, base: FreeJoint, bodies: Sequence[int]) -> list[_Link]:
    """Links of the tree below the base that carry `bodies`, parents first; ValueError for a ball joint."""
    needed = {0, *bodies}
    for body in range(model.nbody - 1, 0, -1):
        if body in needed:
            needed.add(int(model.body_parentid[body]))
    links, last = [_Link(base.body, -1, np.zeros(3), np.eye(3), None)], {base.body: 0}
    kinds = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    for body in range(base.body + 1, model.nbody):
        parent = last.get(int(model.body_parentid[body]))
        if parent is None or body not in needed:
            continue
        rot = np.zeros(9)
        mujoco.mju_quat2Mat(rot, model.body_quat[body])
        pos, rot = model.body_pos[body].copy(), rot.reshape(3, 3)
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        for joint in range(first, first + count) if count else (None,):
            if joint is not None and int(model.jnt_type[joint]) not in kinds:
                raise ValueError(f"joint '{model.joint(joint).name}' is neither a hinge nor a slide: use one of these")
            links.append(_Link(body, parent, pos, rot, joint))
            parent, pos, rot = len(links) - 1, np.zeros(3), np.eye(3)
        last[body] = parent
    return links


def _sort_by_level(links: Sequence[_Link]) -> tuple[list[_Link], list[range]]:
    """The links by depth in the tree, and the numbers of each level."""
    depth = [0] * len(links)
    for number, link in enumerate(links):
        depth[number] = 0 if link.parent < 0 else depth[link.parent] + 1
    order = sorted(range(len(links)), key=lambda number: depth[number])
    place = {number: rank for rank, number in enumerate(order)}
    ordered = [links[n]._replace(parent=place.get(links[n].parent, -1)) for n in order]
    counts = [depth.count(level) for level in range(max(depth) + 1)]
    ends = np.cumsum(counts).tolist()
    return ordered, [range(end - count, end) for count, end in zip(counts, ends)]


def _transform_constants(model: MjModel, link: _Link) -> list[np.ndarray]:
    """The matrices `(3, 4)` of the constant, the sine, the cosine and the coordinate of a link's joint."""
    none = np.zeros((3, 4))
    constant = np.column_stack([link.rot, link.pos])
    if link.joint is None:
        return [constant, none, none, none]
    axis, anchor = model.jnt_axis[link.joint], model.jnt_pos[link.joint]
    if model.jnt_type[link.joint] == mujoco.mjtJoint.mjJNT_SLIDE:
        return [constant, none, none, np.column_stack([np.zeros((3, 3)), link.rot @ axis])]
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    # A rotation about an anchor that is not the origin moves the origin.
    sine, versine = (link.rot @ turn for turn in (cross, cross @ cross))
    # One minus the cosine multiplies `versine`.
    versine = np.column_stack([versine, -versine @ anchor])
    return [constant + versine, np.column_stack([sine, -sine @ anchor]), -versine, none]
