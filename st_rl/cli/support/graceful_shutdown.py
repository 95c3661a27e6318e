"""Ctrl-C, SIGTERM and SIGHUP: a training finishes its iteration and saves, other commands clean up and exit."""

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
if sys.platform != "win32":
    EXIT_CODES[signal.SIGHUP] = 129
RANK_EXIT_S = 20.0
"""Time that a rank has for the last iteration and its checkpoint after SIGTERM; torchrun kills it after 30 s."""


class GracefulShutdown:
    """Within a `with` block, the first signal calls `stop` and the second exits the process.

    `exit_code` is the exit code of the signal received, or None.
    """

    def __init__(self, stop: Callable[[], None]):
        self._stop = stop
        self._previous: dict[signal.Signals, object] = {}
        self.exit_code: int | None = None

    def __enter__(self) -> "GracefulShutdown":
        # Only the main thread may set handlers; in other threads signals keep their default handling.
        if threading.current_thread() is threading.main_thread():
            for name in EXIT_CODES:
                # nohup ignores SIGHUP, so that the training continues without a terminal.
                if name in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(name) != signal.SIG_IGN:
                    self._previous[name] = signal.signal(name, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, handler in self._previous.items():
            signal.signal(name, handler)  # pyright: ignore[reportArgumentType]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if name not in (signal.SIGINT, signal.SIGTERM):
            _discard_terminal_output()
        if self.exit_code is not None and "TORCHELASTIC_RUN_ID" in os.environ:
            # torchrun passes on the Ctrl-C that this process has seen itself, and kills it if it does not end.
            return
        if self.exit_code is not None:
            print("\nst-rl: stopped immediately; the last checkpoint is complete", file=sys.stderr, flush=True)
            # Not sys.exit: the training loop could catch or delay an exception.
            os._exit(EXIT_CODES[name])
        self.exit_code = EXIT_CODES[name]
        again = "Ctrl-C again" if name == signal.SIGINT else "a second signal"
        message = f"finishing this iteration, then saving ({again} stops immediately)"
        print(f"\nst-rl: {message}", file=sys.stderr, flush=True)
        self._stop()


@contextmanager
def _end_blocked_rank() -> Iterator[None]:
    """Within the block, end a rank of torchrun `RANK_EXIT_S` after SIGTERM, whatever its main thread waits for.

    When a rank dies, torchrun sends SIGTERM to the others. Python calls no handler while the main thread is blocked in
    an exchange with the dead rank, so a thread reads the signals from a pipe.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while number := os.read(reader, 1):
            if number[0] == signal.SIGTERM:
                time.sleep(RANK_EXIT_S)
                os._exit(EXIT_CODES[signal.SIGTERM])

    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, name="st_rl signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        # After SIGTERM the thread sleeps and ends with the process.
        os.close(writer)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise SystemExit, so that temporary files are removed.

    A second signal ends the process at once. `GracefulShutdown` takes over while it is active.
    """
    previous: dict[signal.Signals, object] = {}

    def exit_process(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        signal.signal(name, signal.SIG_DFL)
        if name != signal.SIGTERM:
            _discard_terminal_output()
        sys.exit(EXIT_CODES[name])

    if threading.current_thread() is threading.main_thread():
        # Python already raises KeyboardInterrupt on SIGINT; a signal that nohup or a caller handles stays as it is.
        names = [name for name in EXIT_CODES if signal.getsignal(name) == signal.SIG_DFL]
        previous = {name: signal.signal(name, exit_process) for name in names}
    try:
        with _end_blocked_rank():
            yield
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)  # pyright: ignore[reportArgumentType]


def _discard_terminal_output() -> None:
    """Send terminal output to os.devnull: after SIGHUP the terminal is closed, and printing would raise OSError."""
    for number in (1, 2):
        if stat.S_ISCHR(os.fstat(number).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
