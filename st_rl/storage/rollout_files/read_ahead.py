"""Work that a thread does before its result is asked for."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

# A call is worth a thread when waiting for it costs more than handing it over, or when whoever asks is busy elsewhere
# for more than this share of the time it takes.
SLOW_S = 1e-3
BUSY_SHARE = 0.5


class Expected(NamedTuple):
    """A call whose result will be asked for, and its result to come; None where no thread works ahead."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    future: Future[Any] | None


class ReadAhead:
    """Calls functions in a thread as soon as their results are expected, and hands each result out once.

    Quick calls, as from a warm disk, are left until the result is asked for by somebody who does nothing else.
    """

    def __init__(self, enabled: bool = True, slow_s: float = SLOW_S) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="st_rl dataset") if enabled else None
        self._expected: dict[str, Expected] = {}
        self._slow_s = slow_s
        # How long a call takes, and how long it is between two results that are asked for; averages of the last ones.
        self._pace_s = 0.0
        self._pause_s = 0.0
        self._left_at = time.perf_counter()

    def __contains__(self, key: str) -> bool:
        return key in self._expected

    def expect(self, key: str, function: Callable[..., Any], *args: Any) -> None:
        """Say that the result of a call will be taken under this name; what is expected already stays as it is."""
        if key not in self._expected:
            ahead = self._executor if self._is_worth_it() else None
            future = None if ahead is None else ahead.submit(self._timed, function, *args)
            self._expected[key] = Expected(function, args, future)

    def take(self, key: str) -> Any:
        """The result of what was expected; of a call here and now, if the thread has not begun with it."""
        function, args, future = self._expected.pop(key)
        self._pause_s += 0.01 * (time.perf_counter() - self._left_at - self._pause_s)
        try:
            return self._timed(function, *args) if future is None or future.cancel() else future.result()
        finally:
            self._left_at = time.perf_counter()

    def _is_worth_it(self) -> bool:
        return self._pace_s >= self._slow_s or self._pause_s >= BUSY_SHARE * self._pace_s > 0.0

    def _timed(self, function: Callable[..., Any], *args: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args)
        finally:
            self._pace_s += 0.1 * (time.perf_counter() - begin - self._pace_s)

    def close(self) -> None:
        """Drop all that was expected, and end the thread."""
        for expected in self._expected.values():
            if expected.future is not None:
                expected.future.cancel()
        self._expected.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
