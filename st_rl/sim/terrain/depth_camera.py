"""A depth camera without a renderer: ray casts against the columns of a track."""

import math
from dataclasses import dataclass

import torch

# Smallest ray component, against a division by zero.
_TINY = 1.0e-6


@dataclass
class DepthCameraCfg:
    """Pose and image of the camera; it sees the ground, not the robot itself."""

    height: int = 16
    """Rows of the image."""
    width: int = 12
    """Columns of the image."""
    vertical_view: float = 1.05
    """Angle between the lowest and the highest row, rad."""
    horizontal_view: float = 1.05
    """Angle between the leftmost and the rightmost column, rad."""
    position: tuple[float, float, float] = (0.25, 0.0, 0.05)
    """Position in the frame of the base, m."""
    pitch: float = 0.75
    """Downward pitch, rad."""
    far: float = 2.0
    """Largest depth, m."""
    covered: bool = False
    """Whether every pixel has the largest depth, for a blind policy of the same size."""


def pixel_rays(cfg: DepthCameraCfg) -> torch.Tensor:
    """`(height * width, 3)` rays of the pixels in the frame of the base, row by row from the upper left.

    Each has length 1 along the optical axis, so that the distance to a hit in ray lengths is its depth.
    """
    up = torch.tan(torch.linspace(0.5, -0.5, cfg.height, dtype=torch.float64) * cfg.vertical_view)
    left = torch.tan(torch.linspace(0.5, -0.5, cfg.width, dtype=torch.float64) * cfg.horizontal_view)
    up, left = torch.meshgrid(up, left, indexing="ij")
    sine, cosine = math.sin(cfg.pitch), math.cos(cfg.pitch)
    rays = torch.stack([cosine + sine * up, left, -sine + cosine * up], dim=-1)
    return rays.reshape(-1, 3).float()


def cast_rays(
    origins: torch.Tensor,
    rays: torch.Tensor,
    edges: torch.Tensor,
    heights: torch.Tensor,
    half_width: float,
    floor: float,
    far: float,
) -> torch.Tensor:
    """Distance to the first hit of each ray in ray lengths, at most `far`, `(N, R)`.

    Args:
        origins: `(N, 3)` origins of the rays, y from the center line of the track.
        rays: `(N, R, 3)`
        edges: `(N, S + 1)` start of each column along x, and end of the last one.
        heights: `(N, S)` heights of the columns, which reach down to the floor.
        half_width: Half the width of the track.
        floor: Height of the infinite floor.
        far: Result of a ray without a hit.
    """
    inverse = 1.0 / torch.where(rays.abs() < _TINY, _TINY, rays)
    along, across, upward = inverse.transpose(1, 2).contiguous().unbind(1)
    place, offset, height = origins.split(1, dim=1)
    # Slab method: a ray is inside a column between its last entry and first exit along the three axes, (N, S, R).
    at_edges = (edges - place)[:, :, None] * along[:, None]
    at_tops = (heights - height)[:, :, None] * upward[:, None]
    at_floor = (floor - height) * upward
    at_left, at_right = (half_width - offset) * across, (-half_width - offset) * across
    starts, ends = at_edges[:, :-1], at_edges[:, 1:]
    enter = torch.maximum(torch.minimum(starts, ends), torch.minimum(at_tops, at_floor[:, None]))
    enter = torch.maximum(enter, torch.minimum(at_left, at_right)[:, None])
    leave = torch.minimum(torch.maximum(starts, ends), torch.maximum(at_tops, at_floor[:, None]))
    leave = torch.minimum(leave, torch.maximum(at_left, at_right)[:, None])
    hits = (enter <= leave) & (leave > 0)
    depth = torch.where(hits, enter.clamp(min=0.0), far).amin(dim=1)
    return torch.minimum(depth, torch.where(at_floor > 0, at_floor, far)).clamp(max=far)
