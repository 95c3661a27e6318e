"""Background prefetching of function results."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any


class ReadAhead:
    """Calls functions in a thread as soon as their results are expected; each result is taken once."""

    def __init__(self, enabled: bool = True) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="st_rl dataset") if enabled else None
        # Key -> call and its future; None without a thread.
        self._expected: dict[str, tuple[Callable[[], Any], Future[Any] | None]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._expected

    def expect(self, key: str, function: Callable[..., Any], *args: Any) -> None:
        """Announce that the result of a call will be taken under `key`; no-op if `key` is already expected."""
        if key not in self._expected:
            call = partial(function, *args)
            self._expected[key] = call, None if self._executor is None else self._executor.submit(call)

    def take(self, key: str) -> Any:
        """Return an expected result; makes the call itself if the thread has not started it."""
        call, future = self._expected.pop(key)
        return call() if future is None or future.cancel() else future.result()

    def close(self) -> None:
        """Cancel all expected calls and stop the thread."""
        self._expected.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
