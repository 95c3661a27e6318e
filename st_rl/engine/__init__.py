"""Turns acting and update steps into compiled code or CUDA graphs; knows no algorithm."""

from st_rl.engine.engine import ENGINES, Engine

__all__ = ["ENGINES", "Engine"]
