"""A limit of the training time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(seconds: float | None, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` in another thread after the given seconds; never if None."""
    timer = threading.Timer(seconds, stop) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
