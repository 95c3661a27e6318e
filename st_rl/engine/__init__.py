"""Turns acting and update steps into compiled code or CUDA graphs; knows no algorithm."""

from st_rl.engine.engine import ENGINES, Engine
from st_rl.engine.graph import can_capture_exchanges
from st_rl.engine.threads import UpdateThreads, fastest_thread_count, torch_threads

__all__ = ["ENGINES", "Engine", "UpdateThreads", "can_capture_exchanges", "fastest_thread_count", "torch_threads"]
