"""Ctrl-C and SIGTERM while training: finish the iteration and save first, stop at once when asked twice."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class GracefulShutdown:
    """Within a `with` block, the first signal asks the training to stop, a second one ends the process.

    `exit_code` is that of the signal that came, or None.
    """

    def __init__(self, stop: Callable[[], None]):
        self._stop = stop
        self._previous: dict[signal.Signals, object] = {}
        self.exit_code: int | None = None

    def __enter__(self) -> "GracefulShutdown":
        # Only the main thread may set handlers; elsewhere signals keep their meaning.
        if threading.current_thread() is threading.main_thread():
            for name in EXIT_CODES:
                self._previous[name] = signal.signal(name, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, handler in self._previous.items():
            signal.signal(name, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if self.exit_code is not None:
            _write("\nst-rl: stopped at once; the last checkpoint is complete\n")
            # Not sys.exit: an exception would travel through the training and could be held up there.
            os._exit(EXIT_CODES[name])
        self.exit_code = EXIT_CODES[name]
        again = "Ctrl-C again stops at once" if name == signal.SIGINT else "a second signal stops at once"
        _write(f"\nst-rl: finishing this iteration, then saving ({again})\n")
        self._stop()


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
