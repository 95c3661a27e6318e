import math

import numpy as np
import pytest
import torch

from st_rl.utils.tensors.rotations import quat_rotate_inverse
from st_rl.utils.utils import (
    quat_to_rotmat,
    rotmat_to_euler_xzy,
    rotmat_to_euler_yzx,
    rotmat_to_euler_zxy,
    wrap_to_pi,
)


def elementary(axis, angle):
    """Rotation about one axis, by Rodrigues' formula in float64."""
    unit = np.zeros(3)
    unit["xyz".index(axis)] = 1.0
    cross = np.cross(np.eye(3), unit)  # cross @ v is unit x v
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def test_wrap_to_pi_is_periodic_and_keeps_input():
    angles = torch.tensor([0.0, 3.0, -3.0, 4.0, -4.0, 100.0, -100.0, math.pi], dtype=torch.float64)
    given = angles.clone()
    wrapped = wrap_to_pi(given)
    assert torch.equal(given, angles)
    assert ((wrapped > -math.pi) & (wrapped <= math.pi)).all()
    torch.testing.assert_close(torch.sin(wrapped), torch.sin(angles))
    torch.testing.assert_close(torch.cos(wrapped), torch.cos(angles))
    assert wrapped[1] == 3.0
    assert wrapped[-1] == math.pi


def test_rotation_matrix_equals_quaternion_product():
    generator = torch.Generator().manual_seed(0)
    quat = torch.nn.functional.normalize(torch.randn(20, 4, generator=generator, dtype=torch.float64), dim=-1)
    vector = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    real, imaginary = quat[:, 3:], quat[:, :3]
    twice = 2 * torch.linalg.cross(imaginary, vector)
    expected = vector + real * twice + torch.linalg.cross(imaginary, twice)
    torch.testing.assert_close((quat_to_rotmat(quat) @ vector.unsqueeze(-1)).squeeze(-1), expected)
    assert torch.equal(quat_to_rotmat(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))[0], torch.eye(3))


@pytest.mark.parametrize(
    ("function", "order"), [(rotmat_to_euler_zxy, "zxy"), (rotmat_to_euler_yzx, "yzx"), (rotmat_to_euler_xzy, "xzy")]
)
def test_euler_angles_round_trip(function, order):
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(elementary("z", math.pi / 2) @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    outer = rng.uniform(-math.pi, math.pi, size=(30, 2))
    middle = rng.uniform(-1.5, 1.5, size=30)
    expected = np.stack([outer[:, 0], middle, outer[:, 1]], axis=-1)
    matrices = []
    for angles in expected:
        matrix = np.eye(3)
        for axis, angle in zip(order, angles):  # the first named axis turns first
            matrix = elementary(axis, angle) @ matrix
        matrices.append(matrix)
    found = torch.stack(function(torch.from_numpy(np.stack(matrices))), dim=-1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


def test_euler_sine_above_one_is_clamped():
    matrix = torch.eye(3).unsqueeze(0)
    matrix[0, 1, 2] = -1.0000001
    assert torch.isfinite(torch.stack(rotmat_to_euler_zxy(matrix))).all()


def test_inverse_rotation_agrees_with_mujoco():
    mujoco = pytest.importorskip("mujoco")
    rng = np.random.default_rng(0)
    quaternions = rng.normal(size=(5, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    vectors = rng.normal(size=(5, 2, 3))
    result = quat_rotate_inverse(torch.tensor(quaternions), torch.tensor(vectors)).numpy()
    inverse, expected = np.zeros(4), np.zeros(3)
    for i in range(5):
        mujoco.mju_negQuat(inverse, quaternions[i])
        for k in range(2):
            mujoco.mju_rotVecQuat(expected, vectors[i, k], inverse)
            np.testing.assert_allclose(result[i, k], expected, atol=1e-12)
