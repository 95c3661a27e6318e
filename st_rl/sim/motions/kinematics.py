"""Forward kinematics of a robot in batched torch: poses and velocities of its bodies."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from st_rl.sim.require import MjModel, mujoco
from st_rl.sim.robots.model_queries import FreeJoint
from st_rl.utils.tensors.rotations import quat_to_rotmat


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

    The transform of a link relative to its parent is `A + sin(q) B + (1 - cos(q)) C + q D` with constant matrices
    `(3, 4)`, so that all links are computed at once and only the levels of the tree in sequence.
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
        links, self._levels = _sort_by_level(_find_links(model, base, bodies))
        last_link = {link.body: number for number, link in enumerate(links)}
        outside = [model.body(body).name for body in bodies if body not in last_link]
        if outside:
            raise ValueError(f"{', '.join(outside)} do not move with the base: choose bodies of the robot")

        def tensor(values: object) -> Tensor:
            return torch.as_tensor(np.array(values), dtype=dtype, device=device)

        constants = [_transform_constants(model, link) for link in links]
        self._constants = tuple(tensor([row[part] for row in constants]) for part in range(4))
        joints = [link.joint for link in links]
        is_slide = [j is not None and model.jnt_type[j] == mujoco.mjtJoint.mjJNT_SLIDE for j in joints]
        self._axis = tensor([np.zeros(3) if j is None else model.jnt_axis[j] for j in joints])
        self._anchor = tensor([np.zeros(3) if j is None else model.jnt_pos[j] for j in joints])
        self._is_hinge = tensor([[float(j is not None and not slides)] for j, slides in zip(joints, is_slide)])
        self._is_slide = tensor([[float(slides)] for slides in is_slide])
        # Links without a joint read any column: their axis is zero.
        qpos = [base.qpos if j is None else int(model.jnt_qposadr[j]) for j in joints]
        qvel = [base.qvel if j is None else int(model.jnt_dofadr[j]) for j in joints]
        self._qpos, self._qvel = torch.tensor(qpos, device=device), torch.tensor(qvel, device=device)
        self._qpos0 = tensor([0.0 if j is None else model.qpos0[model.jnt_qposadr[j]] for j in joints])
        # The parents of a level are all in the level before.
        self._parents = [
            torch.tensor([links[i].parent - above.start for i in level], device=device)
            for above, level in itertools.pairwise(self._levels)
        ]
        self._bodies = torch.tensor([last_link[body] for body in bodies], device=device)
        ancestors = np.eye(len(links))
        for number, link in enumerate(links):
            if link.parent >= 0:
                ancestors[number] += ancestors[link.parent]
        # (B, L): 1 for each link on the way from the base to a body.
        self._ancestors = tensor(ancestors[[last_link[body] for body in bodies]])

    def __call__(self, qpos: Tensor, qvel: Tensor) -> BodyStates:
        """The bodies of robots in states `qpos` `(N, nq)` and `qvel` `(N, nv)`."""
        first, base = self._base.qpos, self._base.qvel
        root_pos, (w, x, y, z) = qpos[:, None, first : first + 3], qpos[:, first + 3 : first + 7].unbind(1)
        root_rot = quat_to_rotmat(torch.stack([x, y, z, w], dim=1))
        angle = (qpos.index_select(1, self._qpos) - self._qpos0)[:, :, None, None]
        constant, sine, versine, slope = self._constants
        local = constant + angle.sin() * sine + (1.0 - angle.cos()) * versine + angle * slope
        # Positions are relative to the base until the end: rounding does not grow with the distance walked.
        world = torch.cat([root_rot, torch.zeros_like(root_rot[..., :1])], dim=2)[:, None]
        levels = [world]
        for level, parents in zip(self._levels[1:], self._parents):
            parent = levels[-1].index_select(1, parents)
            moved = parent[..., :3] @ local[:, level.start : level.stop]
            moved[..., 3] += parent[..., 3]
            levels.append(moved)
        links = torch.cat(levels, dim=1)
        rot, pos = links[..., :3], links[..., 3]
        axis, anchor = (rot * self._axis[:, None]).sum(-1), pos + (rot * self._anchor[:, None]).sum(-1)
        rate = axis * qvel.index_select(1, self._qvel)[:, :, None]
        turning = rate * self._is_hinge
        sliding = rate * self._is_slide - torch.linalg.cross(turning, anchor)
        root_ang_vel = (root_rot @ qvel[:, base + 3 : base + 6, None]).mT
        bodies = links.index_select(1, self._bodies)
        rot, pos = bodies[..., :3], bodies[..., 3]
        ang_vel = root_ang_vel + self._ancestors @ turning
        lin_vel = qvel[:, None, base : base + 3] + torch.linalg.cross(ang_vel, pos) + self._ancestors @ sliding
        return BodyStates(root_pos + pos, rot, lin_vel, ang_vel)


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
    """The matrices `(3, 4)` of the constant, the sine, one minus the cosine, and the coordinate of a link's joint."""
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
    return [constant, np.column_stack([sine, -sine @ anchor]), np.column_stack([versine, -versine @ anchor]), none]
