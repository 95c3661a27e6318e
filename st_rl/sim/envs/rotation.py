"""Rotations by unit quaternions as MuJoCo writes them: wxyz."""

import torch


def rotate_inverse(quaternion: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """World vectors `(N, K, 3)` in the frame of a body with orientation `quaternion` `(N, 4)` wxyz: `(N, K, 3)`."""
    w, axis = quaternion[:, None, :1], quaternion[:, None, 1:]
    across = torch.linalg.cross(axis, vectors)
    return torch.add(vectors, torch.addcmul(torch.linalg.cross(axis, across), w, across, value=-1.0), alpha=2.0)
