"""Observations, rewards, terminations and randomization as small functions."""
