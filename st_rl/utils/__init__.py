"""Tensors, trajectories, segments, configuration and files; knows nothing of reinforcement learning."""
