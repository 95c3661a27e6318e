"""Child processes of a kill campaign: forks, so that a start takes milliseconds and not the import of torch."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.002
# A child that shows no progress for this long hangs.
HANG_S = 300.0


class Child:
    """A forked process that calls a function and exits with its result; its output goes to a file."""

    def __init__(self, function: Callable[[], int], log: Path):
        sys.stdout.flush()
        sys.stderr.flush()
        self.log = log
        self.started = time.monotonic()
        self.exit_code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                code = function()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                # No clean-up of what was inherited.
                os._exit(code)

    def is_running(self) -> bool:
        """Return whether the process is running; sets `exit_code` when it has ended."""
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Poll until a condition holds or the process ends; returns whether it holds."""
        while not condition():
            if not self.is_running():
                return condition()
            if time.monotonic() - self.started > HANG_S:
                self.kill()
                raise RuntimeError(f"process {self.pid} hangs; its output is in {self.log}")
            time.sleep(POLL_S)
        return True

    def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        self.wait_until(lambda: False)
        return -1 if self.exit_code is None else self.exit_code

    def kill(self) -> bool:
        """Send SIGKILL and wait; returns False if the process had ended by itself."""
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)
            self.wait_until(lambda: False)
        return self.exit_code == -signal.SIGKILL
