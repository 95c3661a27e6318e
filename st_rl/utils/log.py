"""The one logger of the library: `logger`, named `st_rl`, shown on the console from INFO upwards."""

import logging
import sys


class _ConsoleHandler(logging.Handler):
    """Writes records to the current standard error, unless the application has set up logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if not logging.getLogger().handlers:
            sys.stderr.write(f"[st_rl] {self.format(record)}\n")


logger = logging.getLogger("st_rl")
if not logger.handlers:
    logger.addHandler(_ConsoleHandler())
    logger.setLevel(logging.INFO)
