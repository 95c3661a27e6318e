"""Tensors: rotations, named components and groups of observations, trajectories, nested containers."""
