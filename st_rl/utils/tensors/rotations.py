"""Rotations as unit quaternions, matrices and Euler angles.

Quaternions are (w, x, y, z), as in MuJoCo; only `quat_to_rotmat` takes (x, y, z, w), as in Isaac Gym.
"""

import math

import numpy as np
import torch
from torch import Tensor

WXYZ_TO_XYZW = [1, 2, 3, 0]
"""Columns that reorder a quaternion (w, x, y, z) as (x, y, z, w)."""
XYZW_TO_WXYZ = [3, 0, 1, 2]
"""Columns that reorder a quaternion (x, y, z, w) as (w, x, y, z)."""
# A rotation with a smaller sine of half the angle is treated as the identity.
_TINY = 1.0e-12

# Torch.


def wrap_to_pi(angles: Tensor) -> Tensor:
    """Wrap angles in rad, any shape, to (-pi, pi]; not in place."""
    wrapped = torch.remainder(angles, 2 * math.pi)
    return torch.where(wrapped > math.pi, wrapped - 2 * math.pi, wrapped)


def quat_to_rotmat(q: Tensor) -> Tensor:
    """Rotation matrices `(..., 3, 3)` of unit quaternions `(..., 4)` in the order (x, y, z, w)."""
    x, y, z, w = q.unbind(dim=-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)], dim=-1),
        torch.stack([2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)], dim=-1),
        torch.stack([2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)], dim=-1),
    ]
    return torch.stack(rows, dim=-2)


def _euler_angles(mat: Tensor, axes: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Angles `(a, b, c)` such that `mat = R_c @ R_b @ R_a` for the three different axes `(a, b, c)`."""
    a, b, c = axes
    sign = 1.0 if (b - c) % 3 == 1 else -1.0
    angle_a = torch.atan2(-sign * mat[..., c, b], mat[..., c, c])
    # Rounding can push the sine past 1, where asin is NaN.
    angle_b = torch.asin((sign * mat[..., c, a]).clamp(-1.0, 1.0))
    angle_c = torch.atan2(-sign * mat[..., b, a], mat[..., a, a])
    return wrap_to_pi(angle_a), wrap_to_pi(angle_b), wrap_to_pi(angle_c)


def rotmat_to_euler_zxy(mat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Angles `(z, x, y)` of `mat (..., 3, 3) = R_y @ R_x @ R_z`."""
    return _euler_angles(mat, (2, 0, 1))


def rotmat_to_euler_yzx(mat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Angles `(y, z, x)` of `mat (..., 3, 3) = R_x @ R_z @ R_y`."""
    return _euler_angles(mat, (1, 2, 0))


def rotmat_to_euler_xzy(mat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Angles `(x, z, y)` of `mat (..., 3, 3) = R_y @ R_z @ R_x`."""
    return _euler_angles(mat, (0, 2, 1))


def quat_rotate_inverse(q: Tensor, vectors: Tensor) -> Tensor:
    """World vectors `(N, K, 3)` in the frame of a body with orientation `q` `(N, 4)`: `(N, K, 3)`."""
    w, axis = q[:, None, :1], q[:, None, 1:]
    cross = torch.linalg.cross(axis, vectors)
    return torch.add(vectors, torch.addcmul(torch.linalg.cross(axis, cross), w, cross, value=-1.0), alpha=2.0)


def quat_slerp(start: Tensor, end: Tensor, blend: Tensor) -> Tensor:
    """Unit quaternions `(..., 4)`, in any order, at `blend` `(..., 1)` of the short arc from `start` to `end`."""
    cosine = (start * end).sum(dim=-1, keepdim=True)
    end = torch.where(cosine < 0, -end, end)
    angle = torch.acos(cosine.abs().clamp(max=1.0))
    sine = angle.sin()
    # For a small angle the arc equals its chord.
    is_small = sine < 1.0e-4
    safe = torch.where(is_small, torch.ones_like(sine), sine)
    first = torch.where(is_small, 1.0 - blend, ((1.0 - blend) * angle).sin() / safe)
    second = torch.where(is_small, blend.expand_as(sine), (blend * angle).sin() / safe)
    return torch.nn.functional.normalize(first * start + second * end, dim=-1)


# NumPy, for motion clips.


def normalize(q: np.ndarray) -> np.ndarray:
    """Quaternions `(..., 4)` of length one."""
    return q / np.linalg.norm(q, axis=-1, keepdims=True)


def remove_sign_flips(q: np.ndarray) -> np.ndarray:
    """The same rotations as the sequence `(F, ..., 4)`, without sign flips between consecutive frames."""
    flips = (q[1:] * q[:-1]).sum(axis=-1) < 0
    signs = np.concatenate([np.ones((1, *q.shape[1:-1])), np.cumprod(np.where(flips, -1.0, 1.0), axis=0)])
    return q * signs[..., None]


def conjugate(q: np.ndarray) -> np.ndarray:
    """The inverse rotations of `(..., 4)`."""
    return q * np.array([1.0, -1.0, -1.0, -1.0])


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product `a b` of `(..., 4)` and `(..., 4)`: rotation `b` followed by rotation `a`."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    real = aw * bw - (av * bv).sum(axis=-1, keepdims=True)
    return np.concatenate([real, aw * bv + bw * av + np.cross(av, bv)], axis=-1)


def rotate(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Vectors `v (..., 3)` rotated by `q (..., 4)`."""
    cross = np.cross(q[..., 1:], v)
    return v + 2.0 * (q[..., :1] * cross + np.cross(q[..., 1:], cross))


def rotate_inverse(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """World vectors `v (..., 3)` in the frame of a body with orientation `q (..., 4)`."""
    return rotate(conjugate(q), v)


def to_rotation_vector(q: np.ndarray) -> np.ndarray:
    """Axis times angle `(..., 3)`, the logarithm of `q (..., 4)`, with an angle of at most pi."""
    q = np.where(q[..., :1] < 0, -q, q)
    sine = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    angle = 2.0 * np.arctan2(sine, q[..., :1])
    # For a small angle the sine is half the angle.
    return np.where(sine > _TINY, angle / np.maximum(sine, _TINY), 2.0) * q[..., 1:]


def from_rotation_vector(vector: np.ndarray) -> np.ndarray:
    """Quaternions `(..., 4)` of axis times angle `(..., 3)`."""
    half = 0.5 * np.linalg.norm(vector, axis=-1, keepdims=True)
    return np.concatenate([np.cos(half), 0.5 * np.sinc(half / np.pi) * vector], axis=-1)


def slerp(a: np.ndarray, b: np.ndarray, blend: np.ndarray) -> np.ndarray:
    """The rotation at `blend (...)` of the short arc from `a (..., 4)` to `b (..., 4)`."""
    step = to_rotation_vector(multiply(b, conjugate(a)))
    return multiply(from_rotation_vector(np.asarray(blend)[..., None] * step), a)


def angular_velocity(q: np.ndarray, dt: float) -> np.ndarray:
    """World angular velocity `(F, ..., 3)` of a sequence of rotations `(F, ..., 4)`, by central differences."""
    velocity = np.empty((*q.shape[:-1], 3))
    velocity[1:-1] = to_rotation_vector(multiply(q[2:], conjugate(q[:-2]))) / (2.0 * dt)
    velocity[0] = to_rotation_vector(multiply(q[1], conjugate(q[0]))) / dt
    velocity[-1] = to_rotation_vector(multiply(q[-1], conjugate(q[-2]))) / dt
    return velocity
