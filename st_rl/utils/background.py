"""Calls that somebody else makes, in order, while the caller goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class BackgroundCalls:
    """Makes calls one after the other in a thread of its own; an error comes out at the next chance."""

    def __init__(self) -> None:
        # Neither exists before the first call, so that a runner that only plays starts no thread.
        self._executor: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Let a function be called after all earlier ones; waits for those, so that no queue builds up."""
        self.wait()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="st_rl log")
        self._last = self._executor.submit(function, *args)

    def wait(self) -> None:
        """Wait until every call has been made; raises what the last one raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """Wait, and end the thread; a later call starts another."""
        try:
            self.wait()
        finally:
            executor, self._executor = self._executor, None
            if executor is not None:
                executor.shutdown()
