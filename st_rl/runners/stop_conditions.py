"""Conditions that end `learn` before its last iteration: Ctrl-C and the time limit."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from st_rl.utils.log import logger


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGINT and raise KeyboardInterrupt after the block; a second SIGINT raises it at once.

    Only in the main thread and instead of Python's own handler: a program with a handler of its own keeps it.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    was_interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logger.warning("interrupted: finishing this iteration, then saving (Ctrl-C again stops immediately)")
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except InterruptedError as error:  # a wait for files that `stop` has ended
        if was_interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if was_interrupted:
        raise KeyboardInterrupt


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
