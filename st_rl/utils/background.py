"""Calls that somebody else makes, in order, while the caller goes on."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# Calls that may wait for their turn: more than a training makes around one checkpoint.
MAX_WAITING = 8


class BackgroundCalls:
    """Makes calls one after the other in a thread of its own; an error comes out at the next chance."""

    def __init__(self) -> None:
        # Neither exists before the first call, so that a runner that only plays starts no thread.
        self._executor: ThreadPoolExecutor | None = None
        self._pending: deque[Future[None]] = deque()

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Let a function be called after all earlier ones; waits only while too many of those are still to be made."""
        while self._pending and (self._pending[0].done() or len(self._pending) >= MAX_WAITING):
            self._pending.popleft().result()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="st_rl log")
        self._pending.append(self._executor.submit(function, *args))

    def wait(self) -> None:
        """Wait until every call has been made; raises what the first of them raised."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Wait, and end the thread; a later call starts another."""
        try:
            self.wait()
        finally:
            self._pending.clear()
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.shutdown()
