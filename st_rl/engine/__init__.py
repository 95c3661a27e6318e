"""Turns acting and update steps into compiled code or CUDA graphs."""
