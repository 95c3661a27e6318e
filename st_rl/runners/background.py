"""Function calls in a background thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# More calls than a training queues for one checkpoint.
MAX_WAITING = 8


class BackgroundCalls:
    """Makes calls in order in one background thread; an exception is raised by the next `call` or by `close`."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="st_rl log")
        self._pending: deque[Future[None]] = deque()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Queue a call; blocks only while the queue is full."""
        while self._pending and (self._pending[0].done() or len(self._pending) >= MAX_WAITING):
            self._pending.popleft().result()
        self._pending.append(self._executor.submit(function, *args))

    def close(self) -> None:
        """Wait for all calls and stop the thread; raises the first exception."""
        try:
            while self._pending:
                self._pending.popleft().result()
        finally:
            self._executor.shutdown()
