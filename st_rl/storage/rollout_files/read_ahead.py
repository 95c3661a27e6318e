"""Work that a thread does before its result is asked for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple


class Expected(NamedTuple):
    """A call whose result will be asked for, and its result to come; None where no thread works ahead."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    future: Future[Any] | None


class ReadAhead:
    """Calls functions in a thread as soon as their results are expected, and hands each result out once."""

    def __init__(self, enabled: bool = True) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="st_rl dataset") if enabled else None
        self._expected: dict[str, Expected] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._expected

    def expect(self, key: str, function: Callable[..., Any], *args: Any) -> None:
        """Say that the result of a call will be taken under this name; what is expected already stays as it is."""
        if key not in self._expected:
            future = None if self._executor is None else self._executor.submit(function, *args)
            self._expected[key] = Expected(function, args, future)

    def take(self, key: str) -> Any:
        """The result of what was expected; of a call here and now, if the thread has not begun with it."""
        function, args, future = self._expected.pop(key)
        return function(*args) if future is None or future.cancel() else future.result()

    def close(self) -> None:
        """Drop all that was expected, and end the thread."""
        for expected in self._expected.values():
            if expected.future is not None:
                expected.future.cancel()
        self._expected.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None
