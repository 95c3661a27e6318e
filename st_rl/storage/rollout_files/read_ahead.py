"""Work that a thread does before its result is asked for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class ReadAhead:
    """Calls functions in a thread as soon as their results are expected, and hands each result out once."""

    def __init__(self, enabled: bool = True) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="st_rl dataset") if enabled else None
        self._expected: dict[str, Future[Any]] = {}

    def expect(self, key: str, function: Callable[..., Any], *args: Any) -> None:
        """Say that `take(key)` will be called: the function is called meanwhile."""
        if self._executor is not None and key not in self._expected:
            self._expected[key] = self._executor.submit(function, *args)

    def __contains__(self, key: str) -> bool:
        return key in self._expected

    def take(self, key: str, function: Callable[..., Any], *args: Any) -> Any:
        """The result of what was expected, waited for if need be; of a call now, if nothing was."""
        future = self._expected.pop(key, None)
        return function(*args) if future is None or future.cancel() else future.result()

    def forget(self) -> None:
        """Drop all that was expected."""
        for future in self._expected.values():
            future.cancel()
        self._expected.clear()

    def close(self) -> None:
        """Drop all that was expected, and end the thread."""
        self.forget()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
