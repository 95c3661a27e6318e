"""Heartbeats of the ranks of a training, so that an error can name the rank that died or hangs."""

import json
import math
import os
import socket
import threading
import time

import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from st_rl.utils.distributed import RANK_TIMEOUT_S, is_torchrun, rank, world_size
from st_rl.utils.log import logger

INTERVAL_S = 2.0
# A rank that misses this many heartbeats is silent.
_MAX_MISSED = 5
# The last report of a rank that has stopped.
_ENDED = "ended"


class RankHeartbeat:
    """Reports this rank as alive to the store of torchrun until `stop`; does nothing without torchrun.

    With NCCL it also ends this process if the next rank has been silent for `timeout_s`: an exchange in a CUDA graph
    has no time limit.
    """

    def __init__(self, timeout_s: float = RANK_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s if dist.is_initialized() and dist.get_backend() == "nccl" else math.inf
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if is_torchrun():
            self._thread = threading.Thread(target=self._run, name="st_rl heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop reporting; waits for the thread, because one that calls torch while the interpreter ends aborts it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=_MAX_MISSED * INTERVAL_S)

    def _run(self) -> None:
        # A connection of its own: the main thread may block in the one of the process group.
        store = _connect()
        beat = {"process": os.getpid(), "host": socket.gethostname()}
        watched = _key((rank() + 1) % world_size())
        last, changed = b"", time.monotonic()
        try:
            while not self._stop.is_set():
                store.set(_key(rank()), json.dumps({**beat, "time": time.time()}))
                self._stop.wait(INTERVAL_S)
                if self._timeout_s == math.inf or not store.check([watched]):
                    continue
                value = store.get(watched)
                if value != last or value == _ENDED.encode():
                    last, changed = value, time.monotonic()
                elif time.monotonic() - changed > self._timeout_s + _MAX_MISSED * INTERVAL_S:
                    logger.error(f"rank {rank()} stops: {describe_silent_ranks()}")
                    os._exit(1)
            store.set(_key(rank()), _ENDED)
        except RuntimeError:
            # torchrun and its store have ended; so will this process.
            return


def describe_silent_ranks() -> str:
    """Name the ranks without a recent heartbeat, if any; empty without torchrun."""
    if not is_torchrun() or world_size() == 1:
        return ""
    try:
        store, silent = _connect(), []
        for number in range(world_size()):
            if not store.check([_key(number)]):
                silent.append(f"rank {number} (never seen)")
                continue
            value = store.get(_key(number))
            if value == _ENDED.encode():
                continue
            beat = json.loads(value)
            age = time.time() - beat["time"]
            if age > _MAX_MISSED * INTERVAL_S:
                place = f"process {beat['process']} on {beat['host']}"
                silent.append(f"rank {number} ({place}, no heartbeat for {age:.0f} s)")
    except RuntimeError:
        return "torchrun's store does not answer"
    return (
        ", ".join(silent) + " died or hangs"
        if silent
        else "another rank has just ended or does not reach this exchange"
    )


def _connect() -> TCPStore:
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def _key(number: int) -> str:
    return f"st_rl/{os.environ['TORCHELASTIC_RESTART_COUNT']}/heartbeat/{number}"
