"""Function calls in a background thread."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# More calls than a training queues for one checkpoint.
MAX_WAITING = 8


class BackgroundCalls:
    """Makes calls in order in one background thread; an exception is raised by the next `call` or `wait`."""

    def __init__(self) -> None:
        # Created by the first call, so that a runner that only plays starts no thread.
        self._executor: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Queue a call; blocks only while the queue is full."""
        while self._pending and (self._pending[0].done() or len(self._pending) >= MAX_WAITING):
            self._pending.popleft().result()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="st_rl log")
        self._pending.append(self._executor.submit(function, *args))

    def wait(self) -> None:
        """Wait for all calls; raises the first exception."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Wait for all calls and stop the thread; a later call starts a new one."""
        try:
            self.wait()
        finally:
            self._pending.clear()
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.shutdown()
