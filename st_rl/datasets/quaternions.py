"""Rotations as unit quaternions (w, x, y, z) in numpy, as clips hold them."""

import numpy as np

# Below this sine of half the angle, a rotation is as good as none.
_TINY = 1.0e-12


def normalized(q: np.ndarray) -> np.ndarray:
    """Quaternions `(..., 4)` of length one."""
    return q / np.linalg.norm(q, axis=-1, keepdims=True)


def continuous(q: np.ndarray) -> np.ndarray:
    """A sequence `(F, ..., 4)` of the same rotations whose sign never jumps from one frame to the next."""
    jumps = (q[1:] * q[:-1]).sum(axis=-1) < 0
    signs = np.concatenate([np.ones((1, *q.shape[1:-1])), np.cumprod(np.where(jumps, -1.0, 1.0), axis=0)])
    return q * signs[..., None]


def conjugate(q: np.ndarray) -> np.ndarray:
    """The inverse rotations of `(..., 4)`."""
    return q * np.array([1.0, -1.0, -1.0, -1.0])


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rotation `b (..., 4)`, then rotation `a (..., 4)`."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    real = aw * bw - (av * bv).sum(axis=-1, keepdims=True)
    return np.concatenate([real, aw * bv + bw * av + np.cross(av, bv)], axis=-1)


def rotate(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Vectors `v (..., 3)` turned by `q (..., 4)`."""
    across = np.cross(q[..., 1:], v)
    return v + 2.0 * (q[..., :1] * across + np.cross(q[..., 1:], across))


def rotate_inverse(q: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Vectors `v (..., 3)` of the world in the frame of a body with orientation `q (..., 4)`."""
    return rotate(conjugate(q), v)


def rotation_vector(q: np.ndarray) -> np.ndarray:
    """Axis times angle `(..., 3)`, the logarithm of `q (..., 4)`, by the shorter way round."""
    q = np.where(q[..., :1] < 0, -q, q)
    sine = np.linalg.norm(q[..., 1:], axis=-1, keepdims=True)
    angle = 2.0 * np.arctan2(sine, q[..., :1])
    # For small angles the sine is half the angle.
    return np.where(sine > _TINY, angle / np.maximum(sine, _TINY), 2.0) * q[..., 1:]


def from_rotation_vector(vector: np.ndarray) -> np.ndarray:
    """Quaternions `(..., 4)` of axis times angle `(..., 3)`."""
    half = 0.5 * np.linalg.norm(vector, axis=-1, keepdims=True)
    return np.concatenate([np.cos(half), 0.5 * np.sinc(half / np.pi) * vector], axis=-1)


def slerp(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The rotation at `share (...)` of the short arc from `a (..., 4)` to `b (..., 4)`."""
    step = rotation_vector(multiply(b, conjugate(a)))
    return multiply(from_rotation_vector(np.asarray(share)[..., None] * step), a)


def angular_velocity(q: np.ndarray, dt: float) -> np.ndarray:
    """Angular velocity `(F, ..., 3)` in the world of a sequence of rotations `(F, ..., 4)`, by central differences."""
    velocity = np.empty((*q.shape[:-1], 3))
    velocity[1:-1] = rotation_vector(multiply(q[2:], conjugate(q[:-2]))) / (2.0 * dt)
    velocity[0] = rotation_vector(multiply(q[1], conjugate(q[0]))) / dt
    velocity[-1] = rotation_vector(multiply(q[-1], conjugate(q[-2]))) / dt
    return velocity
