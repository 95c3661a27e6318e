"""Turns acting and update steps into compiled code or CUDA graphs; knows no algorithm."""

from st_rl.engine.engine import ENGINES, Engine
from st_rl.engine.graph import can_capture_exchanges
from st_rl.engine.threads import UpdateThreads, torch_threads

__all__ = ["ENGINES", "Engine", "UpdateThreads", "can_capture_exchanges", "torch_threads"]
