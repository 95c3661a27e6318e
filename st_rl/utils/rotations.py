"""Rotations as quaternions (x, y, z, w), matrices and Euler angles."""

import math

import torch
from torch import Tensor


def wrap_to_pi(angles: Tensor) -> Tensor:
    """Bring angles in rad, any shape, into (-pi, pi]; the input stays as it is."""
    turned = torch.remainder(angles, 2 * math.pi)
    return torch.where(turned > math.pi, turned - 2 * math.pi, turned)


def quat_to_rotmat(q: Tensor) -> Tensor:
    """Rotation matrices `(..., 3, 3)` of unit quaternions `(..., 4)` in x, y, z, w order."""
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
    # Rounding may carry the sine a little past 1, where asin is NaN.
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
