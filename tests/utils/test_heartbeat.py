"""A rank that has been silent for too long is named, and with NCCL it ends the one that waits for it."""

import itertools
import json
import os
import re
import threading
import time

import pytest

from st_rl.utils.distributed import heartbeat
from st_rl.utils.distributed.heartbeat import RankHeartbeat


class Store:
    """The store of torchrun, in this process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        value = self.values[key]
        return (value if isinstance(value, str) else next(value)).encode()


@pytest.fixture
def store(monkeypatch):
    store = Store()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setattr(heartbeat, "_connect", lambda: store)
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.01)
    monkeypatch.setattr(heartbeat, "rank", lambda: 0)
    monkeypatch.setattr(heartbeat, "world_size", lambda: 2)
    monkeypatch.setattr(heartbeat.dist, "is_initialized", lambda: True)
    return store


@pytest.mark.parametrize(("neighbour", "backend", "ends"), [
    ("silent", "nccl", True),
    ("silent", "gloo", False),
    ("alive", "nccl", False),
    ("ended", "nccl", False),
    ("never seen", "nccl", False),
])  # fmt: skip
def test_rank_that_waits_for_a_silent_one_ends(store, monkeypatch, neighbour, backend, ends):
    has_ended, lines = threading.Event(), []

    def end(code):
        has_ended.set()
        raise RuntimeError("the process has ended")

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(heartbeat.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(heartbeat.logger, "error", lines.append)
    key, beat = heartbeat._key(1), {"process": 77, "host": "node7", "time": time.time() - 60.0}
    if neighbour == "alive":
        store.values[key] = map(str, itertools.count())
    elif neighbour != "never seen":
        store.set(key, "ended" if neighbour == "ended" else json.dumps(beat))
    own = RankHeartbeat(timeout_s=0.05)
    has_ended.wait(60.0 if ends else 0.4)
    own.stop()
    assert has_ended.is_set() == ends
    assert [bool(re.search(r"rank 1 \(process 77 on node7, no heartbeat for 6\d s\)", line)) for line in lines] == (
        [True] * ends
    )
    assert ends or store.get(heartbeat._key(0)) == b"ended"
