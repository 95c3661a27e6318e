"""A depth camera without a renderer: rays against the columns of a track."""

import math
from dataclasses import dataclass

import torch

# A ray component smaller than this counts as this: a division by zero would give no number.
_TINY = 1.0e-6


@dataclass
class DepthCameraCfg:
    """Where the camera sits and what it sees; it sees the ground, not the robot itself."""

    height: int = 16
    """Rows of the image."""
    width: int = 12
    """Columns of the image."""
    vertical_view: float = 1.05
    """Angle between the lowest and the highest row, rad."""
    horizontal_view: float = 1.05
    """Angle between the leftmost and the rightmost column, rad."""
    position: tuple[float, float, float] = (0.25, 0.0, 0.05)
    """In the frame of the base, m."""
    pitch: float = 0.75
    """Angle by which it looks down, rad."""
    far: float = 2.0
    """Depth that counts as infinite, m."""
    covered: bool = False
    """Whether a lid covers the lens: every pixel is far. For a policy that is blind but of the same size."""


def pixel_rays(cfg: DepthCameraCfg) -> torch.Tensor:
    """`(height * width, 3)` rays of the pixels in the frame of the base, row by row from the upper left.

    Along the optical axis each has the length 1, so that the length to a hit, in rays, is its depth.
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
    """How many lengths of each ray it is to the first hit, at most `far`: `(N, R)`.

    Args:
        origins: `(N, 3)` where the rays start, y from the middle of the track.
        rays: `(N, R, 3)`
        edges: `(N, S + 1)` where the columns along x start, and where the last one ends.
        heights: `(N, S)` of the columns, which reach down to the floor.
        half_width: Of the track.
        floor: Height of the floor, which has no end.
        far: What a ray that hits nothing gives.
    """
    inverse = 1.0 / torch.where(rays.abs() < _TINY, _TINY, rays)
    along, across, upward = inverse.transpose(1, 2).contiguous().unbind(1)
    place, offset, height = origins.split(1, dim=1)
    # A ray is inside a column between its entries and its exits along all three axes: (N, S, R), as the last axis is
    # the one along which a processor is fast.
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
