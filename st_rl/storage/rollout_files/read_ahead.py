"""Background prefetching of function results."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

# A call runs in the thread if it takes at least this time, or if the time between two `take` calls is at least this
# fraction of it; otherwise handing it over costs more than it saves.
SLOW_S = 1e-3
BUSY_FRACTION = 0.5


class Expected(NamedTuple):
    """A call and its future; None if the call is left to `take`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    future: Future[Any] | None


class ReadAhead:
    """Calls functions in a thread as soon as their results are expected; each result is taken once.

    Fast calls, such as reads from a warm disk, run in `take` unless the caller is busy in between.
    """

    def __init__(self, enabled: bool = True, slow_s: float = SLOW_S) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="st_rl dataset") if enabled else None
        self._expected: dict[str, Expected] = {}
        self._slow_s = slow_s
        # Moving averages: duration of a call, time between two `take` calls.
        self._call_s = 0.0
        self._idle_s = 0.0
        self._last_take = time.perf_counter()

    def __contains__(self, key: str) -> bool:
        return key in self._expected

    def expect(self, key: str, function: Callable[..., Any], *args: Any) -> None:
        """Announce that the result of a call will be taken under `key`; no-op if `key` is already expected."""
        if key not in self._expected:
            should_prefetch = self._call_s >= self._slow_s or self._idle_s >= BUSY_FRACTION * self._call_s > 0.0
            ahead = self._executor if should_prefetch else None
            future = None if ahead is None else ahead.submit(self._timed, function, *args)
            self._expected[key] = Expected(function, args, future)

    def take(self, key: str) -> Any:
        """Return an expected result; makes the call itself if the thread has not started it."""
        function, args, future = self._expected.pop(key)
        self._idle_s += 0.01 * (time.perf_counter() - self._last_take - self._idle_s)
        try:
            return self._timed(function, *args) if future is None or future.cancel() else future.result()
        finally:
            self._last_take = time.perf_counter()

    def _timed(self, function: Callable[..., Any], *args: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args)
        finally:
            self._call_s += 0.1 * (time.perf_counter() - begin - self._call_s)

    def close(self) -> None:
        """Cancel all expected calls and stop the thread."""
        for expected in self._expected.values():
            if expected.future is not None:
                expected.future.cancel()
        self._expected.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
