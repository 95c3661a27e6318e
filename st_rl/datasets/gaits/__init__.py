"""Synthetic reference motions: gaits of quadrupeds and bipeds from foot trajectories and rigid-body dynamics."""

from st_rl.datasets.gaits.biped import BIPED_GAITS, BipedGait, BipedGeometry, make_biped_gait
from st_rl.datasets.gaits.gait import GRAVITY, Gait, foot_phases
from st_rl.datasets.gaits.quadruped import QUADRUPED_GAITS, QuadrupedGeometry, make_quadruped_gait

__all__ = [
    "BIPED_GAITS",
    "GRAVITY",
    "QUADRUPED_GAITS",
    "BipedGait",
    "BipedGeometry",
    "Gait",
    "QuadrupedGeometry",
    "foot_phases",
    "make_biped_gait",
    "make_quadruped_gait",
]
