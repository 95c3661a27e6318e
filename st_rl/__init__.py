"""On-policy reinforcement learning for legged robots."""

__version__ = "0.1.0"
