"""Calls that may fail without stopping a training."""

from collections.abc import Callable
from typing import Any

from st_rl.utils.log import logger

_MAX_FAILURES = 3


class FailureGuard:
    """Calls a logging service: warns at the first failure of each kind of call, stops after three in a row."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._failures: dict[str, int] = {}

    def call(self, kind: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`, or None if it fails or calls of this kind are switched off."""
        failures = self._failures.get(kind, 0)
        if failures >= _MAX_FAILURES:
            return None
        try:
            result = function(*args, **kwargs)
        # A logging service may raise anything; none of it must stop a training.
        except Exception as error:
            if kind not in self._failures:
                logger.warning("%s: %s failed: %s: %s", self.service, kind, type(error).__name__, error)
            self._failures[kind] = failures + 1
            if failures + 1 == _MAX_FAILURES:
                logger.warning("%s: %s failed %d times in a row and is switched off", self.service, kind, _MAX_FAILURES)
            return None
        if failures:
            self._failures[kind] = 0
        return result
