"""The historical spelling of `st_rl.storage.replay_buffer`."""

from st_rl.storage.replay_buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
